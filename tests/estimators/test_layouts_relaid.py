"""Maps that a view changes from oneDNN's layout to the plain one, in place, while others read them."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
import pytest

import echo
from echo.estimators.layouts import relaid
from echo.frontend.capture import training_graph
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, infer_binding
from tests.support.training import assert_same, bind, random_arrays, train

S = mx.sym
pytestmark = pytest.mark.usefixtures("cheap_planning")
Layer = Callable[[mx.sym.Symbol], mx.sym.Symbol]
MAPS: dict[str, Layer] = {
    "conv": lambda x: x,
    "relu": lambda x: S.Activation(x, act_type="relu", name="map"),
    "avg": lambda x: S.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="avg", name="map"),
    "max": lambda x: S.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name="map"),
}
READERS: dict[str, Layer] = {
    "BatchNorm": lambda x: S.BatchNorm(x, fix_gamma=False, name="reader"),
    "max": lambda x: S.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name="reader"),
}
VIEWS: dict[str, Layer] = {
    "Reshape": lambda x: S.reshape(x, shape=(0, 0, -1)),
    "Flatten": S.Flatten,
    "expand_dims": lambda x: S.expand_dims(x, axis=0),
    "a copy's": lambda x: S.reshape(S.identity(x, name="copy"), shape=(0, 0, -1)),
}
SHAPES = {"x": (2, 8, 8, 8)}


def network(channels: int, a_map: Layer, reader: Layer | None, view: Layer, late: bool) -> mx.sym.Symbol:
    """A map of a convolution with two readers, of which the view runs first, or ``late``."""
    blocked = a_map(S.Convolution(S.var("x"), kernel=(3, 3), pad=(1, 1), num_filter=channels, name="conv"))
    viewed = S.square(view(blocked))
    if reader is None:
        return viewed
    heads = [S.square(reader(blocked)), viewed]
    return S.Group(heads if late else heads[::-1])


@pytest.mark.every(15)
@pytest.mark.parametrize("late", [True, False], ids=["late", "first"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("channels", [8, 16])
def test_neither_the_map_nor_its_readers_run_again(
    channels: int, name: str, reader: str, view: str, late: bool
) -> None:
    symbol = network(channels, MAPS[name], READERS[reader], VIEWS[view], late)
    values = random_arrays(symbol, SHAPES)
    expected = train(bind(symbol, values))
    for wish in ("map", "reader") if name != "conv" else ("reader",):
        with pytest.raises(echo.OptionError, match=rf"'{wish}'.*a view changes"):
            echo.plan(symbol, fuse=False, recompute=wish, grad_req="write", **SHAPES)
    for options in ({"policy": "all"}, {"policy": "mincut"}, {"fuse": True}):
        optimized = echo.optimize(symbol, **{"fuse": False, "max_overhead": None, **options})
        assert_same(train(bind(optimized, values)), expected)


@pytest.mark.parametrize("name", ["relu", "avg", "max"])
def test_a_map_that_views_alone_read_may_run_again(name: str) -> None:
    symbol = network(16, MAPS[name], None, VIEWS["Flatten"], late=False)
    values = random_arrays(symbol, SHAPES)
    optimized = echo.optimize(symbol, fuse=False, recompute="map", max_overhead=None)
    assert_same(train(bind(optimized, values)), train(bind(symbol, values)))
    assert "map" in {decision.name for decision in optimized.plans[-1].recomputed}


def test_maps_that_keep_their_layout_are_not_named() -> None:
    assert install_hook() == ""

    def entries(symbol: mx.sym.Symbol) -> set[str]:
        training = training_graph(graph_of(symbol), infer_binding(symbol, SHAPES), mx.cpu())
        return {training.nodes[entry.node].name for entry in relaid(training, "cpu")}

    assert entries(network(8, MAPS["relu"], READERS["max"], S.tanh, late=True)) == set()
    assert entries(network(8, MAPS["relu"], READERS["max"], S.BlockGrad, late=True)) == set()
    assert entries(network(8, MAPS["relu"], READERS["max"], VIEWS["a copy's"], late=True)) == {"map", "copy"}
    without = S.Group([S.square(S.Flatten(S.var("x"))), S.square(READERS["max"](S.var("x")))])
    assert entries(without) == set()


class Net(mx.gluon.HybridBlock):  # type: ignore[misc]
    """As `network`."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.conv = mx.gluon.nn.Conv2D(16, 3, padding=1, activation="relu")
            self.norm = mx.gluon.nn.BatchNorm()
            self.pool = mx.gluon.nn.MaxPool2D(2)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        y = self.conv(x)
        return F.sum(self.norm(y)) + F.sum(F.square(self.pool(y))) + F.sum(F.square(F.reshape(y, shape=(0, 0, -1))))


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}], ids=str)
def test_block_with_relaid_map_has_stocks_gradients(flags: dict[str, bool]) -> None:
    def gradients(options: dict[str, Any] | None) -> dict[str, Any]:
        net = Net()
        mx.random.seed(3)
        net.initialize(mx.init.Normal(0.3))
        net.hybridize(**flags)
        net = net if options is None else echo.optimize(net, **options)
        x = mx.nd.random.normal(shape=SHAPES["x"])
        x.attach_grad()
        for _ in range(2):
            with mx.autograd.record():
                loss = net(x)
            loss.backward()
        found = {name: one.grad() for name, one in net.collect_params().items() if one.grad_req != "null"}
        return {name: array.asnumpy() for name, array in {**found, "x": x.grad, "loss": loss}.items()}

    expected = gradients(None)
    for options in ({"policy": "all"}, {"policy": "mincut"}, {}):
        assert_same(gradients({"fuse": False, "max_overhead": None, **options}), expected)
