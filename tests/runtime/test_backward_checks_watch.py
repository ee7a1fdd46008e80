"""Arrays that are written between forward and backward: an error where the plan reads them again, else stock's bits."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import echo
from echo.errors import ChangedInputError
from echo.runtime import backward_checks
from echo.runtime.executor import PlannedExecutor
from tests.training import arrays, assert_alive, assert_same

pytestmark = pytest.mark.usefixtures("cheap_planning")
S = mx.sym
OPTIONS = {"fuse": False, "max_overhead": None, "strict": True}
FLAGS: dict[str, dict[str, bool]] = {
    "dynamic": {},
    "static alloc": {"static_alloc": True},
    "static": {"static_alloc": True, "static_shape": True},
}
Write = Callable[[mx.nd.NDArray], None]


def _update(array: mx.nd.NDArray) -> None:
    mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.1))(0, array.ones_like(), array)


def _in_place(array: mx.nd.NDArray) -> None:
    array *= 0.5


def _one_element(array: mx.nd.NDArray) -> None:
    array.reshape((-1,))[-1] += 1


WRITES: dict[str, Write] = {
    "of another array": lambda array: (array * 0.5).copyto(array),
    "of numbers": lambda array: array.__setitem__(slice(None), array.asnumpy() * 0.5),
    "in place": _in_place,
    "of one element": _one_element,
    "by an optimizer": _update,
    "to a view": lambda array: array[:1].__setitem__(slice(None), 3),
}
NO_CHANGES: dict[str, Write] = {
    "the same numbers": lambda array: array.__setitem__(slice(None), array.asnumpy()),
    "nothing added": lambda array: array.__iadd__(0),
    "to and fro": lambda array: (array.__iadd__(1), array.__isub__(1)),
}


def network() -> S.Symbol:
    hidden = S.sin(S.exp(S.var("data"), name="exp0"), name="sin0")
    hidden = S.FullyConnected(hidden, num_hidden=48, flatten=False, name="f1")
    hidden = S.tanh(S.LayerNorm(hidden, name="ln"), name="tanh1")
    hidden = S.FullyConnected(S.sin(S.exp(hidden)), num_hidden=48, flatten=False, name="f2")
    return S.sum(S.sin(S.exp(hidden)))


def normed(fix_gamma: bool) -> S.Symbol:
    hidden = S.var("data")
    for i in range(3):
        hidden = S.FullyConnected(hidden, num_hidden=48, flatten=False, name=f"fc{i}")
        hidden = S.BatchNorm(hidden, axis=2, fix_gamma=fix_gamma, name=f"bn{i}")
        hidden = S.sigmoid(S.tanh(hidden))
    return S.sum(hidden)


def bound(on: bool, symbol: S.Symbol | None = None, **options: Any) -> mx.executor.Executor:
    symbol = network() if symbol is None else symbol
    symbol = echo.optimize(symbol, **{**OPTIONS, **options}) if on else symbol
    executor = symbol.simple_bind(mx.cpu(), data=(8, 6, 16), grad_req="write")
    generator = np.random.RandomState(0)
    for _, array in sorted(executor.arg_dict.items()):
        array[:] = generator.randint(-8, 8, array.shape) / 16  # so that 1 can be added and taken away
    assert isinstance(executor, PlannedExecutor) == on
    return executor


def step(executor: mx.executor.Executor, between: Callable[[mx.executor.Executor], None]) -> dict[str, Any]:
    executor.forward(is_train=True)
    between(executor)
    executor.backward(mx.nd.ones(executor.outputs[0].shape))
    seen = arrays(executor)
    assert_alive(seen)
    return seen


def same_as_stock(between: Callable[[mx.executor.Executor], None], **options: Any) -> None:
    assert_same(step(bound(True, **options), between), step(bound(False), between))


# Executors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ln_gamma", "ln_beta", "data"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_to_what_is_read_again_is_an_error(write: Write, name: str) -> None:
    executor = bound(True)
    before = [array.asnumpy() for array in executor.grad_arrays]
    with pytest.raises(ChangedInputError, match=f"^'{name}' was written between .* plan with keep=.* .ECHO=0."):
        step(executor, lambda own: write(own.arg_dict[name]))
    mx.nd.waitall()
    assert all((old == new.asnumpy()).all() for old, new in zip(before, executor.grad_arrays))


@pytest.mark.parametrize("name", ["ln_gamma", "data"])
def test_the_next_step_is_right_again(name: str) -> None:
    def twice(executor: mx.executor.Executor, on: bool) -> dict[str, Any]:
        if on:
            with pytest.raises(ChangedInputError):
                step(executor, lambda own: _in_place(own.arg_dict[name]))
        else:
            _in_place(executor.arg_dict[name])
        return step(executor, lambda own: None)

    assert_same(twice(bound(True), True), twice(bound(False), False))


def test_the_names_to_keep_are_those_that_help() -> None:
    same_as_stock(lambda own: _in_place(own.arg_dict["ln_gamma"]), keep=("ln",))
    same_as_stock(lambda own: _in_place(own.arg_dict["data"]), keep=("exp0",))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_is_not_read_again_may_be_written(write: Write) -> None:
    same_as_stock(lambda own: write(own.arg_dict["f2_weight"]))


@pytest.mark.parametrize("write", NO_CHANGES.values(), ids=NO_CHANGES)
def test_writes_that_change_nothing_are_no_error(write: Write) -> None:
    same_as_stock(lambda own: [write(own.arg_dict[name]) for name in ("ln_gamma", "data")])


def test_executors_that_end_in_between_are_no_writes() -> None:
    def another(own: mx.executor.Executor) -> None:
        other = network().bind(mx.cpu(), dict(own.arg_dict))
        other.forward(is_train=False)[0].wait_to_read()
        before = backward_checks._library().version(own.arg_dict["ln_gamma"].handle)
        del other
        gc.collect()
        mx.nd.waitall()
        assert (
            backward_checks._library().version(own.arg_dict["ln_gamma"].handle) > before
        )  # MXNet counts it as a write

    same_as_stock(another)


def test_only_the_last_forward_pass_counts() -> None:
    def forward_again(own: mx.executor.Executor) -> None:
        _in_place(own.arg_dict["ln_gamma"])
        own.forward(is_train=True, data=own.arg_dict["data"] + 1)

    same_as_stock(forward_again)


def test_backward_without_forward_in_between_is_looked_at_too() -> None:
    executor = bound(True)
    step(executor, lambda own: None)
    executor.arg_dict["data"][:] = 0
    with pytest.raises(ChangedInputError, match="'data'"):
        executor.backward(mx.nd.ones(executor.outputs[0].shape))


@pytest.mark.parametrize("mode", [True, False])
def test_a_forward_pass_that_backward_repeats(mode: bool) -> None:
    executor = bound(True, normed(fix_gamma=False))
    executor.forward(is_train=mode)
    executor.backward(mx.nd.ones(1), is_train=not mode)
    executor.forward(is_train=mode)
    _in_place(executor.arg_dict["fc1_weight"])
    with pytest.raises(ChangedInputError, match=r"'fc1_weight' .* repeats the forward pass"):
        executor.backward(mx.nd.ones(1), is_train=not mode)


def test_an_operator_that_fails_shows_its_own_error() -> None:
    def damage(executor: mx.executor.Executor) -> None:
        broken = mx.nd.linalg.potrf(mx.nd.array([[0, 1], [1, 0]]) - 1)
        mx.nd.broadcast_add(executor.arg_dict["ln_gamma"], broken.sum(), out=executor.arg_dict["ln_gamma"])

    with pytest.raises(mx.MXNetError, match="potrf"):
        step(bound(True), damage)
    executor = bound(True)
    damage(executor)
    executor.forward(is_train=True)  # the engine leaves out what reads a broken array: nobody may wait for that
    executor.backward(mx.nd.ones(1))
    with pytest.raises(mx.MXNetError, match="potrf"):
        mx.nd.waitall()


def test_fused_operators_compute_from_their_inputs() -> None:
    def cell() -> S.Symbol:
        cell = mx.rnn.LSTMCell(32, prefix="l_")
        outputs, _ = cell.unroll(6, S.var("data"), layout="TNC", merge_outputs=True)
        return S.sum(S.sin(outputs))

    def made() -> mx.executor.Executor:
        executor = echo.optimize(cell(), strict=True).simple_bind(mx.cpu(), data=(6, 8, 32), grad_req="write")
        assert executor._applied.fuses
        return executor

    said = []
    for name in cell().list_arguments():
        executor = made()
        try:
            executor.forward(is_train=True)
            executor.arg_dict[name][:] = 0.1
            executor.backward(mx.nd.ones(executor.outputs[0].shape))
        except ChangedInputError as error:
            said.append(str(error))
    assert said
    assert all("fuse=False" in each for each in said)


def masked_attention() -> S.Symbol:
    """The keys reach the fused operator as a copy, which keeps the order of arguments."""
    scores = S.broadcast_add(S.batch_dot(S.var("q"), S.var("k"), transpose_b=True), S.BlockGrad(S.var("m")))
    return S.batch_dot(S.softmax(scores), S.var("v"))


def cross_entropy() -> S.Symbol:
    """The label reaches it as float32."""
    return S.pick(S.log_softmax(S.FullyConnected(S.var("x"), num_hidden=600, name="fc")), S.var("label"))


@pytest.mark.usefixtures("free_workspaces")
@pytest.mark.parametrize(
    ("symbol", "shapes", "name"),
    [
        (masked_attention(), {"q": (8, 33, 7), "k": (8, 41, 7), "v": (8, 41, 5), "m": (1, 33, 41)}, "k"),
        (cross_entropy(), {"x": (50, 30), "label": (50,)}, "label"),
    ],
    ids=["attention", "cross entropy"],
)
def test_what_fused_operators_read_as_copies_is_watched(
    symbol: S.Symbol, shapes: dict[str, tuple[int, ...]], name: str
) -> None:
    executor = echo.optimize(symbol, strict=True).simple_bind(mx.cpu(), grad_req="write", **shapes)
    assert executor._applied.fuses
    executor.forward(is_train=True)
    executor.arg_dict[name][:] = 1.5
    with pytest.raises(ChangedInputError, match=f"'{name}' was written"):
        executor.backward(mx.nd.ones(executor.outputs[0].shape))


def conv(data: tuple[int, ...]) -> mx.executor.Executor:
    hidden = S.var("data")
    for i in range(3):
        hidden = S.Convolution(hidden, kernel=(3, 3), num_filter=32, pad=(1, 1), name=f"c{i}")
        hidden = S.tanh(S.sin(hidden))
    executor = echo.optimize(S.sum(hidden), recompute=("c1",), **OPTIONS).simple_bind(mx.cpu(), data=data)
    assert "Convolution" in executor._applied.marked
    for array in executor.arg_arrays:
        array[:] = mx.nd.random.normal(shape=array.shape)
    return executor


def test_another_order_of_elements_is_no_write() -> None:
    """In an inference pass oneDNN puts weights into its own order, in place."""
    executor = conv((2, 16, 8, 8))
    weight, bias = (executor.arg_dict[f"c1_{name}"] for name in ("weight", "bias"))

    def convolve() -> None:
        mx.nd.Convolution(mx.nd.ones((2, 32, 8, 8)), weight, bias, kernel=(3, 3), pad=(1, 1), num_filter=32)

    for inference in (convolve, lambda: executor.forward(is_train=False)):  # the second pass is repeated by backward
        executor.forward(is_train=True)
        before = backward_checks._library().version(weight.handle)
        for _ in range(3):
            inference()
        mx.nd.waitall()
        assert backward_checks._library().version(weight.handle) > before
        executor.backward(mx.nd.ones(1))
        weight[:] = weight + 0  # in MXNet's own order again
    executor.backward(mx.nd.ones(1))
    executor.forward(is_train=True)
    weight[3, 2, 1, 0] += 1
    with pytest.raises(ChangedInputError, match="'c1_weight'"):
        executor.backward(mx.nd.ones(1))


def test_long_arrays_are_judged_by_the_count_alone() -> None:
    array = mx.nd.ones((2048, 1024))
    record = backward_checks.InputWatch(backward_checks._library(), [0], ["long"], True).record([array])
    backward_checks.refuse_changed(record)
    array += 0
    with pytest.raises(ChangedInputError, match="long"):
        backward_checks.refuse_changed(record)


def test_nothing_is_watched_where_nothing_is_read_again() -> None:
    executor = bound(True, keep=("ln", "exp0"))
    assert executor._applied.marked
    assert executor._applied.watch is None
    executor.forward(is_train=True)
    assert executor._records == (None, None)


def test_gammas_that_are_not_read_are_not_watched() -> None:
    executor = bound(True, normed(fix_gamma=True))
    step(executor, lambda own: own.arg_dict["bn1_gamma"].__setitem__(slice(None), 3))
    with pytest.raises(ChangedInputError, match="'bn1_beta'"):
        step(executor, lambda own: own.arg_dict["bn1_beta"].__setitem__(slice(None), 3))


# Gluon -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=FLAGS.values(), ids=FLAGS)
def flags(request: pytest.FixtureRequest) -> dict[str, bool]:
    return request.param  # type: ignore[no-any-return]


class Net(nn.HybridSequential):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(prefix="net_", **kwargs)
        with self.name_scope():
            self.add(nn.HybridLambda(lambda F, x: F.sin(F.exp(x))))
            for _ in range(2):
                self.add(nn.Dense(24), nn.LayerNorm(), nn.Activation("tanh"), nn.Activation("sigmoid"))
            self.add(nn.Dense(5))


def made(on: bool, flags: dict[str, bool], seed: int = 3) -> Net:
    with mx.name.NameManager():
        mx.random.seed(seed)
        block = Net()
        block.initialize(mx.init.Xavier())
        block.hybridize(**flags)
        return echo.optimize(block, **OPTIONS) if on else block


def inputs(seed: int = 0) -> mx.nd.NDArray:
    return mx.nd.array(np.random.RandomState(seed).normal(0, 1, (8, 12)))


def gradients(block: Net) -> dict[str, Any]:
    mx.nd.waitall()
    return {f"gradient {name}": param.grad().asnumpy() for name, param in block.collect_params().items()}


def gamma(block: Net) -> mx.nd.NDArray:
    return next(param for name, param in block.collect_params().items() if name.endswith("layernorm0_gamma")).data()


def recorded(block: Net, data: mx.nd.NDArray) -> mx.nd.NDArray:
    with autograd.record():
        return (block(data) ** 2).sum()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_blocks_refuse_a_write_to_a_parameter(flags: dict[str, bool], write: Write) -> None:
    block = made(True, flags)
    loss = recorded(block, inputs())
    with autograd.pause():
        write(gamma(block))
    with pytest.raises(ChangedInputError, match=r"layernorm0_gamma' was written .* \(LayerNorm\)"):
        loss.backward()


def test_blocks_refuse_a_write_to_an_input(flags: dict[str, bool]) -> None:
    block, data = made(True, flags), inputs()
    loss = recorded(block, data)
    data[:] = inputs(1)
    with pytest.raises(ChangedInputError, match="'data' was written"):
        loss.backward()
    recorded(block, data).backward()


def test_set_data_is_a_write(flags: dict[str, bool]) -> None:
    block = made(True, flags)
    loss = recorded(block, inputs())
    for param in block.collect_params().values():
        param.set_data(param.data() * 0.5)
    with pytest.raises(ChangedInputError):
        autograd.backward([loss])


def run(on: bool, flags: dict[str, bool], scenario: Callable[[Net], None]) -> dict[str, Any]:
    block = made(on, flags)
    scenario(block)
    seen = gradients(block)
    assert_alive(seen)
    if on:
        assert any(plan.recomputed_nodes for plan in block._cached_op.plans.values())
    return seen


def _several(block: Net) -> None:
    """Each pass has its own record; what is written behind one's backward is written before another's forward."""
    losses = [recorded(block, inputs(seed)) for seed in range(3)]
    autograd.backward(losses)
    trainer = gluon.Trainer(block.collect_params(), "sgd", {"learning_rate": 0.1})
    trainer.step(1)
    first, second = recorded(block, inputs(4)), recorded(block, inputs(5))
    first.backward()
    second.backward()


def _retained(block: Net) -> None:
    loss = recorded(block, inputs())
    loss.backward(retain_graph=True)
    loss.backward()


def _inference_between(block: Net) -> None:
    loss = recorded(block, inputs())
    block(inputs(1)).wait_to_read()
    with autograd.predict_mode():
        block(inputs(2)).wait_to_read()
    loss.backward()


def _dropped(block: Net) -> None:
    """Passes that never see a backward pass: their records go, and what is written then concerns nobody."""
    for seed in range(200):
        recorded(block, inputs(seed))
        gamma(block)[:] *= 0.99
    recorded(block, inputs()).backward()


def _accumulated(block: Net) -> None:
    for param in block.collect_params().values():
        param.grad_req = "add"
    for seed in range(3):
        recorded(block, inputs(seed)).backward()
    gluon.Trainer(block.collect_params(), "adam").step(8)
    block.collect_params().zero_grad()
    recorded(block, inputs(3)).backward()


def _buffer_refilled_behind_backward(block: Net) -> None:
    buffer = inputs()
    for seed in range(4):
        buffer[:] = inputs(seed)
        recorded(block, buffer).backward()


@pytest.mark.parametrize(
    "scenario", [_several, _retained, _inference_between, _dropped, _accumulated, _buffer_refilled_behind_backward]
)
def test_what_loops_do_otherwise_is_no_error(flags: dict[str, bool], scenario: Callable[[Net], None]) -> None:
    assert_same(run(True, flags, scenario), run(False, flags, scenario))


def test_two_networks_that_train_in_turns(flags: dict[str, bool]) -> None:
    """As a GAN: the discriminator is updated while a pass of the generator waits for its gradient."""

    def trained(on: bool) -> dict[str, Any]:
        generator, critic = made(on, flags), made(on, flags, seed=4)
        trainers = [gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}) for net in (generator, critic)]
        pad = mx.nd.ones((8, 7))
        for seed in range(3):
            with autograd.record():
                fake = mx.nd.concat(generator(inputs(seed)), pad)
                loss = (critic(inputs(seed + 9)) ** 2).sum() - (critic(fake.detach()) ** 2).sum()
            loss.backward()
            trainers[1].step(8)
            with autograd.record():
                loss = (critic(fake) ** 2).sum()
            loss.backward()
            trainers[0].step(8)
        return {**gradients(generator), **{f"{name} critic": value for name, value in gradients(critic).items()}}

    assert_same(trained(True), trained(False))


def test_a_loss_of_two_networks_is_refused_by_the_pass_of_the_one_that_changed(flags: dict[str, bool]) -> None:
    first, second = made(True, flags), made(True, flags, seed=4)
    with autograd.record():
        loss = first(inputs()).sum() * second(inputs()).sum()
    gamma(second)[:] = 2
    weights = [param.data() for param in first.collect_params().values()]
    found = autograd.grad(loss, weights, retain_graph=True)  # not behind the second network
    assert all(np.isfinite(gradient.asnumpy()).all() for gradient in found)
    with pytest.raises(ChangedInputError, match="gamma"):
        autograd.grad(loss, [gamma(second)], retain_graph=True)
    with pytest.raises(ChangedInputError, match="gamma"):
        loss.backward()


# Other engines ---------------------------------------------------------------------------------------------------

_SCRIPT = """
import echo, mxnet as mx
from echo.runtime import backward_checks
S = mx.sym
net = S.var("data")
for name in ("ln", "ln1", "ln2"):
    net = S.sigmoid(S.tanh(S.LayerNorm(S.FullyConnected(net, num_hidden=48), name=name)))
net = S.sum(net)
executor = echo.optimize(net, fuse=False, max_overhead=None, strict=True).simple_bind(mx.cpu(), data=(64, 48))
assert executor._applied.watch is not None
for _ in range(3):
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones(1))
    executor.arg_dict["ln_gamma"][:] = 2
executor.forward(is_train=True)
executor.arg_dict["ln_gamma"][:] = 3
try:
    executor.backward(mx.nd.ones(1))
except echo.errors.ChangedInputError as error:
    print("refused", error)
"""


@pytest.mark.every(3)
@pytest.mark.parametrize("engine", ["NaiveEngine", "ThreadedEngine", "ThreadedEnginePerDevice"])
def test_every_engine_counts(engine: str, tmp_path: Any) -> None:
    environment = {**os.environ, "MXNET_ENGINE_TYPE": engine, "ECHO_CACHE_DIR": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True)
    assert found.stdout.startswith("refused 'ln_gamma'"), found.stderr
