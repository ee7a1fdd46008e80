"""The steps that the GPU checks compare are the same: echo's against torch's, on the CPU in the emulation."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu_gru import GruStep
from benchmarks.gpu_layers import layer_arrays, layer_step
from benchmarks.gpu_scores import loss_arrays, loss_step, score_arrays, score_step
from benchmarks.gpu_sizes import Loss, Recurrent, Scores
from benchmarks.gpu_torch import forward_of, step_of
from tests.benchmarks.on_the_cpu import OnTheCpu
from tests.kernels.cuda_emulation import Emulated, built

torch = pytest.importorskip("torch")
if torch.version.cuda is not None:
    pytest.skip("the emulated driver is no driver for this torch; needs one for CPUs", allow_module_level=True)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


@pytest.fixture(autouse=True)
def device() -> OnTheCpu:
    Emulated(built().driver, built().kernels)
    torch.manual_seed(0)
    return OnTheCpu()


def torchs_gru(step: GruStep) -> list[Any]:
    """The same results by torch.nn.GRU."""
    hidden = step.x.shape[2]
    layer = torch.nn.GRU(hidden, hidden)
    for name, value in zip(WEIGHTS, (step.wi, step.wh, step.bi, step.bh)):
        getattr(layer, name).data = value
    x, first = step.x.clone().requires_grad_(), step.states[:1].clone().requires_grad_()
    y, last = layer(x, first)
    return [y, *torch.autograd.grad((y, last[0]), [x, first, *layer.parameters()], step.heads)]


@pytest.mark.parametrize("size", [Recurrent(8, 3, 5), Recurrent(7, 2, 1)])
def test_a_gru_layer(device: OnTheCpu, size: Recurrent) -> None:
    step = GruStep(device, size, "float32")
    for _ in range(2):  # a second run finds what the first one left
        ours, theirs = step(), torchs_gru(step)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            torch.testing.assert_close(one.reshape(other.shape), other, **CLOSE)


def test_scores_of_all_queries(device: OnTheCpu) -> None:
    inputs, heads = score_arrays(device, Scores(2, 3, 4, 8), "float32")
    step = score_step(device, inputs, heads)
    forward = forward_of(torch, "all_scores", {"eps": 1e-5})
    expected = [forward(*inputs), *step_of(torch, forward, inputs, [heads])()]
    for _ in range(2):
        for one, other in zip(step(), expected):
            torch.testing.assert_close(one, other.detach(), **CLOSE)


def test_the_loss(device: OnTheCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    prepare = device.prepare

    def watched(kernel: str, given: list[Any], outputs: list[Any], req: list[int], params: list[float]) -> Any:
        written[:] = outputs  # of the last call, the gradient's
        return prepare(kernel, given, outputs, req, params)

    monkeypatch.setattr(device, "prepare", watched)
    inputs = loss_arrays(device, Loss(6, 4, 9), "float32")
    loss_step(device, inputs)()
    x, w, b, label = inputs
    expected = step_of(torch, forward_of(torch, "softmax_loss", {}), [x, w, b, label.long()], [torch.ones(())])()
    assert len(written) == len(inputs)
    for one, other in zip(written, expected):
        torch.testing.assert_close(one, other, **CLOSE)


def test_an_lstm_layer_runs(device: OnTheCpu) -> None:
    arrays = layer_arrays(device, 8, 2, 3, "float32")
    layer_step(device, *arrays)()
    layer = torch.nn.LSTM(8, 8)
    x, wi, bi, wh, bh, h0, c0 = arrays[0]
    for name, value in zip(WEIGHTS, (wi, wh, bi, bh)):
        getattr(layer, name).data = value
    with torch.no_grad():
        y, _ = layer(x, (h0[None], c0[None]))
    torch.testing.assert_close(arrays[1][0], y, **CLOSE)
