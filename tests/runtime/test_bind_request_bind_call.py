"""Every road by which a program binds symbols, with echo and without: the same bits, the same files.

The same bits without fusion; with it, what there is to fuse comes close.
"""

from __future__ import annotations

import logging
import pickle
import re
import warnings
from pathlib import Path
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest

import echo
from tests.support.bound_mlp import BATCH, CLASSES, FEATURES, STEPS, body, network
from tests.support.training import assert_close, assert_same

pytestmark = pytest.mark.usefixtures("cheap_planning")
Result = dict[str, Any]
RECOMPUTED = re.compile(r"[1-9]\d* feature maps? recomputed")


def both(
    scenario: Callable[[Path], Result], folder: Path, caplog: pytest.LogCaptureFixture, fuse: bool = False
) -> list[Result]:
    """What a program computes without echo, and with it."""
    found = []
    for on in ("off", "on"):
        (folder / on).mkdir()
        mx.random.seed(5)
        np.random.seed(5)
        with mx.name.NameManager():
            if on == "on":
                with caplog.at_level(logging.DEBUG, "echo"), echo.enable(max_overhead=None, fuse=fuse):
                    found.append(scenario(folder / on))
            else:
                found.append(scenario(folder / on))
        found[-1]["random stream"] = mx.nd.random.uniform(shape=(64,)).asnumpy()
        found[-1].update({f"file {path.name}": np.array(path.read_bytes()) for path in (folder / on).iterdir()})
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert any(np.asarray(value).size for value in found[0].values())
    return found


def data(count: int = BATCH * STEPS) -> mx.io.NDArrayIter:
    generator = np.random.RandomState(1)
    values = generator.normal(0, 1, (count, FEATURES)).astype("float32")
    return mx.io.NDArrayIter(values, generator.randint(0, CLASSES, count).astype("float32"), BATCH)


def kept(seen: Result, prefix: str, values: Any) -> None:
    """Puts arrays, by name or number, into what is compared."""
    mx.nd.waitall()
    items = values.items() if isinstance(values, dict) else enumerate(values)
    seen.update({f"{prefix} {name}": array.asnumpy() for name, array in items if array is not None})


def kept_params(seen: Result, module: Any) -> None:
    mx.nd.waitall()
    for kind, values in zip(("arg", "aux"), module.get_params()):
        kept(seen, kind, values)


def train(module: Any, batches: Any, seen: Result) -> None:
    for step, batch in enumerate(batches):
        module.forward(batch, is_train=True)
        kept(seen, f"step {step} output", module.get_outputs())
        module.backward()
        module.update()


def bound_module(symbol: mx.sym.Symbol | None = None, batch: int = BATCH, **given: Any) -> mx.mod.Module:
    module = mx.mod.Module(symbol or network(), **given)
    module.bind([("data", (batch, FEATURES))], [("softmax_label", (batch,))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer="adam")
    return module


def module_fit(folder: Path) -> Result:
    """``fit`` with frozen weights and validation, saved with the state of the optimizer, loaded, and trained on."""
    seen: Result = {}
    module = mx.mod.Module(network(), fixed_param_names=["fc0_weight", "bn1_gamma"])
    module.fit(data(), data(BATCH * 2), num_epoch=2, optimizer="adam", initializer=mx.init.Xavier())
    kept_params(seen, module)
    assert "_echo" not in module.symbol.tojson()
    assert all("_echo" not in bound._symbol.tojson() for bound in module._exec_group.execs)
    module.save_checkpoint(str(folder / "model"), 2, save_optimizer_states=True)
    loaded = mx.mod.Module.load(str(folder / "model"), 2)
    with warnings.catch_warnings():  # that the weights are there already
        warnings.simplefilter("ignore", UserWarning)
        loaded.fit(data(), num_epoch=1, optimizer="adam")
    kept_params(seen, loaded)
    seen["json"] = np.array(module.symbol.tojson())
    seen["pickle"] = np.array(pickle.loads(pickle.dumps(module.symbol)).tojson())
    kept(seen, "prediction", [module.predict(data())])
    return seen


def module_reshape(folder: Path) -> Result:
    """Batches of several sizes, by ``reshape`` and by a last batch that is smaller or larger."""
    seen: Result = {}
    module = bound_module()
    for size in (BATCH, 8, 40, BATCH, 33):
        module.reshape([("data", (size, FEATURES))], [("softmax_label", (size,))])
        generator = np.random.RandomState(size)
        values = mx.nd.array(generator.normal(0, 1, (size, FEATURES)))
        batch = mx.io.DataBatch([values], [mx.nd.array(generator.randint(0, CLASSES, size))])
        train(module, [batch], seen)
        kept_params(seen, module)
        seen.update({f"{size}: {name}": value for name, value in list(seen.items()) if name.startswith("step")})
    smaller = mx.io.DataBatch([mx.nd.ones((4, FEATURES))], [mx.nd.ones((4,))])  # Module.forward reshapes by itself
    train(module, [smaller], seen)
    kept_params(seen, module)
    module.save_checkpoint(str(folder / "model"), 1)
    return seen


def two_contexts(folder: Path) -> Result:
    """One process, two devices: gradients are added up by a kvstore."""
    seen: Result = {}
    module = mx.mod.Module(network(), context=[mx.cpu(0), mx.cpu(1)])
    module.bind([("data", (BATCH, FEATURES))], [("softmax_label", (BATCH,))], inputs_need_grad=True)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(kvstore="device", optimizer="sgd", optimizer_params={"momentum": 0.9})
    train(module, data(), seen)
    kept_params(seen, module)
    kept(seen, "input gradient", module.get_input_grads())
    module.save_checkpoint(str(folder / "model"), 1)
    return seen


def bucketing(folder: Path) -> Result:
    """Sentences of three lengths with one pool of memory."""

    def unrolled(length: int) -> tuple[mx.sym.Symbol, tuple[str, ...], tuple[str, ...]]:
        words = mx.sym.Embedding(mx.sym.var("data"), input_dim=20, output_dim=8, name="embedding")
        stack = mx.rnn.SequentialRNNCell()
        stack.add(mx.rnn.LSTMCell(16, prefix="lstm0_"))
        stack.add(mx.rnn.DropoutCell(0.2, prefix="drop_"))
        stack.add(mx.rnn.GRUCell(16, prefix="gru_"))
        outputs, _ = stack.unroll(length, words, layout="NTC", merge_outputs=True)
        scores = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, 16)), num_hidden=20, name="scores")
        label = mx.sym.Reshape(mx.sym.var("softmax_label"), shape=(-1,))
        return mx.sym.SoftmaxOutput(scores, label, name="softmax"), ("data",), ("softmax_label",)

    seen: Result = {}
    module = mx.mod.BucketingModule(unrolled, default_bucket_key=7)
    module.bind([("data", (4, 7))], [("softmax_label", (4, 7))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer()
    generator = np.random.RandomState(0)
    for length in (7, 3, 5, 3, 7):
        words, following = (mx.nd.array(generator.randint(0, 20, (4, length))) for _ in range(2))
        shapes = {"provide_data": [("data", (4, length))], "provide_label": [("softmax_label", (4, length))]}
        batch = mx.io.DataBatch([words], [following], bucket_key=length, **shapes)
        train(module, [batch], seen)
        seen.update({f"{length}: {name}": value for name, value in list(seen.items()) if name.startswith("step")})
    kept_params(seen, module)
    module.save_checkpoint(str(folder / "model"), 1)
    return seen


def sequential(folder: Path) -> Result:
    """Two modules after each other: the gradient of the second's input goes into the first."""
    seen: Result = {}
    module = mx.mod.SequentialModule()
    module.add(mx.mod.Module(mx.sym.tanh(body(prefix="first_")), label_names=None))
    second = mx.sym.SoftmaxOutput(body(prefix="second_"), mx.sym.var("softmax_label"), name="softmax")
    module.add(mx.mod.Module(second), take_labels=True, auto_wiring=True)
    module.bind([("data", (BATCH, FEATURES))], [("softmax_label", (BATCH,))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer()
    train(module, data(), seen)
    kept_params(seen, module)
    return seen


def feed_forward(folder: Path) -> Result:
    """MXNet's oldest way to train."""
    seen: Result = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = mx.model.FeedForward(network(), num_epoch=2, optimizer="sgd", initializer=mx.init.Xavier())
        model.fit(data())
        model.save(str(folder / "model"))
        loaded = mx.model.FeedForward.load(str(folder / "model"), 2)
    kept(seen, "arg", model.arg_params)
    kept(seen, "aux", model.aux_params)
    seen["prediction"] = loaded.predict(data())
    return seen


def monitor(folder: Path) -> Result:
    """A Monitor shows the user's nodes, every one, in the same order, with the same values."""
    seen: Result = {}
    # unrequested gradients, and moving statistics, which BatchNorm writes without telling the engine
    unwritten = re.compile("softmax_backward_output1|fc0_backward_output0|moving|bn._backward_input[67]")
    for everything in (False, True):
        watch = mx.mon.Monitor(1, stat_func=lambda array: array.norm(), monitor_all=everything)
        module = mx.mod.Module(network())
        module.bind([("data", (BATCH, FEATURES))], [("softmax_label", (BATCH,))])
        module.install_monitor(watch)
        module.init_params(mx.init.Xavier())
        module.init_optimizer()
        for step, batch in enumerate(data()):
            watch.tic()
            module.forward_backward(batch)
            module.update()
            shown = [(name, "" if unwritten.search(name) else value) for _, name, value in watch.toc()]
            seen[f"monitor {everything} {step}"] = np.array(shown)
        assert "act1_output" in str(seen[f"monitor {everything} 0"])
        kept_params(seen, module)
    return seen


def executor(folder: Path) -> Result:
    """``simple_bind`` with every kind of ``grad_req``, forward and backward by hand, gradients of outputs given."""
    seen: Result = {}
    inputs = mx.sym.var("data")
    symbol = mx.sym.Group([body(data=inputs), mx.sym.sum(mx.sym.exp(body(data=inputs, prefix="other_")))])
    names = [name for name in symbol.list_arguments() if name != "data"]
    mixed = {name: ("write", "add", "null")[i % 3] for i, name in enumerate(names)}
    for number, grad_req in enumerate(("write", "add", mixed, ["write", *mixed.values()])):
        bound = symbol.simple_bind(mx.cpu(), grad_req=grad_req, data=(BATCH, FEATURES))
        run(bound, seen, f"request {number}")
        assert bound._symbol.tojson() == symbol.tojson()
        assert bound.get_optimized_symbol().list_arguments() == symbol.list_arguments()
        assert "__echo" not in bound.get_optimized_symbol().tojson()
    return seen


def bind_with_add(folder: Path) -> Result:
    """``bind`` with arrays of the user's: gradients are added over steps; some are absent."""
    seen: Result = {}
    symbol = body()
    shapes, _, aux_shapes = symbol.infer_shape(data=(BATCH, FEATURES))
    names, aux_names = symbol.list_arguments(), symbol.list_auxiliary_states()
    for number in range(2):
        args = {name: mx.nd.ones(shape) for name, shape in zip(names, shapes)}
        gradients = {name: mx.nd.ones(shape) for name, shape in zip(names, shapes) if number or name != "fc1_weight"}
        aux = {name: mx.nd.ones(shape) for name, shape in zip(aux_names, aux_shapes)}
        given = (args, gradients, "add", aux) if number else (args, gradients, dict.fromkeys(gradients, "add"), aux)
        run(symbol.bind(mx.cpu(), *given), seen, f"bind {number}")
    return seen


def run(bound: mx.executor.Executor, seen: Result, prefix: str) -> None:
    generator = np.random.RandomState(3)
    for array in [*bound.arg_arrays, *bound.aux_arrays, *bound.grad_arrays]:
        if array is not None:
            array[:] = generator.uniform(0.1, 1, array.shape)
    for step in range(STEPS):
        bound.forward(is_train=True, data=generator.normal(0, 1, (BATCH, FEATURES)).astype("float32"))
        bound.backward([mx.nd.array(generator.normal(0, 1, output.shape)) for output in bound.outputs])
        for name, arrays in (("output", bound.output_dict), ("gradient", bound.grad_dict), ("aux", bound.aux_dict)):
            kept(seen, f"{prefix} step {step} {name}", arrays)


SCENARIOS: dict[Callable[[Path], Result], int] = {
    module_fit: 2, module_reshape: 3, two_contexts: 2, bucketing: 3, sequential: 2, feed_forward: 1, monitor: 2,
    executor: 4, bind_with_add: 2,
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_same_bits(scenario: Callable[[Path], Result], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stock, found = both(scenario, tmp_path, caplog)
    assert len(RECOMPUTED.findall(caplog.text)) >= SCENARIOS[scenario]
    assert_same(found, stock)


def test_fused_buckets_come_close(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = both(bucketing, tmp_path, caplog, fuse=True)
    stock, fused = ({name: value for name, value in each.items() if value.dtype.kind == "f"} for each in found)
    assert any((fused[name] != value).any() for name, value in stock.items()), "nothing is fused"
    assert_close(fused, stock)
    saved = [name for name in found[0] if name.endswith("symbol.json")]
    assert saved
    assert all(found[1][name] == found[0][name] for name in saved)
