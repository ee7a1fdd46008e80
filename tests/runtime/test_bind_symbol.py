"""Recomputation is invisible: whatever is done with an optimized symbol gives the bits of the user's own.

Fused operators, which change last bits, are off here: `tests/runtime/test_fused.py` is about them.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
from benchmarks.models import SMALL, Model, random_values
from echo.frontend import symbols
from echo.ir.graph import Graph
from echo.runtime import bind as optimized_symbol
from echo.runtime.bind import OptimizedSymbol
from tests.training import Record, arrays, assert_alive, assert_same, bind, random_arrays, recomputing, train

Symbol = mx.sym.Symbol
pytestmark = pytest.mark.usefixtures("cheap_planning")
LOW_BOUND: dict[str, Any] = {"max_overhead": None, "fuse": False}


# The models of the benchmarks --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def small(name: str) -> tuple[Model, dict[str, Any]]:
    model = SMALL[name]()
    return model, random_values(model)


def requested(model: Model, kind: str) -> dict[str, str]:
    """For what is trained ``write`` or ``add``; ``null`` leaves every third layer out; ``mixed`` has all three.

    Stock MXNet reads memory that it never wrote where the bias of a shared FullyConnected is trained and its weight is
    not, so whole layers get the same word.
    """
    wanted = model.grad_req()
    trained = [name for name, word in wanted.items() if word == "write"]
    layers = list(dict.fromkeys(name.rsplit("_", 1)[0] for name in trained))
    words = {
        "write": ("write",),
        "add": ("add",),
        "null": ("null", "write", "write"),
        "mixed": ("write", "add", "null"),
    }
    chosen = {layer: words[kind][index % len(words[kind])] for index, layer in enumerate(layers)}
    wanted.update({name: chosen[name.rsplit("_", 1)[0]] for name in trained})
    return wanted


@functools.lru_cache(maxsize=None)
def stock(name: str, kind: str) -> Record:
    model, values = small(name)
    seen = train(bind(model.symbol, values, requested(model, kind)))
    assert_alive(seen)
    return seen


@pytest.mark.every(9)
@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("kind", ["write", "add", "null"])
@pytest.mark.parametrize("name", SMALL)
def test_models_without_a_bound_on_time(name: str, kind: str) -> None:
    model, values = small(name)
    symbol = echo.optimize(model.symbol, **LOW_BOUND)
    executor = bind(symbol, values, requested(model, kind))
    assert "_echo\n" in executor.debug_str()
    assert len(symbol.plans[-1].recomputed) > 20
    assert_same(train(executor), stock(name, kind))


@pytest.mark.every(6)
@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("name", SMALL)
def test_models_at_the_default(name: str) -> None:
    model, values = small(name)
    symbol = echo.optimize(model.symbol, fuse=False)
    got = train(bind(symbol, values, requested(model, "mixed")))
    assert symbol.plans[-1].after.planned <= symbol.plans[-1].before.planned
    assert_same(got, stock(name, "mixed"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nmt", "resnet50_v1"])
def test_models_with_full_search_and_measured_costs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # of cheap planning
    model, values = small(name)
    symbol = echo.optimize(model.symbol, max_overhead=0.25, fuse=False)
    got = train(bind(symbol, values, requested(model, "write")))
    (plan,) = symbol.plans
    assert 0 < plan.overhead <= 0.25
    assert plan.after.planned < plan.before.planned
    assert_same(got, stock(name, "write"))


@pytest.mark.every(3)
@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("name", SMALL)
def test_models_with_all_maps_recomputed(name: str) -> None:
    model, values = small(name)
    operators = {node["op"] for node in json.loads(model.symbol.tojson())["nodes"]}
    forced = [
        "Activation",
        "elemwise_mul",
        "BatchNorm",
        "Pooling",
        "Concat",
        "SliceChannel",
        "broadcast_mul",
    ]
    if "Convolution" not in operators:  # where the layouts of oneDNN's are, Dropout is not recomputed
        forced.append("Dropout")
    symbol = echo.optimize(model.symbol, recompute=[op for op in forced if op in operators], fuse=False)
    got = train(bind(symbol, values, requested(model, "write")))
    assert {decision.op for decision in symbol.plans[-1].recomputed} >= {"Activation"}
    assert_same(got, stock(name, "write"))


# How a symbol may be bound -----------------------------------------------------------------------------------------


def network(batch_norm: bool = True, dropout: bool = True) -> Symbol:
    """A convolutional network with everything that has its own ways: aux states, random masks, several readers."""
    with mx.name.NameManager():
        return _network(batch_norm, dropout)


def _network(batch_norm: bool, dropout: bool) -> Symbol:
    hidden = mx.sym.var("data")
    for layer in range(3):
        hidden = mx.sym.Convolution(hidden, kernel=(3, 3), pad=(1, 1), num_filter=16, name=f"conv{layer}")
        if batch_norm:
            hidden = mx.sym.BatchNorm(hidden, fix_gamma=False, name=f"norm{layer}")
        active = mx.sym.Activation(hidden, act_type="relu", name=f"relu{layer}")
        hidden = mx.sym.tanh(active, name=f"tanh{layer}") * mx.sym.sigmoid(active, name=f"sigmoid{layer}")
    hidden = mx.sym.Flatten(mx.sym.Pooling(hidden, kernel=(2, 2), stride=(2, 2), pool_type="avg", name="pool"))
    if dropout:
        hidden = mx.sym.Dropout(hidden, p=0.4, name="drop")
    scores = mx.sym.FullyConnected(mx.sym.LayerNorm(hidden, name="layer"), num_hidden=10, name="scores")
    return mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="softmax")


BATCH = 8
SHAPES = {"data": (BATCH, 4, 10, 10), "label": (BATCH,)}
LIMITS = {"label": 10}
GRADIENTS = {name: "null" if name in SHAPES else "write" for name in network().list_arguments()}


@pytest.fixture
def values() -> dict[str, Any]:
    return random_arrays(network(), SHAPES, limits=LIMITS)


@pytest.fixture
def expected(values: dict[str, Any]) -> Record:
    return train(bind(network(), values, GRADIENTS))


@pytest.fixture
def optimized() -> OptimizedSymbol:
    return echo.optimize(network(), **LOW_BOUND)


def was_planned(symbol: OptimizedSymbol, binds: int = 1) -> bool:
    return len(symbol.plans) == binds and len(symbol.plans[-1].recomputed) > 3


def test_bind_with_dictionaries(optimized: OptimizedSymbol, values: dict[str, Any], expected: Record) -> None:
    assert_same(train(bind(optimized, values, GRADIENTS)), expected)
    assert was_planned(optimized)


def listed(symbol: Symbol, values: dict[str, Any]) -> mx.executor.Executor:
    args = [mx.nd.array(values[name]) for name in symbol.list_arguments()]
    gradients = [None if name in SHAPES else mx.nd.ones(values[name].shape) for name in symbol.list_arguments()]
    _, _, aux_shapes = symbol.infer_shape(**SHAPES)
    aux = [mx.nd.ones(shape) for shape in aux_shapes]
    return symbol.bind(mx.cpu(), args, gradients, list(GRADIENTS.values()), aux)


def test_bind_with_lists(optimized: OptimizedSymbol, values: dict[str, Any], expected: Record) -> None:
    assert_same(train(listed(optimized, values)), expected)
    assert was_planned(optimized)


def test_missing_gradient_arrays_are_not_trained(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    # grad_req says "write" for all, but only some gradients have arrays
    def bound(symbol: Symbol) -> mx.executor.Executor:
        args = {name: mx.nd.array(value) for name, value in values.items()}
        gradients = {name: mx.nd.ones(values[name].shape) for name in ("conv0_weight", "scores_bias")}
        _, _, aux_shapes = symbol.infer_shape(**SHAPES)
        return symbol.bind(mx.cpu(), args, gradients, "write", [mx.nd.ones(shape) for shape in aux_shapes])

    assert_same(train(bound(optimized)), train(bound(network())))
    assert was_planned(optimized)


def simply_bound(symbol: Symbol, values: dict[str, Any], **more: Any) -> mx.executor.Executor:
    shapes = {name: values[name].shape for name in SHAPES}
    executor = symbol.simple_bind(mx.cpu(), grad_req=GRADIENTS, **shapes, **more)
    for name, value in values.items():
        executor.arg_dict[name][:] = value
    for array in executor.aux_arrays:
        array[:] = 1
    return executor


def test_simple_bind(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    assert_same(train(simply_bound(optimized, values)), train(simply_bound(network(), values)))
    assert was_planned(optimized)


def test_simple_bind_with_types(values: dict[str, Any]) -> None:
    types = dict.fromkeys(network().list_arguments(), "float64")
    optimized = echo.optimize(network(), **LOW_BOUND)
    got, expected = (train(simply_bound(symbol, values, type_dict=types)) for symbol in (optimized, network()))
    assert expected["step 0: gradient conv0_weight"].dtype == np.float64
    assert was_planned(optimized)
    assert_same(got, expected)


def test_keyword_arguments_of_mxnet_are_accepted(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    executor = optimized.simple_bind(ctx=mx.cpu(), grad_req="write", **SHAPES)
    assert was_planned(optimized)
    again = optimized.bind(
        ctx=mx.cpu(), args=executor.arg_arrays, args_grad=executor.grad_arrays, aux_states=executor.aux_arrays
    )
    assert was_planned(optimized, 2)
    assert again.forward(is_train=True)[0].shape == (BATCH, 10)


def test_executor_is_the_users(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    executor, plain = bind(optimized, values, GRADIENTS), bind(network(), values, GRADIENTS)
    assert executor._symbol.tojson() == plain._symbol.tojson()
    assert type(executor._symbol) is Symbol
    for name in ("arg_dict", "grad_dict", "aux_dict", "output_dict"):
        assert list(getattr(executor, name)) == list(getattr(plain, name))
    assert isinstance(executor, mx.executor.Executor)


def test_several_forwards_before_a_backward(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    def run(symbol: Symbol) -> Record:
        executor = bind(symbol, values, GRADIENTS)
        mx.random.seed(0)
        for scale in (0.5, 2.0, -1.0):
            executor.forward(is_train=True, data=mx.nd.array(values["data"] * scale))
        executor.backward()
        return arrays(executor)

    assert_same(run(optimized), run(network()))


def test_inference_in_between(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    def run(symbol: Symbol) -> list[Record]:
        executor = bind(symbol, values, GRADIENTS)
        seen = []
        for step in range(3):
            seen.append(train(executor, steps=1))
            executor.forward(is_train=False, data=mx.nd.array(values["data"] * (step + 1)))
            seen.append(arrays(executor))
        return seen

    for got, expected in zip(run(optimized), run(network())):
        assert_same(got, expected)
    assert was_planned(optimized)


@pytest.mark.parametrize("batch", [BATCH // 2, BATCH, BATCH * 2])
def test_reshape(optimized: OptimizedSymbol, values: dict[str, Any], batch: int) -> None:
    def run(symbol: Symbol) -> list[Record]:
        first = bind(symbol, values, GRADIENTS)
        before = train(first, steps=1)
        second = first.reshape(allow_up_sizing=True, data=(batch, 4, 10, 10), label=(batch,))
        generator = np.random.RandomState(1)
        second.arg_dict["data"][:] = generator.normal(0, 1, (batch, 4, 10, 10))
        second.arg_dict["label"][:] = generator.randint(0, 10, batch)
        after = train(second, steps=2)
        if batch <= BATCH:  # a larger executor takes new memory, and leaves the old one's gradients behind
            return [before, after, train(first, steps=1)]
        return [before, after]

    for got, expected in zip(run(optimized), run(network())):
        assert_same(got, expected)


def test_shared_executors(optimized: OptimizedSymbol) -> None:
    """Two executors of different sizes on one memory pool, as buckets have them, used in turn."""

    def run(symbol: Symbol) -> list[Record]:
        large = symbol.simple_bind(mx.cpu(), grad_req=GRADIENTS, **SHAPES)
        halves = {name: (BATCH // 2, *shape[1:]) for name, shape in SHAPES.items()}
        small = symbol.simple_bind(
            mx.cpu(), grad_req=GRADIENTS, shared_exec=large, shared_buffer={},
            shared_arg_names=[name for name in GRADIENTS if name not in SHAPES], **halves,
        )  # fmt: skip
        for executor in (large, small):
            shapes = {name: array.shape for name, array in executor.arg_dict.items()}
            for name, value in random_arrays(symbol, {key: shapes[key] for key in SHAPES}, limits=LIMITS).items():
                executor.arg_dict[name][:] = value
        for array in large.aux_arrays:
            array[:] = 1
        return [train(executor, steps=1) for executor in (large, small, large, small, small, large)]

    for got, expected in zip(run(optimized), run(network())):
        assert_same(got, expected)
    assert was_planned(optimized, 2)


def test_monitor(optimized: OptimizedSymbol, values: dict[str, Any], expected: Record) -> None:
    seen: dict[str, list[str]] = {}

    def run(symbol: Symbol, key: str) -> Record:
        executor = bind(symbol, values, GRADIENTS)
        executor.set_monitor_callback(lambda name, _: seen.setdefault(key, []).append(name.decode()), monitor_all=True)
        return train(executor)

    got, plain = run(optimized, "echo"), run(network(), "plain")
    assert_same(got, plain)
    assert_same(got, expected)
    shown = {name for name in seen["echo"] if "_echo" not in name}
    assert shown == set(seen["plain"])


def test_monitor_of_mxnet(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    def run(symbol: Symbol) -> list[tuple[int, str, str]]:
        # what stands in for gradients that nobody asked for is undefined
        monitor = mx.mon.Monitor(1, pattern="(?!.*backward).*(output|weight)", sort=True)
        executor = bind(symbol, values, GRADIENTS)
        monitor.install(executor)
        monitor.tic()
        mx.random.seed(0)
        executor.forward(is_train=True)
        executor.backward()
        return [row for row in monitor.toc() if "_echo" not in row[1]]

    assert run(optimized) == run(network())


# Module ------------------------------------------------------------------------------------------------------------


def batches(count: int, batch: int = BATCH) -> Iterator[mx.io.DataBatch]:
    generator = np.random.RandomState(0)
    for _ in range(count):
        data = mx.nd.array(generator.normal(0, 1, (batch, *SHAPES["data"][1:])))
        yield mx.io.DataBatch([data], [mx.nd.array(generator.randint(0, 10, batch))])


def module(symbol: Symbol, **more: Any) -> mx.mod.Module:
    found = mx.mod.Module(symbol, label_names=["label"], context=more.pop("context", mx.cpu()), **more)
    found.bind([("data", SHAPES["data"])], [("label", SHAPES["label"])])
    mx.random.seed(1)
    np.random.seed(1)
    found.init_params(mx.init.Xavier())
    found.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 0.05, "momentum": 0.9})
    return found


def fitted(symbol: Symbol, **more: Any) -> Record:
    """Two epochs of training with a validation after each; scores, probabilities and parameters."""
    trained = module(symbol, **more)
    seen = {}
    for epoch in range(2):
        metric = mx.metric.CrossEntropy()
        mx.random.seed(epoch)
        for batch in batches(4):
            trained.forward_backward(batch)
            trained.update()
            trained.update_metric(metric, batch.label)
        seen[f"{epoch} loss"] = np.array(metric.get()[1])
        for number, batch in enumerate(batches(2)):
            trained.forward(batch, is_train=False)
            seen[f"{epoch} prediction {number}"] = trained.get_outputs()[0].asnumpy()
        mx.nd.waitall()
        args, aux = trained.get_params()
        seen.update({f"{epoch} {name}": array.asnumpy() for name, array in {**args, **aux}.items()})
    return seen


def test_module(optimized: OptimizedSymbol) -> None:
    got, expected = fitted(optimized), fitted(network())
    assert expected["0 loss"] != expected["1 loss"]
    assert_same(got, expected)
    assert was_planned(optimized)


def test_module_on_two_devices(optimized: OptimizedSymbol) -> None:
    contexts = [mx.cpu(0), mx.cpu(1)]
    assert_same(fitted(optimized, context=contexts), fitted(network(), context=contexts))
    assert len(optimized.plans) == 2


def test_module_fit() -> None:
    # without BatchNorm, whose moving statistics fit() reads before MXNet's engine is done with them
    optimized = echo.optimize(network(batch_norm=False), **LOW_BOUND)

    def fit(symbol: Symbol) -> Record:
        generator = np.random.RandomState(0)
        data = mx.io.NDArrayIter(
            generator.normal(0, 1, (32, *SHAPES["data"][1:])).astype("f"), generator.randint(0, 10, 32), BATCH,
            label_name="label",
        )  # fmt: skip
        trained = mx.mod.Module(symbol, label_names=["label"])
        trained.logger = logging.getLogger("tests")
        mx.random.seed(1)
        np.random.seed(1)
        trained.fit(
            data, eval_data=data, num_epoch=2, initializer=mx.init.Xavier(), optimizer="adam",
            monitor=mx.mon.Monitor(2, pattern=".*output"),
        )  # fmt: skip
        args, aux = trained.get_params()
        return {name: array.asnumpy() for name, array in {**args, **aux}.items()}

    assert_same(fit(optimized), fit(network(batch_norm=False)))
    assert was_planned(optimized)


def test_module_for_inference_is_left_alone(optimized: OptimizedSymbol) -> None:
    found = mx.mod.Module(optimized, label_names=["label"])
    found.bind([("data", SHAPES["data"])], [("label", SHAPES["label"])], for_training=False)
    assert optimized.plans == []


def test_module_with_gradients_of_inputs(optimized: OptimizedSymbol) -> None:
    def run(symbol: Symbol) -> Record:
        found = mx.mod.Module(symbol, label_names=["label"])
        found.bind([("data", SHAPES["data"])], [("label", SHAPES["label"])], inputs_need_grad=True, grad_req="add")
        mx.random.seed(1)
        np.random.seed(1)
        found.init_params(mx.init.Xavier())
        for batch in batches(2):
            found.forward_backward(batch)
        mx.nd.waitall()
        return {"data": found.get_input_grads()[0].asnumpy()}

    assert_same(run(optimized), run(network()))


def test_module_takes_another_batch_size(optimized: OptimizedSymbol) -> None:
    def run(symbol: Symbol) -> Record:
        found = module(symbol)
        for size in (BATCH, BATCH // 2, BATCH):
            for batch in batches(2, size):
                found.forward_backward(batch)
                found.update()
        mx.nd.waitall()
        args, aux = found.get_params()
        return {name: array.asnumpy() for name, array in {**args, **aux}.items()}

    assert_same(run(optimized), run(network()))


def test_bucketing_module() -> None:
    def run(wrap: Any) -> Record:
        def generate(steps: int) -> tuple[Symbol, tuple[str, ...], tuple[str, ...]]:
            words = mx.sym.Embedding(mx.sym.var("data"), input_dim=20, output_dim=16, name="embedding")
            outputs, _ = mx.rnn.LSTMCell(16, prefix="lstm_").unroll(steps, inputs=words, merge_outputs=True)
            scores = mx.sym.FullyConnected(mx.sym.reshape(outputs, shape=(-1, 16)), num_hidden=20, name="scores")
            label = mx.sym.reshape(mx.sym.var("label"), shape=(-1,))
            return wrap(mx.sym.SoftmaxOutput(scores, label, name="softmax")), ("data",), ("label",)

        def descriptions(steps: int) -> tuple[list[mx.io.DataDesc], list[mx.io.DataDesc]]:
            return [mx.io.DataDesc("data", (4, steps))], [mx.io.DataDesc("label", (4, steps))]

        found = mx.mod.BucketingModule(generate, default_bucket_key=12)
        found.bind(*descriptions(12))
        mx.random.seed(1)
        np.random.seed(1)
        found.init_params(mx.init.Xavier())
        found.init_optimizer(optimizer_params={"learning_rate": 0.1})
        generator = np.random.RandomState(0)
        for steps in (12, 5, 8, 5, 12):
            data, label = (mx.nd.array(generator.randint(0, 20, (4, steps))) for _ in range(2))
            provided = descriptions(steps)
            batch = mx.io.DataBatch(
                [data], [label], bucket_key=steps, provide_data=provided[0], provide_label=provided[1]
            )
            found.forward_backward(batch)
            found.update()
        args, aux = found.get_params()
        return {name: array.asnumpy() for name, array in {**args, **aux}.items()}

    wrapped: list[OptimizedSymbol] = []

    def wrap(symbol: Symbol) -> OptimizedSymbol:
        wrapped.append(echo.optimize(symbol, **LOW_BOUND))
        return wrapped[-1]

    assert_same(run(wrap), run(lambda symbol: symbol))
    assert sum(len(symbol.plans) for symbol in wrapped) == 3


# The symbol itself -------------------------------------------------------------------------------------------------


def test_symbol_reads_as_the_users(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    bind(optimized, values, GRADIENTS)
    plain = network()
    assert isinstance(optimized, Symbol)
    assert optimized.tojson() == plain.tojson()
    assert optimized.name == plain.name
    assert optimized.list_arguments() == plain.list_arguments()
    assert optimized.list_auxiliary_states() == plain.list_auxiliary_states()
    assert optimized.list_outputs() == plain.list_outputs()
    assert optimized.list_attr() == plain.list_attr()
    assert optimized.attr_dict() == plain.attr_dict()
    assert optimized.infer_shape(**SHAPES) == plain.infer_shape(**SHAPES)
    assert optimized.infer_type(data="float32") == plain.infer_type(data="float32")
    assert optimized.debug_str() == plain.debug_str()
    assert len(optimized) == len(plain)


def test_optimize_leaves_the_users_symbol_alone(values: dict[str, Any], expected: Record) -> None:
    plain = network()
    before = plain.tojson()
    optimized = echo.optimize(plain, **LOW_BOUND)
    bind(optimized, values, GRADIENTS)
    assert plain.tojson() == before
    assert type(plain) is Symbol
    executor = bind(plain, values, GRADIENTS)
    assert "_echo\n" not in executor.debug_str()
    assert_same(train(executor), expected)


def test_saved_files_are_the_users(optimized: OptimizedSymbol, values: dict[str, Any], tmp_path: Path) -> None:
    bind(optimized, values, GRADIENTS)
    for name, symbol in (("echo", optimized), ("plain", network())):
        symbol.save(str(tmp_path / f"{name}.json"))
    assert (tmp_path / "echo.json").read_bytes() == (tmp_path / "plain.json").read_bytes()


def test_checkpoints_are_the_users(optimized: OptimizedSymbol, tmp_path: Path) -> None:
    for name, symbol in (("echo", optimized), ("plain", network())):
        found = module(symbol)
        for batch in batches(2):
            found.forward_backward(batch)
            found.update()
        mx.nd.waitall()
        (tmp_path / name).mkdir()
        found.save_checkpoint(str(tmp_path / name / "model"), 3, save_optimizer_states=True)
    assert was_planned(optimized)
    files = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert files == ["model-0003.params", "model-0003.states", "model-symbol.json"]
    for file in files:
        if file != "model-0003.states":  # a pickle of float32 arrays and of the process's settings
            assert (tmp_path / "echo" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes(), file


def test_checkpoint_is_loaded_and_optimized_again(optimized: OptimizedSymbol, tmp_path: Path) -> None:
    found = module(optimized)
    found.save_checkpoint(str(tmp_path / "model"), 1)
    symbol, args, aux = mx.model.load_checkpoint(str(tmp_path / "model"), 1)
    assert symbol.tojson() == network().tojson()
    again = mx.mod.Module(echo.optimize(symbol, **LOW_BOUND), label_names=["label"])
    again.bind([("data", SHAPES["data"])], [("label", SHAPES["label"])])
    again.set_params(args, aux)
    for batch in batches(1):
        for each in (found, again):
            each.forward(batch, is_train=False)
    np.testing.assert_array_equal(found.get_outputs()[0].asnumpy(), again.get_outputs()[0].asnumpy())


@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle", "__copy__"])
def test_copies_stay_optimized(optimized: OptimizedSymbol, values: dict[str, Any], expected: Record, way: str) -> None:
    bind(optimized, values, GRADIENTS)
    made = {
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "pickle": lambda symbol: pickle.loads(pickle.dumps(symbol)),
        "__copy__": lambda symbol: symbol.__copy__(),
    }[way](optimized)
    assert isinstance(made, OptimizedSymbol)
    assert made.handle.value != optimized.handle.value
    assert made.options == optimized.options
    assert made.plans == []
    assert made.tojson() == optimized.tojson()
    assert_same(train(bind(made, values, GRADIENTS)), expected)
    assert was_planned(made)
    del made
    assert optimized.list_outputs() == ["softmax_output"]


def test_parts_and_compositions_are_plain(optimized: OptimizedSymbol, values: dict[str, Any]) -> None:
    plain = network()
    assert optimized.get_internals().list_outputs() == plain.get_internals().list_outputs()
    assert optimized.get_internals()["pool_output"].tojson() == plain.get_internals()["pool_output"].tojson()
    assert optimized[0].tojson() == plain[0].tojson()
    assert optimized["softmax_output"].tojson() == plain["softmax_output"].tojson()
    assert [part.tojson() for part in optimized] == [part.tojson() for part in plain]
    assert optimized.get_children().list_outputs() == plain.get_children().list_outputs()
    pair = mx.sym.Group([optimized, mx.sym.BlockGrad(optimized)])
    assert pair.list_outputs()[0] == "softmax_output"
    assert (optimized * 2).list_arguments() == plain.list_arguments()
    optimized.get_internals()["pool_output"].simple_bind(mx.cpu(), data=SHAPES["data"])


def test_attributes_set_later_are_kept(values: dict[str, Any]) -> None:
    with mx.AttrScope(ctx_group="one", __mood__="calm"):
        symbol = network()
    optimized = echo.optimize(symbol, **LOW_BOUND)
    optimized._set_attr(__colour__="blue")
    assert optimized.attr("__colour__") == "blue"
    assert optimized.attr("__mood__") == "calm"
    assert symbol.attr("__colour__") is None
    bind(optimized, values, GRADIENTS)
    assert was_planned(optimized)


def test_optimizing_twice_is_the_same(optimized: OptimizedSymbol, values: dict[str, Any], expected: Record) -> None:
    twice = echo.optimize(optimized, **LOW_BOUND)
    assert twice.tojson() == network().tojson()
    assert_same(train(bind(twice, values, GRADIENTS)), expected)
    assert was_planned(twice)
    assert optimized.plans == []
    plans = [bound.plans[-1] for bound in (twice, optimized) if bound.plans or bind(bound, values, GRADIENTS)]
    assert plans[0] == plans[1]


def test_shapes_given_at_once_plan_at_once(values: dict[str, Any], expected: Record) -> None:
    optimized = echo.optimize(network(), **LOW_BOUND, **SHAPES)
    assert was_planned(optimized)
    assert_same(train(bind(optimized, values, GRADIENTS)), expected)
    assert optimized.plans[0] == optimized.plans[1]


# Graphs that MXNet rewrites before it differentiates them -----------------------------------------------------------


def with_equal_expressions() -> Symbol:
    """x * y twice: MXNet merges equal expressions, and sums their gradients before it differentiates the product."""
    data = mx.sym.var("data")
    x, y = (mx.sym.FullyConnected(data, num_hidden=64, name=name) for name in "xy")
    first, second = (mx.sym.elemwise_mul(x, y, name=name) for name in ("first", "second"))
    heads = [mx.sym.tanh(first, name="tanh"), mx.sym.sigmoid(second, name="sigmoid")]
    heads = [mx.sym.FullyConnected(head, num_hidden=8, name=f"head{index}") for index, head in enumerate(heads)]
    return mx.sym.Group([mx.sym.sum(mx.sym.square(head), name=f"sum{index}") for index, head in enumerate(heads)])


@pytest.mark.parametrize("names", [("first",), ("second",), ("first", "second"), ("first", "tanh", "sigmoid")])
def test_equal_expressions(names: tuple[str, ...]) -> None:
    symbol = with_equal_expressions()
    values = random_arrays(symbol, {"data": (32, 64)})
    expected = train(bind(symbol, values))
    optimized = echo.optimize(symbol, recompute=names)
    assert_same(train(bind(optimized, values)), expected)


def test_equal_expressions_are_merged_by_the_marked_graph_too() -> None:
    symbol = with_equal_expressions()
    values = random_arrays(symbol, {"data": (32, 64)})
    both = recomputing(symbol, {"first": [0], "second": [0]})
    assert_same(train(bind(both, values)), train(bind(symbol, values)))


def test_attributes_of_the_user_survive_rewriting() -> None:
    """Attributes, subgraph operators and hidden keys reach the executor as they were."""
    with mx.AttrScope(__lr_mult__="2", __wd_mult__="0.5"):
        symbol = network()
    optimized = echo.optimize(symbol, **LOW_BOUND)
    executor = optimized.simple_bind(mx.cpu(), grad_req=GRADIENTS, **SHAPES)
    assert executor._symbol.attr_dict() == symbol.attr_dict()
    assert json.loads(optimized.tojson()) == json.loads(symbol.tojson())


# Its graph ---------------------------------------------------------------------------------------------------------


def test_a_symbol_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `echo.optimize`; by binds only where the program has changed it since."""
    texts: list[str] = []
    full = symbols.graph_from

    def read(text: str) -> Graph:
        texts.append(text)
        return full(text)

    for module in (symbols, optimized_symbol):
        monkeypatch.setattr(module, "graph_from", read)
    x = mx.sym.FullyConnected(mx.sym.tanh(mx.sym.var("data")), num_hidden=4, name="fc")
    optimized = echo.optimize(x)
    for size in (8, 9):
        optimized.simple_bind(mx.cpu(), data=(size, 8))
    assert sum('"fc_weight"' in text for text in texts) == 1
    optimized._set_attr(__colour__="red")
    assert optimized.graph().nodes[-1].attrs["__colour__"] == "red"
