"""Cross entropies: which are found, why others are not, and what they compute."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.passes.patterns.softmax_loss import CROSS_ENTROPY
from tests.passes.patterns.near_misses import Miss, Symbol, assert_found, assert_missed, assert_nothing, dense, var


def entropy(layer: bool = False, seen: str = "", pick: Any = {}, **more: Any) -> Symbol:  # noqa: B006
    scores = dense(var("x"), 9, "scores") if layer else var("x")
    logarithms = mx.sym.log_softmax(scores, name="logarithms", **more)
    found = mx.sym.pick(logarithms, var("label"), **pick)
    others = {"scores": scores, "logarithms": logarithms, "twice": mx.sym.pick(logarithms, var("other"))}
    others["exponentials"] = mx.sym.exp(logarithms)
    return mx.sym.Group([found, others[seen]]) if seen else found


MISSES: dict[str, Miss] = {
    "over channels": (lambda: entropy(axis=1), "a cross entropy over axis 1: expected the last one, -1"),
    "with a temperature": (lambda: entropy(temperature=2.0), "a cross entropy with a temperature"),
    "of another type": (lambda: entropy(dtype="float64"), "a cross entropy with a temperature, or of another type"),
    "picked along another axis": (lambda: entropy(pick={"axis": 0}), "the logarithms are read by others"),
    "labels that wrap": (lambda: entropy(pick={"mode": "wrap"}), "the logarithms are read by others"),
    "seen": (lambda: entropy(seen="logarithms"), "the logarithms are read by others"),
    "exponentials": (lambda: entropy(seen="exponentials"), "the logarithms are read by others"),
    "two labels": (lambda: entropy(seen="twice"), "logarithms that are read at two labels"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


@pytest.mark.parametrize("layer", [True, False])
def test_cross_entropy_with_or_without_layer_is_found(layer: bool) -> None:
    assert_found(lambda: entropy(layer), CROSS_ENTROPY.name)


def test_a_log_softmax_that_no_loss_picks_from_is_nothing() -> None:
    assert_nothing(lambda: mx.sym.sum(mx.sym.log_softmax(var("x")), axis=-1))


def test_scores_that_are_read_stay() -> None:
    """Then the layer is the user's own, and the entropy reads its scores."""
    assert_found(lambda: entropy(layer=True, seen="scores"), CROSS_ENTROPY.name)


def trained(optimize: bool, label: Any, scale: float = 1.0, **kind: Any) -> list[Any]:
    """Loss, gradient of the data and of the weight of a step."""
    data = mx.sym.var("data")
    scores = mx.sym.FullyConnected(data, num_hidden=4000, flatten=False, name="scores") if kind.get("layer") else data
    loss = -mx.sym.pick(mx.sym.log_softmax(scores, axis=-1), mx.sym.var("label"), keepdims=True)
    symbol = mx.sym.MakeLoss(mx.sym.mean(loss, axis=0, exclude=True))
    symbol = echo.optimize(symbol) if optimize else symbol
    executor = symbol.simple_bind(
        mx.cpu(), data=(60, 3, 100 if kind.get("layer") else 4000), label=label.shape, grad_req=kind.get("req", "write")
    )
    for name, array in executor.arg_dict.items():
        array[:] = label if name == "label" else scale * np.random.default_rng(len(name)).normal(size=array.shape)
    if optimize:
        assert [name for name, _ in symbol.plans[-1].fused] == [CROSS_ENTROPY.name]
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward()
    return [array.asnumpy() for array in (*executor.outputs, *executor.grad_arrays)]


LABEL = np.random.default_rng(0).integers(0, 4000, (60, 3)).astype(np.float32)


@pytest.mark.every(5)
@pytest.mark.usefixtures("free_workspaces")
@pytest.mark.parametrize("layer", [True, False])
@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize(
    ("label", "scale"),
    [
        (LABEL, 1.0),
        (LABEL[..., None], 1.0),
        (np.where(LABEL < 2000, -7, LABEL + 3000), 1.0),  # outside of the classes
        (LABEL + 0.9, 1.0),
        (LABEL, 300.0),
        (np.zeros((60, 3)), 0.0),
    ],
)
def test_the_same_loss_and_gradients(layer: bool, req: str, label: Any, scale: float) -> None:
    scale = min(scale, 20.0) if layer else scale
    expected, got = (trained(way, label, scale, layer=layer, req=req) for way in (False, True))
    for one, other in zip(expected, got):
        np.testing.assert_allclose(other, one, rtol=0, atol=2e-5 * max(np.abs(one).max(), 1e-6))


@pytest.mark.parametrize("bad", [1e30, np.inf, -np.inf, np.nan])
def test_scores_that_are_hardly_numbers(bad: float) -> None:
    """Rows with what is no number are of no use, in MXNet neither (oneDNN's softmax makes numbers of NaN, ours NaN)."""
    data = np.random.default_rng(1).normal(size=(300, 400)).astype(np.float32)
    data[0, 5], data[1] = bad, bad
    found = []
    for optimize in (False, True):
        loss = mx.sym.pick(mx.sym.log_softmax(mx.sym.var("data")), mx.sym.var("label"))
        symbol = echo.optimize(loss) if optimize else loss
        executor = symbol.simple_bind(mx.cpu(), data=data.shape, label=(300,))
        executor.arg_dict["data"][:], executor.arg_dict["label"][:] = data, 7
        executor.forward(is_train=True)
        executor.backward(mx.nd.ones((300,)))
        found.append([array.asnumpy() for array in (executor.outputs[0], executor.grad_dict["data"])])
    first = 0 if np.isfinite(bad) else 2
    for one, other in zip(*found):
        np.testing.assert_allclose(other[first:], one[first:], rtol=1e-5, atol=1e-6)
    assert all(np.isnan(array[1]).all() for array in found[1]) or np.isfinite(bad)
