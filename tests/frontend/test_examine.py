"""What echo finds of this process's MXNet; devices are asked in `tests/fake_gpu/test_doctor.py`."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.errors import NativeError, UnsupportedError
from echo.frontend import examine
from echo.kernels import library


def test_here_all_fits() -> None:
    assert examine.version() == mx.__version__ == "1.9.1"
    assert examine.examine() == ("", "", "", (), False)


def test_uncountable_gpus_leave_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise mx.MXNetError("CUDA driver version is insufficient for CUDA runtime version")

    monkeypatch.setattr(mx.context, "num_gpus", refuse)
    examined = examine.examine()
    assert examined.gpus.endswith("CUDA driver version is insufficient for CUDA runtime version")
    assert examined.devices == ()


def test_another_version_is_refused_before_anything_looks_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "__version__", "1.8.0")
    with pytest.raises(UnsupportedError, match=r"expected mxnet 1\.9\.1, got 1\.8\.0"):
        examine.examine()
    monkeypatch.delattr(mx, "__version__")
    assert examine.version() == "unknown"


def test_each_device_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    monkeypatch.setattr(library, "why_not_on_cuda", lambda number: "no memory" if number else "")
    assert examine.examine().devices == ("", "no memory")

    def missing(number: int) -> str:
        raise NativeError("libecho_kernels.so is not installed")

    monkeypatch.setattr(library, "why_not_on_cuda", missing)
    assert examine.examine().devices == ("libecho_kernels.so is not installed",) * 2
