"""From how many spaces MXNet's operators draw, by its variables and by what runs the graph."""

from __future__ import annotations

import pytest

from echo.frontend.spaces import other_spaces, spaces
from echo.ir.training_graph import DYNAMIC, EXECUTOR, SHAPED, STATIC


@pytest.mark.parametrize(
    ("text", "cpu", "gpu"), [(None, 4, 1), ("3", 3, 3), ("1", 1, 1), ("", 4, 1), ("0", 4, 1), ("many", 4, 1)]
)
def test_cached_ops_draw_from_all(text: str | None, cpu: int, gpu: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MXNET_CPU_TEMP_COPY", "MXNET_GPU_TEMP_COPY"):
        monkeypatch.delenv(name, raising=False)
        if text is not None:
            monkeypatch.setenv(name, text)
    for runner in (STATIC, DYNAMIC):
        assert (spaces("cpu", runner), spaces("gpu", runner)) == (cpu, gpu)
    assert (spaces("cpu", SHAPED), spaces("gpu", SHAPED)) == (min(cpu, 2), min(gpu, 2)), "one for each of its passes"
    assert spaces("cpu", EXECUTOR) == spaces("gpu", EXECUTOR) == 1


@pytest.mark.parametrize(
    ("text", "runner", "setting"),
    [(None, STATIC, None), ("4", STATIC, None), ("32", STATIC, "32"), ("32", SHAPED, None), ("1", SHAPED, "1"),
     ("32", EXECUTOR, None)],
)  # fmt: skip
def test_other_numbers_are_settings_of_plans(
    text: str | None, runner: str, setting: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MXNET_CPU_TEMP_COPY", raising=False)
    if text is not None:
        monkeypatch.setenv("MXNET_CPU_TEMP_COPY", text)
    assert other_spaces("cpu", runner).get("MXNET_CPU_TEMP_COPY") == setting
