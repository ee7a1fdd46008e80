"""The library that writes memory plans down is compiled for the fuzzers, and takes itself off MXNet again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Iterator

import pytest

from echo import native
from echo.errors import NativeError
from echo.frontend.install import install_hook
from fuzz import poison_library
from fuzz.poison import poisoned
from tests.support.hooked_network import clones, forget, marked, network


@pytest.fixture(autouse=True)
def hook() -> Iterator[None]:
    """The hook is on before and after the test."""
    assert install_hook() == ""
    yield
    poison_library.stop()
    forget()
    assert install_hook() == ""


def test_plans_are_recorded_between_start_and_stop() -> None:
    poison_library.start()
    clones(marked(network(), tanh="0"))
    plans = json.loads(poison_library.recorded())
    assert plans
    assert all(len(plan["storage"]) == len(plan["dtypes"]) for plan in plans)
    assert json.loads(poison_library.recorded()) == []
    poison_library.stop()
    clones(marked(network(), tanh="0"))
    assert json.loads(poison_library.recorded()) == []


def test_hook_is_uninstalled_only_after_poison_has_stopped() -> None:
    poison_library.start()
    with pytest.raises(NativeError, match=r"another library has wrapped .* since"):
        native.uninstall()
    poison_library.stop()
    native.uninstall()
    assert not native.installed()


def test_poison_under_a_hook_installed_later_stays_and_records_again() -> None:
    native.uninstall()
    poison_library.start()
    forget()
    assert install_hook() == ""
    poison_library.stop()
    for _ in range(2):  # it must not wrap what has wrapped it
        poison_library.start()
        clones(marked(network(), tanh="0"))
        assert json.loads(poison_library.recorded())
        poison_library.stop()
    native.uninstall()
    poison_library.stop()


def test_poison_without_the_hook_raises_native_error() -> None:
    native.uninstall()
    with pytest.raises(NativeError, match="poison needs the hook"), poisoned():
        pass


@pytest.mark.parametrize(
    ("compiler", "reason"), [("no-such-compiler", "is not installed"), ("false", "poison.cc is not compiled")]
)
def test_failing_compiler_raises_native_error(
    compiler: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(NativeError, match=reason):
        poison_library._compile(tmp_path / "poison" / "library.so")
    assert list((tmp_path / "poison").iterdir()) == []
