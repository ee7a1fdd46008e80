"""Some random modules of `fuzz.torch_modules`, and that it sees what is wrong."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.torch import capture, safety  # noqa: E402
from fuzz.torch_modules import LAYERS, Case, case_of, fault_of  # noqa: E402


@pytest.mark.parametrize("seed", range(6))
def test_random_module_keeps_every_bit(seed: int) -> None:
    assert fault_of(case_of(seed))[0] == "", case_of(seed)


@pytest.mark.parametrize("name", LAYERS)
def test_layer_between_others_keeps_every_bit(name: str) -> None:
    fault, _, differs = fault_of(Case(3, ("linear", "gelu", name, "tanh", "linear", name, "gelu"), (), 64, 0.6))
    assert fault == ""
    assert not differs or name in ("checkpoint", "written", "in place"), "torch differs from eager mode by itself"


def test_noise_that_is_drawn_again_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(3, ("linear", "noise", "gelu", "noise", "gelu", "linear"), (), 2048, 0.5)
    assert fault_of(case)[0] == ""
    monkeypatch.setattr(safety, "why_not_again", lambda node, allowed=(): "")
    assert "differ" in fault_of(case)[0], "results or random numbers"


def test_wrong_sizes_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = capture._sizes
    monkeypatch.setattr(capture, "_sizes", lambda node: [2 * size for size in sizes(node)])
    assert "predicted" in fault_of(Case(3, ("linear", "gelu", "linear"), (), 64, 1.0))[0]
