"""What patterns are told of a bind: arguments without gradients, and whether kernels may draw."""

from __future__ import annotations

import pytest

from echo.frontend.setting import COPIES_VARIABLE, setting_of
from echo.frontend.symbols import Binding


def binding(*requests: str) -> Binding:
    return Binding(((2,),) * len(requests), ("float32",) * len(requests), (), (), requests)


def test_arguments_without_gradients() -> None:
    setting = setting_of(("data", "weight", "mask"), binding("null", "write", "null"), "cpu")
    assert setting.untrained == {"data", "mask"}


@pytest.mark.parametrize(("copies", "device", "draws"), [("", "cpu", True), ("1", "cpu", True), ("2", "cpu", False),
                                                          ("", "gpu", False)])  # fmt: skip
def test_kernels_draw_where_one_generator_does(
    copies: str, device: str, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if copies:
        monkeypatch.setenv(COPIES_VARIABLE, copies)
    else:
        monkeypatch.delenv(COPIES_VARIABLE, raising=False)
    assert setting_of(("data",), binding("write"), device).draws is draws
