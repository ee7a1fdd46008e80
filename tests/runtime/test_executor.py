"""An executor with a plan apart from training: monitors, reshape, passes in other modes."""

from __future__ import annotations

import ctypes
import logging
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest

import echo
from echo.frontend.capture import planned_megabytes
from echo.runtime import bind as module
from echo.runtime.executor import PlannedExecutor
from tests.support.training import arrays, assert_alive, assert_same

pytestmark = pytest.mark.usefixtures("cheap_planning")
SHAPES = {"data": (64, 16), "softmax_label": (64,)}
Road = Callable[..., mx.executor.Executor]


def layers(*ops: str, count: int = 4) -> mx.sym.Symbol:
    hidden = mx.sym.var("data")
    for i in range(count):
        hidden = mx.sym.FullyConnected(hidden, num_hidden=32, name=f"fc{i}")
        if "BatchNorm" in ops:
            hidden = mx.sym.BatchNorm(hidden, name=f"bn{i}", fix_gamma=False)
        hidden = mx.sym.sigmoid(mx.sym.tanh(hidden, name=f"tanh{i}"), name=f"sigmoid{i}")
        if "Dropout" in ops:
            hidden = mx.sym.Dropout(hidden, p=0.3, name=f"drop{i}")
    if "always" in ops:
        hidden = mx.sym.Dropout(hidden, p=0.3, mode="always", name="always")
    return mx.sym.SoftmaxOutput(hidden, mx.sym.var("softmax_label"), name="softmax")


def bind(symbol: mx.sym.Symbol, on: bool, **options: Any) -> mx.executor.Executor:
    if on:
        symbol = echo.optimize(symbol, **{"max_overhead": None, **options})
    bound = symbol.simple_bind(mx.cpu(), grad_req="add", **SHAPES)
    fill(bound)
    assert isinstance(bound, PlannedExecutor) == on
    return bound


def fill(bound: mx.executor.Executor) -> None:
    generator = np.random.RandomState(0)
    for name, array in sorted(bound.arg_dict.items()):
        drawn = generator.randint(0, 5, array.shape) if "label" in name else generator.normal(0, 0.3, array.shape)
        array[:] = drawn
    for array in bound.aux_arrays:
        array[:] = generator.uniform(0.3, 1, array.shape)
    for array in bound.grad_arrays:
        array[:] = 0


def recomputed(bound: PlannedExecutor) -> frozenset[str]:
    return bound._applied.marked


# Monitors ----------------------------------------------------------------------------------------------------------


class Seen:
    """A monitor that keeps every name and value, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.values: list[bytes] = []

    def __call__(self, name: Any, handle: Any) -> None:
        array = mx.nd.NDArray(ctypes.cast(handle, mx.base.NDArrayHandle), writable=False)
        self.names.append(name.decode() if isinstance(name, bytes) else name)
        self.values.append(array.asnumpy().tobytes())


@pytest.mark.parametrize("everything", [False, True])
def test_monitors_see_what_they_saw_without_a_plan(everything: bool) -> None:
    found = []
    for on in (False, True):
        bound, seen = bind(layers("BatchNorm", "Dropout"), on), Seen()
        bound.set_monitor_callback(seen, everything)
        mx.random.seed(0)
        for _ in range(2):
            bound.forward(is_train=True)
            bound.backward()
        found.append(seen)
    assert {"BatchNorm", "Dropout", "tanh"} <= recomputed(bound)
    assert found[1].names == found[0].names
    assert found[1].values == found[0].values


def test_names_that_look_like_clones_are_the_users() -> None:
    hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="a"), name="a_echo")
    for name in ("b", "b_echo_moving", "b_echo"):
        hidden = mx.sym.FullyConnected(mx.sym.sigmoid(mx.sym.tanh(hidden), name=name), num_hidden=8)
    symbol = mx.sym.SoftmaxOutput(hidden, mx.sym.var("softmax_label"), name="softmax")
    found = []
    for on in (False, True):
        bound, seen = bind(symbol, on), Seen()
        bound.set_monitor_callback(seen)
        bound.forward(is_train=True)
        bound.backward()
        found.append(seen.names)
    assert recomputed(bound)
    assert {"a_echo_output", "b_echo_moving_output", "b_echo_output"} <= set(found[0])
    assert set(found[1]) == set(found[0])


# Passes in other modes ---------------------------------------------------------------------------------------------


def passes(bound: mx.executor.Executor, modes: list[tuple[bool, bool]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    mx.random.seed(0)
    for step, (forward, backward) in enumerate(modes):
        bound.forward(is_train=forward)
        bound.backward(is_train=backward)
        seen.update({f"step {step}: {name}": value for name, value in arrays(bound).items()})
        seen[f"step {step}: random stream"] = mx.nd.random.uniform(shape=(64,)).asnumpy()
    return seen


TRAIN, PREDICT = (True, True), (False, False)


@pytest.mark.parametrize("ops", [("BatchNorm",), ("Dropout",), ("BatchNorm", "Dropout"), ("BatchNorm", "always")])
@pytest.mark.parametrize("modes", [[(False, True)], [TRAIN, (False, True), TRAIN, PREDICT], [PREDICT, TRAIN]])
def test_backward_after_an_inference_pass(ops: tuple[str, ...], modes: list[tuple[bool, bool]]) -> None:
    expected = passes(bind(layers(*ops), False), modes)
    bound = bind(layers(*ops), True, recompute=("BatchNorm",) if "always" in ops else ())
    assert recomputed(bound) & {"BatchNorm", "Dropout"}
    found = passes(bound, modes)
    assert_alive(found)
    assert_same(found, expected)


def test_an_inference_backward_pass_after_training() -> None:
    modes = [TRAIN, (True, False), TRAIN]
    bound = bind(layers("BatchNorm"), True)
    assert "BatchNorm" in recomputed(bound)
    assert_same(passes(bound, modes), passes(bind(layers("BatchNorm"), False), modes))
    with pytest.raises(echo.UnsupportedError, match="recomputes BatchNorm: optimize with keep="):
        passes(bind(layers("BatchNorm", "Dropout"), True), modes)
    kept = bind(layers("BatchNorm", "Dropout"), True, keep=("BatchNorm",))
    assert "Dropout" in recomputed(kept)
    assert_same(passes(kept, modes), passes(bind(layers("BatchNorm", "Dropout"), False), modes))


def test_monitors_see_a_repeated_pass_once() -> None:
    found = []
    for on in (False, True):
        bound, seen = bind(layers("BatchNorm"), on), Seen()
        bound.set_monitor_callback(seen, True)
        passes(bound, [TRAIN, (False, True), TRAIN])
        found.append(seen)
    assert found[1].names == found[0].names
    assert found[1].values == found[0].values


def test_inference_with_random_numbers_needs_no_second_executor() -> None:
    bound = bind(layers("BatchNorm", "Dropout", "always"), True)
    assert recomputed(bound)
    assert not recomputed(bound) & {"BatchNorm", "Dropout"}
    passes(bound, [TRAIN, (False, True), PREDICT])
    assert bound._original is None


@pytest.mark.parametrize("ops", [("BatchNorm",), ("BatchNorm", "Dropout")])
def test_an_inference_pass_asks_mxnet_nothing_where_names_say_enough(
    ops: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What draws in training alone, and `_zeros`, need no gradient graph to be told from what draws."""
    bound = bind(mx.sym.broadcast_add(layers(*ops), mx.sym.zeros((1, 32))), True, fuse=False)
    assert "BatchNorm" in recomputed(bound), "the modes matter"
    monkeypatch.delattr(module, "training_graph")
    for _ in range(2):
        bound.forward(is_train=False)
    assert bound.outputs[0].shape == (64, 32)


def test_training_needs_no_second_executor() -> None:
    bound = bind(layers("BatchNorm", "Dropout"), True)
    passes(bound, [TRAIN])
    bound.forward(is_train=False)
    passes(bound, [TRAIN])
    assert bound._original is None
    passes(bound, [PREDICT])
    assert bound._original is not None


# Reshape -----------------------------------------------------------------------------------------------------------


def deep(batch: int) -> dict[str, tuple[int, ...]]:
    return {"data": (batch, 16), "softmax_label": (batch,)}


@pytest.mark.parametrize("batches", [(16,), (64, 16), (128,), (16, 128, 64, 200)])
def test_reshaped_executors_train_the_same(batches: tuple[int, ...]) -> None:
    seen: list[dict[str, Any]] = []
    for on in (False, True):
        bound, record = bind(layers("BatchNorm"), on), {}
        for batch in batches:
            bound = bound.reshape(allow_up_sizing=True, **deep(batch))
            fill(bound)
            record.update({f"{batch}: {name}": value for name, value in passes(bound, [TRAIN, TRAIN]).items()})
        seen.append(record)
    assert recomputed(bound)
    assert_same(seen[1], seen[0])


def test_a_larger_shape_gets_a_plan_of_its_own() -> None:
    optimized = echo.optimize(layers("BatchNorm"), max_overhead=None)
    first = optimized.simple_bind(mx.cpu(), data=(2, 16), softmax_label=(2,))
    assert len(optimized.plans) == 1
    large = first.reshape(allow_up_sizing=True, **deep(4096))
    assert len(optimized.plans) == 2
    assert large._symbol.tojson() == layers("BatchNorm").tojson()
    again = optimized.simple_bind(mx.cpu(), **deep(4096))
    assert planned_megabytes(large) == planned_megabytes(again)
    stock = layers("BatchNorm").simple_bind(mx.cpu(), **deep(4096))
    assert planned_megabytes(large) < planned_megabytes(stock)


def test_a_smaller_shape_keeps_the_plan_and_the_memory() -> None:
    optimized = echo.optimize(layers("BatchNorm"), max_overhead=None)
    first = optimized.simple_bind(mx.cpu(), **deep(256))
    small = first.reshape(**deep(100))
    smaller = small.reshape(**deep(9)).reshape(**deep(7))
    assert len(optimized.plans) == 1
    for bound in (small, smaller):
        assert isinstance(bound, PlannedExecutor)
        assert recomputed(bound) == recomputed(first)
        assert same_memory(bound.arg_dict["fc0_weight"], first.arg_dict["fc0_weight"])
        assert same_memory(bound.arg_dict["data"], first.arg_dict["data"])


def same_memory(one: mx.nd.NDArray, other: mx.nd.NDArray) -> bool:
    other.reshape((-1,))[:1] = 3
    one.reshape((-1,))[:1] = 17
    return bool(other.reshape((-1,))[:1].asscalar() == 17)


def test_replanned_executors_share_arrays_as_mxnets_do() -> None:
    for on in (False, True):
        first = bind(layers("BatchNorm"), on)
        large = first.reshape(allow_up_sizing=True, **deep(4096))
        for name, array in large.arg_dict.items():
            assert same_memory(array, first.arg_dict[name]) == (name not in SHAPES), name
        for name, array in large.grad_dict.items():
            assert same_memory(array, first.grad_dict[name]) == (name not in SHAPES), name
        for name, array in large.aux_dict.items():
            assert same_memory(array, first.aux_dict[name]), name
    assert isinstance(large, PlannedExecutor)
    assert large._grad_req == first._grad_req


def test_a_plan_that_does_not_hold_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    optimized = echo.optimize(layers("BatchNorm"), max_overhead=None)
    first = optimized.simple_bind(mx.cpu(), **deep(256))
    monkeypatch.setattr(type(first._applied.rebinder), "confirms", lambda *_: False)
    first.reshape(**deep(100))
    assert len(optimized.plans) == 2


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"data": (128, 16), "softmax_label": (128,)}, "allow_up_sizing"),
        ({"data": (32, 20), "softmax_label": (32,)}, "partial_shaping"),
        ({"data": (32, 16), "softmax_label": (31,)}, "nconsistent"),
    ],
)
def test_invalid_reshape_raises_mxnets_error(
    given: dict[str, tuple[int, ...]], match: str, caplog: pytest.LogCaptureFixture
) -> None:
    for on in (False, True):
        bound = bind(layers("BatchNorm"), on)
        caplog.clear()
        with pytest.raises(mx.MXNetError, match=match), caplog.at_level(logging.WARNING, "echo"):
            bound.reshape(**given)
        assert not caplog.records


@pytest.mark.parametrize(
    "given", [{"data": (5, 16)}, {}, {"nope": (2, 2)}, {"data": [5, 16]}, {"data": (0, 0)}], ids=str
)
def test_shapes_that_say_too_little_are_mxnets_error(given: dict[str, Any]) -> None:
    symbol = mx.sym.broadcast_add(deep_sum(), mx.sym.var("other"))
    errors = []
    for optimized in (symbol, echo.optimize(symbol, max_overhead=None)):
        bound = optimized.simple_bind(mx.cpu(), data=(64, 16), other=(64, 16))
        with pytest.raises(mx.MXNetError) as caught:
            bound.reshape(**given)
        errors.append(type(caught.value))
    assert errors[0] is errors[1]


def deep_sum() -> mx.sym.Symbol:
    cell, h = mx.rnn.LSTMCell(16, prefix="cell_"), mx.sym.var("data")
    states = [mx.sym.zeros_like(h), mx.sym.zeros_like(h)]
    for _ in range(4):
        h, states = cell(mx.sym.exp(mx.sym.sigmoid(h)), states)
    return h


def test_arguments_that_change_with_the_input() -> None:
    seen = []
    for on in (False, True):
        bound = bind(layers("BatchNorm"), on)
        bound = bound.reshape(partial_shaping=True, allow_up_sizing=True, data=(80, 24), softmax_label=(80,))
        assert bound.arg_dict["fc0_weight"].shape == (32, 24)
        fill(bound)
        seen.append(passes(bound, [TRAIN]))
    assert_same(seen[1], seen[0])


def test_monitors_stay_with_a_reshaped_executor() -> None:
    found = []
    for on in (False, True):
        bound, seen = bind(layers("BatchNorm"), on), Seen()
        bound.set_monitor_callback(seen)
        large = bound.reshape(allow_up_sizing=True, **deep(128))
        fill(large)
        passes(large, [TRAIN])
        found.append(seen)
    assert found[0].names
    assert found[1].names == found[0].names
    assert found[1].values == found[0].values


def test_a_failure_costs_a_warning_and_the_plan(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise echo.GraphError("surprise")

    relaxed, strict = bind(layers("BatchNorm"), True), bind(layers("BatchNorm"), True, strict=True)
    monkeypatch.setattr(type(relaxed._applied.rebinder), "replan", fail)
    with caplog.at_level(logging.WARNING, "echo"):
        large = relaxed.reshape(allow_up_sizing=True, **deep(128))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "surprise" in caplog.text
    assert not recomputed(large)
    fill(large)
    expected = bind(layers("BatchNorm"), False).reshape(allow_up_sizing=True, **deep(128))
    fill(expected)
    assert_same(passes(large, [TRAIN]), passes(expected, [TRAIN]))
    with pytest.raises(echo.GraphError, match="surprise"):
        strict.reshape(allow_up_sizing=True, **deep(128))


def test_executors_of_a_foreign_class_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Theirs(mx.executor.Executor):  # type: ignore[misc]
        pass

    stock = mx.sym.Symbol.simple_bind

    def simple_bind(symbol: mx.sym.Symbol, *args: Any, **kwargs: Any) -> mx.executor.Executor:
        bound = stock(symbol, *args, **kwargs)
        bound.__class__ = Theirs
        return bound

    monkeypatch.setattr(mx.sym.Symbol, "simple_bind", simple_bind)
    optimized = echo.optimize(layers("BatchNorm"), max_overhead=None, strict=True)
    bound = optimized.simple_bind(mx.cpu(), **SHAPES)
    assert type(bound) is Theirs
    assert optimized.plans[0].recomputed_nodes
    fill(bound)
    passes(bound, [TRAIN])
