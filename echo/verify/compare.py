"""``verify``: the first training step of a plan also runs on the original graph, and the results are compared.

Both run on the user's arrays, from one random state, with made-up gradients of the outputs, before the user's own step.
Then gradients, auxiliary states and random numbers are restored, so training goes on unchanged. If the graphs differ,
no wrong result has reached the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any, Callable, Iterator, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd

from echo import native
from echo.errors import EchoError
from echo.frontend.mxnet_settings import COPIES_VARIABLE, has_one_generator
from echo.ir.graph import Graph
from echo.ir.ops import may_draw
from echo.native import function
from echo.verify.storage import Array, Difference

TOLERANCE = {"float16": 2e-3, "float32": 2e-5, "float64": 2e-5}  # of the largest element, where operators are fused
# A gradient that is zero but for rounding (a bias before BatchNorm, values after saturated gates) is compared with this
# part of the step's largest gradient. The tolerance then is 2e-6 of that one: sums over a batch leave 3e-7 of it where
# 0 is right.
FLOOR = 0.1
Arrays = Mapping[str, Array]


class UnverifiedError(EchoError):
    """A graph that cannot be verified; the message says why."""


def differences(expected: Arrays, actual: Arrays, fuses: bool) -> list[Difference]:
    """Returns the arrays that differ: in any bit or, if operators are fused, by more than the tolerance."""
    gradients = {name for name in expected if name.startswith("gradient ")}
    floor = FLOOR * max((_largest(expected[name]) for name in gradients), default=0.0)
    tried = (_difference(name, array, actual[name], fuses, floor * (name in gradients))
             for name, array in expected.items())  # fmt: skip
    return [difference for difference in tried if difference is not None]


@contextlib.contextmanager
def same_random(graph: Graph, on_gpu: bool) -> Iterator[tuple[Callable[[], None], Callable[[], Any]]]:
    """Yields two functions: to restore the random state of the beginning, as the end does, and to read the present one.

    Raises:
        UnverifiedError: the graph has operators of the user's that may do more than compute, or draws random numbers
            from where they cannot be put back.
    """
    operators = [node for node in graph.nodes if not node.is_variable]
    if any(node.op == "Custom" for node in operators):
        raise UnverifiedError("it has a Custom operator, which would run twice")
    why_not = "random numbers are drawn on a GPU" if on_gpu else random_state_blocker()
    if why_not:
        if any(may_draw(node.op, node.attrs) for node in operators):
            raise UnverifiedError(f"it draws random numbers, and {why_not}")
        yield mx.nd.waitall, lambda: None
        mx.nd.waitall()
        return
    before = random_state()
    try:
        yield functools.partial(restore_random_state, before), random_state
    finally:
        restore_random_state(before)


def _difference(name: str, expected: Array, actual: Array, fuses: bool, floor: float) -> Difference | None:
    if expected.shape == actual.shape and expected.dtype == actual.dtype:
        if expected.tobytes() == actual.tobytes():
            return None
        part = largest_part(expected.astype("float64"), actual.astype("float64"), floor)
        within = fuses and part <= TOLERANCE.get(expected.dtype.name, 0.0)
        return None if within else Difference(name, part, expected, actual)
    return Difference(name, float("nan"), expected, actual)


def largest_part(expected: Array, actual: Array, floor: float = 0.0) -> float:
    """The largest difference, as a part of the largest finite element, or of ``floor`` where that is larger.

    Infinite where only one is finite.
    """
    same = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    with np.errstate(all="ignore"):
        off = np.where(same, 0, np.abs(expected - actual)).max(initial=0)
    largest = max(_largest(expected), floor)
    if not np.isfinite(off):
        return float("inf")
    return float(off / largest) if largest else float("inf") if off else 0.0


def _largest(array: Array) -> float:
    """The size of the largest finite element."""
    return float(np.abs(array[np.isfinite(array)].astype("float64")).max(initial=0))


def head_gradients(arrays: Sequence[Any]) -> list[Any]:
    """Gradients for these outputs, always the same; the program's random generators are not asked."""
    generator = np.random.RandomState(0)
    values = [np.asarray(generator.normal(0, 1, array.shape)).astype(array.dtype) for array in arrays]
    return [mx.nd.array(value, array.context, array.dtype) for value, array in zip(values, arrays)]


def read(**kinds: Mapping[Any, Any]) -> Arrays:
    """Copies of these arrays once MXNet is idle: BatchNorm writes its states without the engine's knowing."""
    mx.nd.waitall()
    return {
        f"{kind} {name}": array.asnumpy()
        for kind, arrays in kinds.items()
        for name, array in arrays.items()
        if array is not None
    }


def step_of(executor: mx.executor.Executor) -> Arrays:
    """Outputs, gradients and auxiliary states of a training step of an executor, by the functions of MXNet's class."""
    stock = mx.executor.Executor
    stock.forward(executor, True)
    stock.backward(executor, head_gradients(executor.outputs))
    return read(output=dict(enumerate(executor.outputs)), gradient=executor.grad_dict, state=executor.aux_dict)


def call_of(op: Any, inputs: Mapping[str, Any], states: Sequence[str]) -> Arrays:
    """Outputs, gradients and auxiliary states of a recorded call of a CachedOp, on arrays of its own.

    ``states`` are the names of those inputs that are auxiliary states, which are copied first. Gradients are asked for
    if autograd records the inputs now.
    """
    mode = autograd.is_training()
    with autograd.pause():
        copies = {name: array.copy() if name in states else array.detach() for name, array in inputs.items()}
        trained = {name: copies[name] for name, array in inputs.items() if name not in states and is_recorded(array)}
        gradients = {name: _gradient_like(inputs[name]) for name in trained}
        autograd.mark_variables(list(trained.values()), list(gradients.values()))
        with autograd.record(train_mode=mode):
            outputs = op(*copies.values())
        outputs = outputs if isinstance(outputs, list) else [outputs]
        heads = [output for output in outputs if np.dtype(output.dtype).kind == "f"]
        autograd.backward(heads, head_gradients(heads), train_mode=mode)
        updated = {name: copies[name] for name in copies if name in states}
        return read(output=dict(enumerate(outputs)), gradient=gradients, state=updated)


def _gradient_like(array: Any) -> Any:
    """Zeros instead of an array's gradient: sparse where that is."""
    gradient = array.grad
    stype = "default" if gradient is None else gradient.stype
    return mx.nd.zeros(array.shape, array.context, array.dtype, stype=stype)


def is_recorded(array: Any) -> bool:
    """Whether MXNet's autograd records an array now, or the array is a variable that gets a gradient."""
    try:
        autograd.get_symbol(array)
    except mx.MXNetError:
        return False
    return True


@contextlib.contextmanager
def put_back(arrays: Sequence[Any]) -> Iterator[None]:
    """Restores the values that these arrays have now at the end."""
    mx.nd.waitall()
    copies = [(array, array.copy()) for array in arrays if array is not None]
    mx.nd.waitall()
    try:
        yield
    finally:
        mx.nd.waitall()
        for array, copy in copies:
            copy.copyto(array)
        mx.nd.waitall()


# The state of MXNet's random numbers on the CPU. Reading and restoring it wait until MXNet has done its work.


def random_state() -> bytes:
    """Returns the present state, if `random_state_blocker` is empty."""
    mx.nd.waitall()
    state = ctypes.create_string_buffer(_size())
    function(native.hook_library(), "echo_random_save", None, ctypes.c_void_p)(state)
    return state.raw


def restore_random_state(state: bytes) -> None:
    """Has MXNet draw the same numbers again as after `random_state` returned this state."""
    mx.nd.waitall()
    function(native.hook_library(), "echo_random_load", None, ctypes.c_char_p)(state)


@functools.lru_cache(maxsize=None)
def _size() -> int:
    install = function(native.hook_library(), "echo_random_install", ctypes.c_size_t, ctypes.c_char_p)
    return int(install(mx.libinfo.find_lib_path()[0].encode()))


@functools.lru_cache(maxsize=None)
def random_state_blocker() -> str:
    """Returns why the state cannot be read here, or "" if it can, which is tried once."""
    if not has_one_generator():
        return f"{COPIES_VARIABLE} is set: there are several generators"
    try:
        if not _size():
            return "libmxnet.so does not export what reading the state of random numbers needs"
        with autograd.pause():
            before = random_state()
            first, after = _drawn(), random_state()
            restore_random_state(before)
            second = _drawn()
            restore_random_state(after)
            third = _drawn()
            restore_random_state(before)
    except EchoError as error:
        return str(error)
    return "" if first == second != third else "random numbers do not come from where they are expected"


def _drawn() -> list[bytes]:
    """Numbers that are drawn in order, and in parallel."""
    ones = mx.nd.ones(100)
    arrays = [mx.nd.random.uniform(shape=100), mx.nd.Dropout(ones, mode="always"), mx.nd.random.randint(0, 9, 100)]
    return [array.asnumpy().tobytes() for array in arrays]
