"""Tests of `echo.frontend.install`: hook; selfcheck; examine."""

from __future__ import annotations

import mxnet as mx
import pytest

import echo
from echo.errors import NativeError, UnsupportedError
from echo.frontend import install
from echo.frontend.install import check_hook, check_version, install_hook, onednn_activations
from echo.kernels import library
from echo.runtime.find import PLANNER


def test_the_hook_is_installed_once() -> None:
    assert install_hook() == "" == install_hook()


def test_another_copy_of_echo_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_version()
    monkeypatch.setitem(vars(mx), "_echo_owner", pytest)
    with pytest.raises(UnsupportedError, match=r"two copies of echo in one process, .*pytest.* and .*echo"):
        check_version()


def test_activations_are_tried_in_any_context() -> None:
    """The first plan of a process may be that of a block on another device, which runs in the context of its data."""
    assert install_hook() == ""
    known = onednn_activations()
    onednn_activations.cache_clear()
    with mx.cpu(1):
        assert onednn_activations() == known


def test_self_check_in_transparent_mode_plans_nothing_of_its_own() -> None:
    """`ECHO=1 mxecho doctor` would otherwise say that the hook does not fit."""
    assert install_hook() == ""
    known = onednn_activations()
    onednn_activations.cache_clear()
    before = PLANNER.summary.graphs
    with echo.enable():
        check_hook()
        assert onednn_activations() == known
    assert PLANNER.summary.graphs == before


def test_here_all_fits() -> None:
    assert install.version() == mx.__version__ == "1.9.1"
    assert install.examine() == ("", "", "", (), False)


def test_where_mxnet_cannot_count_its_gpus_cpus_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise mx.MXNetError("CUDA driver version is insufficient for CUDA runtime version")

    monkeypatch.setattr(mx.context, "num_gpus", refuse)
    examined = install.examine()
    assert examined.gpus.endswith("CUDA driver version is insufficient for CUDA runtime version")
    assert examined.devices == ()


def test_another_version_is_refused_before_anything_looks_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "__version__", "1.8.0")
    with pytest.raises(UnsupportedError, match=r"expected mxnet 1\.9\.1, got 1\.8\.0"):
        install.examine()
    monkeypatch.delattr(mx, "__version__")
    assert install.version() == "unknown"


def test_each_device_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    monkeypatch.setattr(library, "why_not_on_cuda", lambda number: "no memory" if number else "")
    assert install.examine().devices == ("", "no memory")

    def missing(number: int) -> str:
        raise NativeError("libecho_kernels.so is not installed")

    monkeypatch.setattr(library, "why_not_on_cuda", missing)
    assert install.examine().devices == ("libecho_kernels.so is not installed",) * 2
