"""Native libraries that are missing or damaged: a reason is given, and plans are made without them."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import MODELS, SMALL, random_values
from echo import native
from echo.errors import BudgetError, NativeError, OptionError, UnsupportedError
from echo.frontend.capture import planned_megabytes
from echo.frontend.install import install_hook
from echo.runtime import bind_plan
from echo.system.threads import ONCE
from tests.support.small_network import SHAPES, network, trained
from tests.support.training import assert_same, bind, train

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("cheap_planning")


BUILT = list(native.__path__)  # an editable install keeps them apart from the sources


def built(name: str) -> Path:
    return next(path for path in (Path(folder) / name for folder in BUILT) if path.is_file())


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder instead of the one that holds the native libraries."""

    def forget() -> None:
        native.uninstall()
        native._load.cache_clear()
        native.planner_library.cache_clear()

    forget()
    folder = tmp_path / "native"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(native, "__path__", [str(folder)])
        yield folder
        native._load.cache_clear()
        native.planner_library.cache_clear()
    assert install_hook() == ""


UNBOUND: dict[str, Any] = {"max_overhead": None}


def check_fallback(names: Sequence[str] = ("lm",), options: Sequence[dict[str, Any]] = (UNBOUND,)) -> None:
    for name in names:
        model = SMALL[name]()
        values = random_values(model)
        plain = bind(model.symbol, values, model.grad_req())
        expected = train(plain, steps=2)
        for each in options:
            optimized = echo.optimize(model.symbol, **each)
            executor = bind(optimized, values, model.grad_req())
            (plan,) = optimized.plans
            assert plan.applied in ("mirror", "none")
            assert any("native hook cannot be used" in note for note in plan.remarks)
            assert planned_megabytes(executor) <= planned_megabytes(plain)
            assert_same(train(executor, steps=2), expected)


def test_missing_libraries(libraries: Path) -> None:
    assert "is not installed" in install_hook()
    assert "g++" in install_hook()
    with pytest.raises(NativeError, match=r"libecho_planner.so is not installed"):
        native.planner_library()
    with pytest.raises(NativeError, match=r"libecho_hook.so is not installed"), native.capture():
        pass
    assert not native.installed()
    check_fallback(("lm", "resnet50_v2"), (UNBOUND, {}, {"policy": "echo", **UNBOUND}))


@pytest.mark.slow
def test_fallback_saves_memory(libraries: Path) -> None:
    # MXNet says megabytes, so the full size; nothing is run
    model = MODELS["nmt"]()
    plan = echo.plan(model.symbol, max_overhead=None, **model.shapes)
    assert plan.applied == "mirror"
    assert plan.after.planned < 0.9 * plan.before.planned


def test_plans_without_the_hook_are_warned_of_once(libraries: Path, caplog: pytest.LogCaptureFixture) -> None:
    ONCE.forget()
    for width in (24, 32):
        echo.plan(network(), data=(16, width), label=(16,), max_overhead=None)
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert [text for text in warnings if "without the native hook, plans save less" in text] == warnings[:1]
    assert "libecho_hook.so is not installed" in warnings[0]
    with pytest.raises(UnsupportedError, match=r"libecho_hook.so is not installed"):
        echo.plan(network(), strict=True, **SHAPES)
    with pytest.raises(UnsupportedError, match=r"libecho_hook.so is not installed"):
        echo.optimize(network(), strict=True).simple_bind(mx.cpu(), **SHAPES)


def test_fallback_with_wishes(libraries: Path) -> None:
    optimized = echo.optimize(network(), recompute="tanh*", keep="gate*")
    assert_same(trained(optimized, SHAPES, label=10), trained(network(), SHAPES, label=10))
    assert {decision.name for decision in optimized.plans[-1].recomputed} >= {"tanh0", "tanh1", "tanh2"}
    with pytest.raises(OptionError, match="needs the native hook"):
        echo.plan(mx.sym.Dropout(mx.sym.var("data"), name="drop") * 2, data=(4, 4), grad_req="write", recompute="drop")


def test_fallback_with_a_budget(libraries: Path) -> None:
    with pytest.raises(BudgetError) as caught:
        echo.plan(network(), memory_budget=1000, **SHAPES)
    plan = echo.plan(network(), memory_budget=caught.value.reachable, **SHAPES)
    assert plan.after.total <= caught.value.reachable


@pytest.mark.slow
def test_missing_planner_alone(libraries: Path) -> None:
    shutil.copy(built("libecho_hook.so"), libraries)
    assert install_hook() == ""
    model = SMALL["lm"]()
    values = random_values(model)
    optimized = echo.optimize(model.symbol, max_overhead=None, fuse=False)
    executor = bind(optimized, values, model.grad_req())
    (plan,) = optimized.plans
    assert plan.applied == "hook"
    assert plan.after.planned < plan.before.planned
    assert_same(train(executor, steps=1), train(bind(model.symbol, values, model.grad_req()), steps=1))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda library: b"",
    "text": lambda library: b"not a library\n",
    "header alone": lambda library: library[:64],
    "another machine": lambda library: library[:18] + b"\xb7\x00" + library[20:],
}


@pytest.mark.every(4)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_libraries(libraries: Path, damage: str) -> None:
    for name in ("libecho_hook.so", "libecho_planner.so"):
        content = built(name).read_bytes()
        (libraries / name).write_bytes(DAMAGE[damage](content))
    reason = install_hook()
    assert "libecho_hook.so" in reason
    assert "reinstall mxnet-echo" in reason
    with pytest.raises(NativeError, match=r"libecho_planner.so.*reinstall mxnet-echo"):
        native.planner_library()
    check_fallback()


def test_another_library_instead_of_the_hook(libraries: Path) -> None:
    shutil.copy(built("libecho_planner.so"), libraries / "libecho_hook.so")
    shutil.copy(built("libecho_hook.so"), libraries / "libecho_planner.so")
    assert "has no function" in install_hook()
    with pytest.raises(NativeError, match="has no function"):
        native.planner_library()
    check_fallback()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.8])
def test_truncated_libraries(tmp_path: Path, share: float) -> None:
    """In a process of its own, since half a library may crash the loader."""
    for name in ("libecho_hook.so", "libecho_planner.so"):
        content = built(name).read_bytes()
        (tmp_path / name).write_bytes(content[: int(share * len(content))])
    code = f"""
        import mxnet as mx
        import echo.native
        echo.native.__path__ = [{str(tmp_path)!r}]
        from echo.frontend.install import install_hook
        print(install_hook())
        x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64)
        for _ in range(5):
            x = mx.sym.tanh(x) * mx.sym.sigmoid(x)
        print(echo.plan(mx.sym.MakeLoss(mx.sym.sum(x)), data=(8, 64), max_overhead=None).applied)
    """
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-500:]
    reason, applied = result.stdout.splitlines()
    assert "reinstall mxnet-echo" in reason
    assert applied in ("mirror", "none")


def test_the_hook_comes_back(libraries: Path) -> None:
    assert install_hook() != ""
    native.__path__[:] = BUILT
    assert install_hook() == ""
    bind_plan.PLANNER.forget()
    assert echo.plan(network(), max_overhead=None, **SHAPES).applied == "hook"
