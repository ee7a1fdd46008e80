"""MXNet's C interface as measuring uses it: the same results as through Python, and nothing is leaked."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import mxnet as mx
import mxnet.libinfo
import numpy as np
import pytest

from echo.frontend.symbols import text_of
from echo.meter import capi
from echo.meter.capi import Array, Executor, Library, MxnetError, fresh_from
from echo.meter.timer import race

KINDS = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64")


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(mxnet.libinfo.find_lib_path()[0], "", (1, 1), False)


def seen(array: Array) -> Any:
    """The values of an array that stays."""
    borrowed = mx.nd.NDArray(mx.base.NDArrayHandle(array.handle.value))
    values = borrowed.asnumpy()
    borrowed.handle = None  # whoever made it frees it
    return values


def graph_of(symbol: mx.sym.Symbol) -> Any:
    return json.loads(text_of(symbol))


@pytest.mark.parametrize("flag", range(len(KINDS)))
@pytest.mark.parametrize("shape", [(3,), (200, 100), (2, 0, 3)])
def test_arrays_hold_noise_or_ones(flag: int, shape: tuple[int, ...], library: Library) -> None:
    if 0 in shape:
        library = Library(mxnet.libinfo.find_lib_path()[0], "", (1, 1), True)
    try:
        values = seen(library.array(shape, flag))
    finally:
        mx.util.set_np_shape(False)
    assert (values.shape, values.dtype) == (shape, KINDS[flag])
    if KINDS[flag].startswith("float"):
        assert ((values >= 0.09) & (values <= 1.01)).all()
        assert values.size < 4 or np.unique(values).size > values.size / 100
    else:
        assert (values == 1).all()  # nothing is divided by zero
    indices = seen(library.array((50, 60), flag, 7))
    assert set(np.unique(indices)) == set(range(7))
    assert (seen(library.constant((5, 3), flag, 2)) == 2).all()


def test_noise_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(mxnet.libinfo.find_lib_path()[0], "", (1, 1), False)
    first = seen(library.array((200, 100), 0))
    monkeypatch.setattr("echo.meter.capi._noise", lambda *_: pytest.fail("drawn again"))
    assert (seen(library.array((50, 60), 0)) == first.ravel()[:3000].reshape(50, 60)).all()


def test_unknown_type_raises_mxnet_error(library: Library) -> None:
    with pytest.raises(MxnetError, match="type 12"):
        library.array((2,), 12)


def test_executors_run_as_in_training(library: Library) -> None:
    """BatchNorm takes the statistics of the batch only there."""
    symbol = mx.sym.BatchNorm(mx.sym.var("data"), fix_gamma=False, name="norm")
    shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(data=(8, 4, 5, 5))[0]))
    shapes.update(zip(symbol.list_auxiliary_states(), symbol.infer_shape(data=(8, 4, 5, 5))[2]))
    arrays = {name: library.array(shape, 0) for name, shape in shapes.items()}
    executor = Executor(library, graph_of(symbol), arrays)
    executor.forward()
    values = {name: mx.nd.array(seen(array)) for name, array in arrays.items()}
    states = [values.pop(name) for name in symbol.list_auxiliary_states()]
    stock = symbol.bind(mx.cpu(), values, aux_states=states)
    assert np.allclose(seen(executor.outputs[0]), stock.forward(is_train=True)[0].asnumpy(), atol=1e-5)
    assert not np.allclose(seen(executor.outputs[0]), stock.forward(is_train=False)[0].asnumpy(), atol=1e-2)


def test_a_step_computes_gradients(library: Library) -> None:
    symbol = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("w"), no_bias=True, num_hidden=3)
    arrays = {"x": library.array((4, 5), 0), "w": library.array((3, 5), 0)}
    into = {name: library.constant(array.shape, 0, 0) for name, array in arrays.items()}
    executor = Executor(library, graph_of(symbol), arrays, into)
    executor.step([executor.outputs[0].like(1)])
    x, w = (seen(arrays[name]) for name in "xw")
    assert np.allclose(seen(into["w"]), np.ones((4, 3)).T @ x, rtol=1e-5)
    assert np.allclose(seen(into["x"]), np.ones((4, 3)) @ w, rtol=1e-5)


def test_graph_that_mxnet_refuses_raises_mxnet_error(library: Library) -> None:
    symbol = mx.sym.elemwise_add(mx.sym.var("a"), mx.sym.var("b"))
    arrays = {"a": library.array((2, 3), 0), "b": library.array((3, 2), 0)}
    with pytest.raises(MxnetError, match=r"elemwise_add|shape"):
        Executor(library, graph_of(symbol), arrays)
    with pytest.raises(MxnetError, match="not registered"):
        Executor(library, {**graph_of(symbol), "nodes": [{"op": "no_such", "name": "n", "inputs": []}]}, {})


def test_a_race_is_run_within_its_time(library: Library) -> None:
    graph, types = graph_of(mx.sym.tanh(mx.sym.var("x"))), {"x": ((200, 100), 0)}
    assert race(library, {"one": graph, "other": graph}, types, 0.0) is None
    found = race(library, {"one": graph, "other": graph}, types, 60.0)
    assert found is not None
    assert set(found) == {"one", "other"}
    assert all(0 < seconds < 60 for seconds in found.values())


SOFTMAX_OVER = {
    "nodes": [
        {"op": "null", "name": "gradient", "inputs": []},
        {"op": "null", "name": "output", "inputs": []},
        {"op": "_copy", "name": "copy", "inputs": [[0, 0, 0]]},
        {"op": "_backward_softmax", "name": "over", "attrs": {"axis": "-1"}, "inputs": [[2, 0, 0], [1, 0, 0]]},
    ],
    "arg_nodes": [0, 1],
    "heads": [[3, 0, 0]],
}


def test_large_allocations_of_operators_come_from_the_system() -> None:
    """MXNet writes the gradient of a softmax into an array of its own first where it overwrites what it reads."""
    script = f"""
import resource, sys
sys.path.insert(0, {str(capi.__file__.rpartition("/echo/")[0])!r})
from echo.meter.capi import Executor, Library, fresh_from
library = Library({mxnet.libinfo.find_lib_path()[0]!r}, "", (1, 1), False)
shape = (512, 1024)

def faults(library):
    arrays = {{name: library.array(shape, 0) for name in ("gradient", "output")}}
    executor = Executor(library, {SOFTMAX_OVER!r}, arrays)
    for _ in range(3):
        executor.forward()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    executor.forward(4)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / 4

with fresh_from(1 << 20):
    print(faults(library.elsewhere()))
for _ in range(2):
    print(faults(library))
with fresh_from(1 << 20):
    print(faults(library.elsewhere()))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    fresh, _, kept, again = map(float, done.stdout.split())
    size = 4 * 512 * 1024
    assert fresh >= 0.9 * size
    assert kept <= 0.1 * size
    assert again >= 0.9 * size, "what was kept meanwhile is in the heap of another thread"


def test_fresh_memory_without_glibc_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capi.ctypes, "CDLL", lambda _: object())
    with fresh_from(1 << 20):
        pass
