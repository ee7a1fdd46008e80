"""Plans of blocks: one for each shape, made beforehand or at the first call, with bytes that come true."""

from __future__ import annotations

import logging
from typing import Any

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import echo
from echo import native
from echo.errors import OptionError
from echo.runtime.gluon import framework_of_block
from tests.support.gluon_blocks import BATCH, BLOCKS, FEATURES, FUSED, Steps, inputs, made, net, step
from tests.support.training import assert_same

pytestmark = pytest.mark.usefixtures("cheap_planning")


# Plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}])
def test_each_shape_is_planned_once(flags: dict[str, bool], caplog: pytest.LogCaptureFixture) -> None:
    block = made(net, True, **flags)
    with caplog.at_level(logging.DEBUG, "echo"):
        for size in (8, 3, 8, 20, 3, 8):
            step(block, inputs(size))
    assert sorted(signature[0][0][0] for signature in block._cached_op.plans) == [3, 8, 20]
    assert len([record for record in caplog.records if "planned" in record.message]) == 3


@pytest.mark.every(5)
@pytest.mark.parametrize(("name", "fuse"), FUSED)
@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("mirror", ["0", "1"])  # which executors obey, and no CachedOp
def test_planned_bytes_come_true(name: str, fuse: bool, on: bool, mirror: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With static_alloc and gradients of every input, MXNet allocates to the byte what the plan says."""
    monkeypatch.setenv("MXNET_BACKWARD_DO_MIRROR", mirror)
    planned_block = made(BLOCKS[name], True, fuse, static_alloc=True)
    data = inputs(64)
    step(planned_block, data)
    (plan,) = planned_block._cached_op.plans.values()
    assert plan.fused if fuse else plan.recomputed_nodes
    assert plan.after.planned < plan.before.planned
    block = made(BLOCKS[name], False, static_alloc=True)
    if on:
        block = planned_block
        block._cached_op._current = type(block._cached_op._current)(planned_symbol(block), block._cached_op._flags)
    with autograd.record(), native.capture() as forward:
        loss = block(data)
    with native.capture() as backward:
        loss.backward()
    mx.nd.waitall()
    found = forward.graph["touched_bytes"] + backward.graph["touched_bytes"]
    assert found == (plan.after if on else plan.before).planned


@pytest.mark.parametrize(("name", "fuse"), FUSED)
def test_plan_made_beforehand_is_the_one_that_trains(name: str, fuse: bool) -> None:
    """Hooks of the block see arrays alone."""
    block, seen = made(BLOCKS[name], True, fuse, static_alloc=True), []
    block.register_forward_hook(lambda _, inputs, output: seen.append(output.shape))
    step(block, inputs())
    (plan,) = block._cached_op.plans.values()
    ahead = made(BLOCKS[name], False, static_alloc=True)
    ahead.register_forward_hook(lambda _, inputs, output: seen.append(output.shape))
    before = echo.plan(ahead, max_overhead=None, fuse=fuse, data=(BATCH, FEATURES))
    assert (before.before.planned, before.after.planned) == (plan.before.planned, plan.after.planned)
    assert before.fingerprint == plan.fingerprint
    assert len(seen) == 1


def test_plan_of_a_block_that_is_not_hybridized_says_so() -> None:
    block = net()
    block.initialize()
    block(inputs())
    assert "note: planned for hybridize() without arguments" in str(echo.plan(block, data=(BATCH, FEATURES)))
    block.hybridize(static_alloc=True)
    data = mx.sym.var("data", dtype="float32")
    imported = gluon.SymbolBlock(block(data), data, params=block.collect_params())
    for graph in (block, imported):
        assert "hybridize" not in str(echo.plan(graph, data=(BATCH, FEATURES)))


@pytest.mark.parametrize("many", [False, True])
def test_a_block_of_the_numpy_interface_is_planned_beforehand(many: bool) -> None:
    class Numbers(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.dense = nn.Dense(64, in_units=32)

        def hybrid_forward(self, F: Any, data: Any) -> Any:
            hidden = F.np.tanh(self.dense(data)) * F.npx.sigmoid(data[:, :1])
            return (hidden, F.np.exp(hidden)) if many else hidden

    with mx.util.np_shape(True), mx.util.np_array(True):
        block, ahead = Numbers(), Numbers()
        for each in (block, ahead):
            each.initialize()
            each.hybridize(static_alloc=True)
        data = mx.np.ones((256, 32))
        with autograd.record():
            outputs = echo.optimize(block, max_overhead=None)(data)
        mx.autograd.backward(outputs)
        plan = echo.plan(ahead, max_overhead=None, data=data.shape)
    (trained,) = block._cached_op.plans.values()
    assert plan.fingerprint == trained.fingerprint
    assert plan.after.planned == trained.after.planned


class Loop(gluon.HybridBlock):
    """MXNet knows the shape of a while_loop's outputs when it has run."""

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        def again(count: Any, x: Any) -> Any:
            return F.sin(x), [count + 1, F.cos(x)]

        states = [F.zeros((1,)), F.sin(data)]
        _, (_, x) = F.contrib.while_loop(lambda count, x: count < 3, again, states, max_iterations=5)
        return F.sin(F.LayerNorm(F.broadcast_add(data, x), F.ones((12,)), F.zeros((12,))))


def test_a_shape_that_is_not_known_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    seen = []
    for on in (False, True):
        found: dict[str, Any] = {}
        step(made(Loop, on, fuse=True), inputs(), found)
        seen.append(found)
    assert_same(*seen)
    (said,) = (record.message for record in caplog.records if "without a plan" in record.message)
    assert "does not know the shape of" in said
    assert "(_while_loop) before it runs" in said


def test_sums_of_gradients_have_their_bits() -> None:
    seen: list[dict[str, Any]] = []
    for on in (False, True):
        block, found = made(Steps, on, static_alloc=True), {}
        for size in (64, 64):
            step(block, inputs(size), found)
            found.update({name: value.grad().asnumpy() for name, value in block.collect_params().items()})
        seen.append(found)
    assert_same(*seen)
    (plan,) = block._cached_op.plans.values()
    assert plan.recomputed_nodes


def planned_symbol(block: gluon.HybridBlock) -> mx.sym.Symbol:
    from echo.frontend.symbols import symbol_of

    return symbol_of(block._cached_op._choice.graph)


# Which blocks ------------------------------------------------------------------------------------------------------


class Difference(gluon.HybridBlock):
    def hybrid_forward(self, F: Any, first: Any, second: Any) -> Any:
        return F.dot(first, second)


@pytest.mark.filterwarnings("ignore:Cannot decide type")  # of SymbolBlock
def test_shapes_find_their_inputs_by_name() -> None:
    block, shapes = Difference(), {"second": (4, 8), "first": (2, 4)}
    session = framework_of_block(block, shapes, mx.cpu())()
    assert session.argument_names() == ["first", "second"]
    session = framework_of_block(block, {"a": (2, 4), "b": (4, 8)}, mx.cpu())()
    assert session.argument_names() == ["a", "b"]
    outputs = mx.sym.dot(mx.sym.var("x"), mx.sym.var("y"))
    imported = gluon.SymbolBlock(outputs, [mx.sym.var("x"), mx.sym.var("y")])
    session = framework_of_block(imported, {"y": (4, 8), "x": (2, 4)}, mx.cpu())()
    assert session.argument_names() == ["x", "y"]


class Optional(gluon.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any, scale: Any = None, shift: Any = None) -> Any:
        return x if scale is None else x * scale


@pytest.mark.parametrize(
    ("block", "names", "message"),
    [
        (Difference(), "first sceond", "unknown input 'sceond' of Difference, expected first, second, got first,"),
        (Difference(), "wrong", "unknown input 'wrong' of Difference, expected first, second, got wrong"),
        (Difference(), "a b c", "unknown input 'a' of Difference, expected first, second, got a, b, c"),
        (Difference(), "first second third", "unknown input 'third' of Difference, expected first, second, got first,"),
        (Difference(), "second", "no shape for the input 'first' of Difference, expected first, second, got second"),
        (Optional(), "x shift", "no shape for the input 'scale' of Optional, expected x, scale, shift, got x, shift"),
        (nn.HybridSequential(), "x wrong", "unknown input 'wrong' of HybridSequential, expected x, got x, wrong"),
    ],
)  # fmt: skip
def test_shapes_of_other_inputs_are_refused_with_their_names(block: Any, names: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        echo.plan(block, **{name: (4, 4) for name in names.split()})


def test_shapes_of_inputs_with_defaults_may_be_left_out() -> None:
    for names in (["x"], ["x", "scale"], ["a"], ["a", "b"]):
        session = framework_of_block(Optional(), {name: (4, 4) for name in names}, mx.cpu())()
        assert session.argument_names() == names
