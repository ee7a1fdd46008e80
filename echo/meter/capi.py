"""The part of MXNet's C interface that measuring needs, and the small graphs in which operators are timed.

Importing mxnet takes a second, for the Python functions that it makes of each operator; its library loads in a tenth.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import math
import random
from copy import copy as shallow_copy
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

CODES = {0: "f", 1: "d", 2: "e", 3: "B", 4: "i", 5: "b", 6: "q"}  # by MXNet's type flag, as the struct module has them
FLOATS = (0, 1, 2)
SIZES = {"f": 4, "d": 8, "e": 2, "B": 1, "i": 4, "b": 1, "q": 8}
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MOST_KEPT = 32 << 20  # bytes up to which glibc keeps freed memory, in a process that has freed so much at once
_NOISE = 16411  # numbers, again and again: drawing all would take longer than the measurement
_ONE_GRADIENT, _NO_GRADIENT = 1, 0  # write, null
_VARIABLE = "null"
_VERSION = {"mxnet_version": ["int", 10901]}  # MXNet upgrades no node


class MxnetError(Exception):
    """MXNet does not do this; the message is its own last line."""


class Library:
    """MXNet on one device, as its numbers for device types have it."""

    def __init__(self, path: str, extension: str, device: tuple[int, int], numpy_shape: bool) -> None:
        self._library = ctypes.CDLL(path, ctypes.RTLD_LOCAL)
        self._library.MXGetLastError.restype = ctypes.c_char_p
        self.device = device
        self._noise: dict[tuple[int, int, float, float], bytes] = {}
        # asking for all operators is what registers the older half of them
        self.call("MXListAllOpNames", ctypes.byref(ctypes.c_uint32()), ctypes.byref(ctypes.c_void_p()))
        if extension:
            self.call("MXLoadLib", extension.encode(), ctypes.c_uint(0))
        self.call("MXSetIsNumpyShape", int(numpy_shape), ctypes.byref(ctypes.c_int()))

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the C interface.

        Raises:
            MxnetError: it failed.
        """
        if getattr(self._library, name)(*arguments):
            lines = self._library.MXGetLastError().decode(errors="replace").strip().splitlines()
            raise MxnetError(lines[-1] if lines else name)

    def elsewhere(self) -> Library:
        """Returns it with another device, which is the same CPU; MXNet's thread for that one has a heap of its own."""
        library = shallow_copy(self)
        library.device = self.device[0], self.device[1] + 1
        return library

    def array(self, shape: Sequence[int], flag: int, below: int = 0, least: float = 0.1, most: float = 1.0) -> Array:
        """Noise between ``least`` and ``most``; integers below ``below``, or ones: by zero nothing can be divided.

        Raises:
            MxnetError: there are no such arrays, or they do not fit into memory.
        """
        if flag not in CODES:
            raise MxnetError(f"arrays of type {flag} cannot be made")
        noise = Array(self, shape, flag)
        key = flag, below, least, most
        if key not in self._noise:  # drawing the numbers again for each array took longer than most measurements
            self._noise[key] = _noise(*key)
        noise.fill(self._noise[key], SIZES[CODES[flag]])
        return noise

    def constant(self, shape: Sequence[int], flag: int, value: float) -> Array:
        result = Array(self, shape, flag)
        result.fill(_packed(CODES[flag], [value]), SIZES[CODES[flag]])
        return result


def _noise(flag: int, below: int, least: float, most: float) -> bytes:
    draw = random.Random(0)
    if below:
        return _packed(CODES[flag], [draw.randrange(below) for _ in range(_NOISE)])
    return _packed(CODES[flag], [draw.uniform(least, most) if flag in FLOATS else 1 for _ in range(_NOISE)])


def _packed(code: str, values: Sequence[float]) -> bytes:
    if code == "e":  # array.array knows no halves
        import struct

        return struct.pack(f"{len(values)}e", *values)
    return array.array(code, values if code in "fd" else map(int, values)).tobytes()


@contextlib.contextmanager
def fresh_from(size: int) -> Iterator[None]:
    """Makes allocations of at least ``size`` bytes use fresh pages, unless the heap has cached blocks that large.

    Without glibc, nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    mallopt(_MMAP_THRESHOLD, size)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _MOST_KEPT)
        mallopt(_TRIM_THRESHOLD, 2 * _MOST_KEPT)


class Array:
    """An array on the device of the library."""

    def __init__(self, library: Library, shape: Sequence[int], flag: int) -> None:
        self.handle = ctypes.c_void_p()
        self._library, self.shape = library, tuple(shape)
        sizes = (ctypes.c_uint32 * len(shape))(*shape)
        library.call("MXNDArrayCreateEx", sizes, ctypes.c_uint32(len(shape)), *library.device, 0, flag,
                     ctypes.byref(self.handle))  # fmt: skip

    def __del__(self) -> None:
        if self.handle:
            self._library.call("MXNDArrayFree", self.handle)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def fill(self, values: bytes, size: int) -> None:
        """Writes elements of so many bytes, from the first on and again, until the array is full."""
        buffer = values * (self.elements * size // max(1, len(values)) + 1)  # which may be longer than the array
        self._library.call("MXNDArraySyncCopyFromCPU", self.handle, buffer, ctypes.c_size_t(self.elements))

    def wait(self) -> None:
        """Returns when MXNet has done all that writes the array."""
        self._library.call("MXNDArrayWaitToRead", self.handle)


class Borrowed(Array):
    """An output of an executor, which is freed like any other array; its shape is not read."""

    def __init__(self, library: Library, handle: int) -> None:
        self.handle = ctypes.c_void_p(handle)
        self._library, self.shape = library, ()

    def like(self, value: float) -> Array:
        """Another array of its type and shape that holds one number."""
        flag, dims, shape = ctypes.c_int(), ctypes.c_int(), ctypes.POINTER(ctypes.c_int)()
        self._library.call("MXNDArrayGetDType", self.handle, ctypes.byref(flag))
        self._library.call("MXNDArrayGetShapeEx", self.handle, ctypes.byref(dims), ctypes.byref(shape))
        return self._library.constant(shape[: dims.value], flag.value, value)


class Executor:
    """A graph that is bound to arrays by name, with arrays for the gradients of all of them or of none."""

    def __init__(
        self,
        library: Library,
        graph: Mapping[str, Any],
        arrays: Mapping[str, Array],
        gradients: Mapping[str, Array] | None = None,
    ) -> None:
        self._library, self._handle = library, ctypes.c_void_p()
        symbol = ctypes.c_void_p()
        text = json.dumps(graph, ensure_ascii=False).encode()
        library.call("MXSymbolCreateFromJSON", text, ctypes.byref(symbol))
        try:
            self._bind(symbol, arrays, gradients or {})
        finally:
            library.call("MXSymbolFree", symbol)
        self.outputs = self._outputs()

    def _bind(self, symbol: ctypes.c_void_p, arrays: Mapping[str, Array], gradients: Mapping[str, Array]) -> None:
        names, states = (self._names(symbol, role) for role in ("Arguments", "AuxiliaryStates"))
        self._kept = [*arrays.values(), *gradients.values()]
        self.gradients = [gradients[name] for name in names if name in gradients]
        argument_handles = [arrays[name].handle for name in names]
        gradient_handles = [gradients[name].handle if name in gradients else None for name in names]
        requests = [_ONE_GRADIENT if name in gradients else _NO_GRADIENT for name in names]
        aux = [arrays[name].handle for name in states]
        self._library.call(
            "MXExecutorBindEX", symbol, *self._library.device, ctypes.c_uint32(0), None, None, None,
            ctypes.c_uint32(len(names)), _handles(argument_handles), _handles(gradient_handles),
            (ctypes.c_uint32 * len(requests))(*requests),
            ctypes.c_uint32(len(aux)), _handles(aux), None, ctypes.byref(self._handle),
        )  # fmt: skip

    def _names(self, symbol: ctypes.c_void_p, role: str) -> list[str]:
        size, names = ctypes.c_uint32(), ctypes.POINTER(ctypes.c_char_p)()
        self._library.call(f"MXSymbolList{role}", symbol, ctypes.byref(size), ctypes.byref(names))
        return [names[i].decode() for i in range(size.value)]

    def _outputs(self) -> list[Borrowed]:
        size, handles = ctypes.c_uint32(), ctypes.POINTER(ctypes.c_void_p)()
        self._library.call("MXExecutorOutputs", self._handle, ctypes.byref(size), ctypes.byref(handles))
        return [Borrowed(self._library, handles[i]) for i in range(size.value)]

    def __del__(self) -> None:
        if self._handle:
            self._library.call("MXExecutorFree", self._handle)

    def forward(self, times: int = 1) -> None:
        """Runs the graph forward in training mode, ``times`` times, and waits for its outputs."""
        for _ in range(times):
            self._library.call("MXExecutorForward", self._handle, 1)
        for output in self.outputs:
            output.wait()

    def step(self, heads: Sequence[Array], times: int = 1) -> None:
        """Runs the graph forward and backward, so many times, and waits for outputs and gradients."""
        handles = _handles([head.handle for head in heads])
        for _ in range(times):
            self._library.call("MXExecutorForward", self._handle, 1)
            self._library.call("MXExecutorBackwardEx", self._handle, ctypes.c_uint32(len(heads)), handles, 1)
        for written in [*self.outputs, *self.gradients]:
            written.wait()


def _handles(handles: Sequence[ctypes.c_void_p | None]) -> Any:
    return (ctypes.c_void_p * len(handles))(*(None if handle is None else handle.value for handle in handles))


# A small graph in which one operator can be timed, as data that goes from one process to another.


class Variable(NamedTuple):
    """An input: shape, MXNet's type flag, whether oneDNN lays it out, the bound of its integers (0: it holds reals)."""

    shape: tuple[int, ...]
    flag: int = 0
    blocked: bool = False
    below: int = 0


class Microbenchmark(NamedTuple):
    """A node to be timed.

    ``inputs`` are the node's variables; a number in their place is an output of ``forward``, the operator that a
    gradient belongs to, with its own ``forward_inputs``. ``outputs`` are those that are read. ``hot`` nodes find their
    inputs in the caches, ``heavy`` ones take time by their arithmetic; a copy reads and writes so many ``bytes``. The
    node may overwrite its input ``over`` (-1: none), which is then a copy of the variable. Blocks of at least ``fresh``
    bytes that the node allocates while it runs come again from the system; 0 leaves that to the C library.
    """

    op: str
    attrs: Mapping[str, str]
    inputs: tuple[Variable | int, ...]
    outputs: tuple[int, ...] = (0,)
    forward: str = ""
    forward_inputs: tuple[Variable, ...] = ()
    hot: bool = True
    heavy: bool = False
    bytes: int = 1
    over: int = -1
    fresh: int = 0

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Microbenchmark:
        """Reads what ``json.loads`` makes of ``json.dumps(microbenchmark._asdict())``."""
        inputs = tuple(item if isinstance(item, int) else variable(item) for item in value["inputs"])
        outputs, forward_inputs = tuple(value["outputs"]), tuple(map(variable, value["forward_inputs"]))
        return Microbenchmark(**{**value, "inputs": inputs, "outputs": outputs, "forward_inputs": forward_inputs})

    def variables(self, copies: int) -> dict[str, Variable]:
        """The variables of `graph` by name."""
        named = {f"forward_{i}": operand for i, operand in enumerate(self.forward_inputs)}
        for copy in range(copies):
            for i, item in enumerate(self.inputs):
                if isinstance(item, Variable):
                    named[self._name(copy, i)] = item
        return named

    def _name(self, copy: int, position: int) -> str:
        return f"copy{0 if self.hot else copy}_{position}"

    def graph(self, copies: int, overhead: bool = False) -> dict[str, Any]:
        """So many copies of the node as NNVM's JSON value; hot ones read the same inputs.

        With ``overhead``, only the nodes that a run needs in addition to the copies.
        """
        nodes: list[dict[str, Any]] = [{"op": _VARIABLE, "name": name, "inputs": []} for name in self.variables(copies)]
        number = {node["name"]: i for i, node in enumerate(nodes)}
        arguments = list(range(len(nodes)))
        heads: list[list[int]] = []
        above: list[int] = []
        if self.forward:
            above = [len(nodes)]
            heads.append([len(nodes), 0, 0])
            inputs = [[number[f"forward_{i}"], 0, 0] for i in range(len(self.forward_inputs))]
            nodes.append({"op": self.forward, "name": "forward", "attrs": dict(self.attrs), "inputs": inputs})
        for copy in range(copies):
            inputs = [
                [number[self._name(copy, i)], 0, 0] if isinstance(item, Variable) else [above[0], item, 0]
                for i, item in enumerate(self.inputs)
            ]
            if self.over >= 0:
                inputs[self.over] = [len(nodes), 0, 0]
                variable_ = number[self._name(copy, self.over)]
                nodes.append({"op": "_copy", "name": f"over{copy}", "attrs": {}, "inputs": [[variable_, 0, 0]]})
            if overhead:
                heads.extend([] if self.over < 0 else [[len(nodes) - 1, 0, 0]])
                continue
            heads.extend([len(nodes), output, 0] for output in self.outputs)
            nodes.append(self._node(copy, inputs, above))
        return {"nodes": nodes, "arg_nodes": arguments, "heads": heads, "attrs": _VERSION}

    def _node(self, copy: int, inputs: list[list[int]], above: list[int]) -> dict[str, Any]:
        # without a difference in attributes MXNet would merge the copies into one
        attrs = {**self.attrs, "__copy__": str(copy)}
        return {"op": self.op, "name": f"node{copy}", "attrs": attrs, "inputs": inputs, "control_deps": above}


def variable(value: Any) -> Variable:
    shape, *more = value
    return Variable(tuple(shape), *more)
