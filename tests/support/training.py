"""Training runs whose every bit is kept, for tests that compare two of them."""

from __future__ import annotations

from typing import Any, Mapping

import mxnet as mx
import numpy as np

from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, symbol_of
from echo.plans.decisions import mark

TOLERANCE = 2e-5  # of the largest element of an array: what float32 allows over some ten steps
Record = Mapping[str, Any]  # every output, gradient, auxiliary state of every step, by a readable name


def random_arrays(
    symbol: mx.sym.Symbol,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str = "float32",
    limits: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """An array for each argument: normal values of deviation 0.3, or integers below a limit.

    ``dtype`` is that of the inputs whose shapes are given; the other types follow.
    """
    generator = np.random.RandomState(0)
    arg_shapes, _, _ = symbol.infer_shape(**shapes)
    arg_types, _, _ = symbol.infer_type(**dict.fromkeys(shapes, dtype))
    values = {}
    for name, shape, kind in zip(symbol.list_arguments(), arg_shapes, arg_types):
        limit = (limits or {}).get(name)
        drawn = generator.normal(0, 0.3, shape) if limit is None else generator.randint(0, limit, shape)
        values[name] = drawn.astype(kind)
    return values


def requests(symbol: mx.sym.Symbol, grad_req: str | Mapping[str, str]) -> dict[str, str]:
    """One word for each argument."""
    names = symbol.list_arguments()
    return {name: grad_req if isinstance(grad_req, str) else grad_req.get(name, "null") for name in names}


def bind(
    symbol: mx.sym.Symbol, values: Mapping[str, Any], grad_req: str | Mapping[str, str] = "write"
) -> mx.executor.Executor:
    """Binds copies of these values; gradients and auxiliary states start as ones."""
    wanted = requests(symbol, grad_req)
    args = {name: mx.nd.array(value, dtype=value.dtype) for name, value in values.items()}
    gradients = {
        name: mx.nd.ones(array.shape, dtype=array.dtype) for name, array in args.items() if wanted[name] != "null"
    }
    _, _, aux_shapes = symbol.infer_shape(**{name: value.shape for name, value in values.items()})
    _, _, aux_types = symbol.infer_type(**{name: value.dtype for name, value in values.items()})
    aux = {
        name: mx.nd.ones(shape, dtype=kind)
        for name, shape, kind in zip(symbol.list_auxiliary_states(), aux_shapes, aux_types)
    }
    return symbol.bind(mx.cpu(), args, gradients, wanted, aux)


def train(executor: mx.executor.Executor, steps: int = 3, rate: float = 0.01) -> dict[str, Any]:
    """Plain SGD; the gradients of the outputs are random. The random stream after each step is recorded too."""
    seen = {}
    for step in range(steps):
        mx.random.seed(step)
        executor.forward(is_train=True)
        executor.backward(_head_gradients(executor, step))
        seen.update({f"step {step}: {name}": value for name, value in arrays(executor).items()})
        seen[f"step {step}: random stream"] = mx.nd.random.uniform(shape=(64,)).asnumpy()
        for name, gradient in executor.grad_dict.items():
            if gradient is not None:
                executor.arg_dict[name][:] -= rate * gradient
    return seen


def _head_gradients(executor: mx.executor.Executor, seed: int) -> list[mx.nd.NDArray]:
    generator = np.random.RandomState(seed)
    return [mx.nd.array(generator.normal(0, 1, out.shape), dtype=out.dtype) for out in executor.outputs]


def arrays(executor: mx.executor.Executor) -> dict[str, Any]:
    """Outputs, gradients and auxiliary states now."""
    # on CPUs BatchNorm writes its moving statistics in backward, and the engine does not know
    mx.nd.waitall()
    kinds = {
        "output": dict(enumerate(executor.outputs)),
        "gradient": executor.grad_dict,
        "aux": executor.aux_dict,
    }
    return {
        f"{kind} {name}": array.asnumpy()
        for kind, found in kinds.items()
        for name, array in found.items()
        if array is not None
    }


def assert_same(got: Record, expected: Record) -> None:
    """The same names, types and shapes, and the same bits."""
    assert got.keys() == expected.keys()
    wrong = [
        name
        for name, value in expected.items()
        if (got[name].shape, got[name].dtype, got[name].tobytes()) != (value.shape, value.dtype, value.tobytes())
    ]
    assert not wrong, f"{len(wrong)} of {len(expected)} arrays differ: {', '.join(wrong[:6])}"


def assert_close(got: Record, expected: Record, tolerance: float = TOLERANCE) -> None:
    """The same names, types and shapes; numbers that differ by no more than this part of the largest in their array."""
    assert got.keys() == expected.keys()
    wrong = []
    for name, value in expected.items():
        assert (got[name].shape, got[name].dtype) == (value.shape, value.dtype), name
        if value.dtype.kind == "f":
            largest = float(np.abs(got[name] - value).max(initial=0)) / max(float(np.abs(value).max(initial=0)), 1e-30)
            wrong += [f"{name} by {largest:.1e}"] if not largest <= tolerance else []
        elif not np.array_equal(got[name], value):
            wrong.append(name)
    assert not wrong, f"{len(wrong)} of {len(expected)} arrays differ: {', '.join(wrong[:6])}"


def assert_alive(seen: Record) -> None:
    """Finite values and gradients that are not all zero: bits that are worth comparing."""
    broken = [name for name, value in seen.items() if not np.isfinite(value).all()]
    assert not broken, f"not finite: {broken[:6]}"
    assert any(value.any() for name, value in seen.items() if "gradient" in name)


def recomputing(symbol: mx.sym.Symbol, names: Mapping[str, list[int]], hook: bool = True) -> mx.sym.Symbol:
    """The symbol with these outputs of these nodes marked, for the native hook or for MXNet's own mirroring."""
    assert install_hook() == ""
    graph = graph_of(symbol)
    marked = {number: names[node.name] for number, node in enumerate(graph.nodes) if node.name in names}
    assert len(marked) == len(names)
    return symbol_of(mark(graph, marked, hook))
