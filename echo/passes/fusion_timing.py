"""Fused operators that may be slower than the libraries that MXNet uses on GPUs: these have to be timed first.

There MXNet's own operators are those of cuDNN and cuBLAS, with tensor cores. Where both forms were timed on the user's
device and the fused one is not slower, it takes their place; with ``fuse="memory"`` or a memory budget it always
does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Mapping

from echo.estimators.cost_model import UnavailableError, UnmeasurableError
from echo.ir.graph import VARIABLE, Entry, Graph, Node
from echo.ir.training_node import TensorType
from echo.passes.patterns.apply import Types
from echo.passes.patterns.attention import ATTENTION
from echo.passes.patterns.graph_view import Fusion, View, plain
from echo.passes.patterns.recurrent_layers import GRU_LAYER, LSTM_LAYER, RNN_LAYER
from echo.passes.patterns.rnn import RNN
from echo.passes.patterns.single_operators import BIAS_ACT
from echo.passes.patterns.softmax_loss import CROSS_ENTROPY, SOFTMAX_OUTPUT
from echo.passes.patterns.substitute import applied
from echo.passes.request import Request
from echo.system.files import digest_of

# Both forms of a fusion as small graphs that can be timed: the user's operators, and the fused one.

_PACKING = frozenset({"Reshape", "_rnn_param_concat"})  # weights on their way into an RNN operator


@dataclass(frozen=True)
class FusionSample:
    """``own`` has the user's operators, ``fused`` the fused one; ``types`` are those of the variables, by name."""

    own: Graph
    fused: Graph
    types: Mapping[str, TensorType]


def sample(view: View, fusion: Fusion, types: Types, rows: Mapping[str, int] | None = None) -> FusionSample:
    """The sample of a fusion; ``rows`` gives sizes of its shapes ("N", "T") other values than they have.

    Lengths of attention are nearly those of all keys, and what gets no gradient in the original graph gets none.
    """
    build = _Made(view, fusion, types, rows or {})
    heads = tuple(build.put(entry) for entry in fusion.outputs)
    nodes = tuple(
        node._with(inputs=tuple(map(build.new, node.inputs)), name=f"f{number}")
        for number, node in enumerate(fusion.nodes)
    )
    unfused = Graph.of(build.nodes, heads, build.counts)
    outputs = dict(zip(heads, map(build.new, fusion.outputs.values())))
    moved = replace(fusion, nodes=nodes, outputs=outputs, replaced=frozenset(head.node for head in heads))
    fused = applied(unfused, [moved], copies=False)
    assert fused is not None, "what a fusion reads does not depend on what it computes"
    return FusionSample(unfused, fused, build.variables)


class _Made:
    """The nodes of a sample while it is made, and where the user's entries are in it."""

    def __init__(self, view: View, fusion: Fusion, types: Types, rows: Mapping[str, int]) -> None:
        self._view, self._fusion, self._types, self._rows = view, fusion, types, rows
        reads = (*fusion.shapes, *(entry for node in fusion.nodes for entry in node.inputs))
        self._leaves = {plain(entry) for entry in reads if entry.node >= 0 and entry.node not in fusion.replaced}
        self.nodes: list[Node] = []
        self.counts: list[int] = []  # of their outputs
        self._at: dict[Entry, Entry] = {}
        self._numbers: dict[int, int] = {}
        self.variables: dict[str, TensorType] = {}

    def put(self, entry: Entry) -> Entry:
        """Returns the sample's entry for one of the user's, and adds the nodes that compute it if they are missing."""
        entry = plain(entry)
        if entry not in self._at:
            self._at[entry] = self._variable(entry) if self._is_read(entry) else self._computed(entry)
        return self._at[entry]

    def new(self, entry: Entry) -> Entry:
        """Returns the sample's entry for one that the fusion reads; those of the fusion's own nodes stay."""
        return self.put(entry) if entry.node >= 0 else entry

    def _is_read(self, entry: Entry) -> bool:
        node = self._view.node(entry)
        inside = entry.node in self._fusion.replaced or node.op in _PACKING
        return entry in self._leaves or node.is_variable or not inside

    def _variable(self, entry: Entry) -> Entry:
        name = f"x{len(self.variables)}"
        self.variables[name] = self._type(entry)
        at = self._add(Node(VARIABLE, name), 1)
        if self._fusion.pattern == ATTENTION.name and self._fusion.shapes.get(entry) == "N":
            keys = next(self._types[keys].shape[1] for keys, text in self._fusion.shapes.items() if text == "N,S,D")
            at = self._add(Node("_plus_scalar", name + "_length", (at,), attrs={"scalar": str(keys)}), 1)
        if self._view.is_constant(entry):
            at = self._add(Node("BlockGrad", name + "_constant", (at,)), 1)
        return at

    def _type(self, entry: Entry) -> TensorType:
        tensor, text = self._types[entry], self._fusion.shapes.get(entry, "")
        shape = list(tensor.shape)
        if not text and self._fusion.pattern == CROSS_ENTROPY.name:  # the label, of any type
            scores = next(read for read, form in self._fusion.shapes.items() if form == "...R,V")
            text = "R,1" if len(shape) == len(self._types[scores].shape) else "R"
        for axis, letter in enumerate(reversed(text.replace("...", "").split(",")), 1):
            letter = letter.strip("?#")
            if letter in self._rows and axis <= len(shape) and shape[-axis] > 1:
                shape[-axis] = self._rows[letter]
        return replace(tensor, shape=tuple(shape))

    def _computed(self, entry: Entry) -> Entry:
        if entry.node not in self._numbers:
            node = self._view.graph.nodes[entry.node]
            inputs = tuple(map(self.put, node.inputs))
            attrs = {name: text for name, text in node.attrs.items() if not name.startswith("__")}
            self._numbers[entry.node] = len(self.nodes)
            node = Node(node.op, f"n{len(self.nodes)}", inputs, attrs=attrs)
            self._add(node, self._view.graph.num_outputs(entry.node))
        return Entry(self._numbers[entry.node], entry.index)

    def _add(self, node: Node, outputs: int) -> Entry:
        self.nodes.append(node)
        self.counts.append(outputs)
        return Entry(len(self.nodes) - 1)


OWN, FUSED = "own", "fused"
# Which fusions are timed, and when one is profitable.

# Which of its sizes makes a pattern's operators as much smaller: feature maps of at most so many bytes are timed.
_ROWS = {
    RNN.name: "T", ATTENTION.name: "N", BIAS_ACT.name: "N", SOFTMAX_OUTPUT.name: "N", CROSS_ENTROPY.name: "R",
    LSTM_LAYER.name: "B", GRU_LAYER.name: "B", RNN_LAYER.name: "B",
}  # fmt: skip
_LAYERS = {LSTM_LAYER.name, GRU_LAYER.name, RNN_LAYER.name}
_MOST_BYTES = 256 << 20
_WIDE = 64  # up to here attention's tiles hold a whole row
# On an H200 (``benchmarks/results/gpu_check.json``), attention of up to so many keys is faster than separate operators,
# of 256 slower; layers of fewer units are 5 to 36 times faster, and the lead shrinks with the units.
_FEW_KEYS = 64
_MANY_UNITS = 1024
_HOW = "fuse='memory' takes it all the same"


def may_be_slower(fusion: Fusion, types: Types) -> bool:
    """Whether a fused operator may be slower than what it takes the place of, on a GPU."""
    if fusion.pattern == CROSS_ENTROPY.name:
        return "V,I" in fusion.shapes.values()  # with the layer's products
    shapes = [(types[entry].shape, text) for entry, text in fusion.shapes.items()]
    if fusion.pattern in _LAYERS:
        return any(shape[-1] >= _MANY_UNITS for shape, text in shapes if text == "B,H")
    if fusion.pattern != ATTENTION.name:
        return fusion.pattern in _ROWS
    if any(_size(shape, text, "S") > _FEW_KEYS for shape, text in shapes if "S" in _names(text)):
        return True
    return any(shape[-1] > _WIDE for shape, text in shapes if text.endswith((",D", ",V")))


@dataclass
class FusionProfitability:
    """Says why the user's own operators stay: the fused one is slower here, or was not timed; empty where it is not.

    ``limit``, ``all_limit``: seconds that measuring one pair may take, and all of them.
    """

    request: Request
    limit: float = 1.0
    all_limit: float = 3.0

    def __post_init__(self) -> None:
        self._end = time.perf_counter() + min(self.all_limit, self.request.deadline.with_room().left / 2)

    def __call__(self, fusion: Fusion, types: Types) -> str:
        if not may_be_slower(fusion, types) or self.request.framework.why_no_fusion:
            return ""
        pair = _of_most_bytes(View(self.request.graph), fusion, types)
        key = _key(pair)
        reasons = self.request.timed
        if key not in reasons:
            reasons[key] = self._why(fusion, pair, key)
        return reasons[key]

    def _why(self, fusion: Fusion, pair: FusionSample, key: str) -> str:
        table = self.request.framework.cost_table()
        names = {form: f"{form} form of {fusion.label}: {key}" for form in (OWN, FUSED)}
        seconds = {form: table.get(name) for form, name in names.items()}
        if None in seconds.values():
            times = self._timed(fusion, pair)
            if isinstance(times, str):
                return f"it was not timed on this device: {times} ({_HOW})"
            for form, name in names.items():
                table.add(name, times[form])
            table.save()
            seconds = dict(times)
        own, fused = 1e3 * (seconds[OWN] or 0.0), 1e3 * (seconds[FUSED] or 0.0)
        return "" if fused <= own else f"slower on this device: {fused:.3g} ms, MXNet's own {own:.3g} ms ({_HOW})"

    def _timed(self, fusion: Fusion, pair: FusionSample) -> Mapping[str, float] | str:
        limit = min(self.limit, self._end - time.perf_counter())
        late = f"that would take more than {max(limit, 0):.1f} s"
        if limit <= 0:
            return late
        self.request.progress(f"fuse: timing {fusion.label}")
        try:
            seconds = self.request.framework.race({OWN: pair.own, FUSED: pair.fused}, pair.types, limit)
        except (UnmeasurableError, UnavailableError) as error:
            return str(error)
        return late if seconds is None else seconds


def _of_most_bytes(view: View, fusion: Fusion, types: Types) -> FusionSample:
    """The sample of a fusion, with as many rows as keep the arrays of both forms and their gradients small enough.

    Weights do not get smaller with the rows, and do not count: with a few rows alongside them nothing could be
    compared.
    """
    letter = _ROWS[fusion.pattern]
    names = {name for text in fusion.shapes.values() for name in _names(text)}
    if letter not in names or "b" in names:  # rows are batches of heads, which reshapes inside take apart
        return sample(view, fusion, types)
    rows = next(
        _size(types[entry].shape, text, letter) for entry, text in fusion.shapes.items() if letter in _names(text)
    )
    inside = {Entry(number) for number in fusion.replaced} | set(fusion.shapes) | set(fusion.outputs)
    by_rows = (entry for entry in inside if entry in types and letter in fusion.shapes.get(entry, letter))
    total = 4 * sum(types[entry].bytes for entry in by_rows)
    return sample(view, fusion, types, {letter: max(1, min(rows, rows * _MOST_BYTES // max(1, total)))})


def _names(text: str) -> list[str]:
    return [name.strip("?#") for name in text.replace("...", "").split(",")]


def _size(shape: tuple[int, ...], text: str, letter: str) -> int:
    names = _names(text)
    return shape[names.index(letter) - len(names)]


def _key(made: FusionSample) -> str:
    """A text that is equal for equal graphs on equal arrays."""
    types = ", ".join(f"{name} {tensor}" for name, tensor in made.types.items())
    return f"{types}; {digest_of(str(made.own.to_json()), str(made.fused.to_json()).encode())[:16]}"
