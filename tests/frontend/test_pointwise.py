"""MXNet's fusion of pointwise operators, as far as it shows without a GPU; ``tests/fake_gpu`` has the rest."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo import native
from echo.frontend.hook import install_hook
from echo.frontend.pointwise import FUSION_VARIABLE, fuses, unfused


def test_nothing_is_fused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FUSION_VARIABLE, "1")
    assert not fuses(mx.cpu())


@pytest.mark.parametrize(
    ("text", "wanted"), [("1", True), ("true", True), ("0", False), ("false", False), (None, True)]
)
def test_the_variable_is_read_as_mxnet_reads_it(
    text: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx.runtime.Features, "is_enabled", lambda self, name: name == "CUDA_RTC")
    if text is None:
        monkeypatch.delenv(FUSION_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(FUSION_VARIABLE, text)
    assert fuses(mx.gpu(0)) == wanted


def test_a_thread_that_keeps_operators_apart_does_so_until_it_ends() -> None:
    assert install_hook() == ""
    keep = native.hook_library().echo_keep_unfused
    with unfused(mx.gpu(0)):
        with unfused(mx.gpu(0)), unfused(mx.cpu()):
            assert keep(1) == 1
        assert keep(1) == 1, "the outer one goes on"
    assert keep(0) == 0


def test_the_hook_says_whether_it_can_keep_them_apart() -> None:
    assert install_hook() == ""
    assert native.keeps_unfused()
    assert native.hook_library().echo_keep_unfused(0) == 0, "asking changes nothing"
    with unfused(mx.gpu(0)):
        assert native.keeps_unfused()
        assert native.hook_library().echo_keep_unfused(1) == 1
