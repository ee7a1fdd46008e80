"""MXNet's own RNN operator, as the layers of gluon.rnn and mx.rnn.FusedRNNCell have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, NamedTuple, Sequence

from echo.ir.graph import Entry, Node
from echo.ir.op_spec import is_true
from echo.passes.patterns.graph_view import Fusion, Pattern, View, local, split_attrs
from echo.passes.patterns.recurrent_layers import ACTS, layer_node

_DIRECTIONS = 2
_SILENT = ", whose dropout MXNet leaves out on CPUs"


class _Mode(NamedTuple):
    """The kernel of a mode, its gates and states, and what its layers are called.

    ``reserve``: so many times its output the operator keeps for its gradient, where no planner sees it: at least the
    gates, the states, and of a GRU the product with the state, of each step (MXNet's and cuDNN's reserve). oneDNN keeps
    ``in_onednn`` times, at least: processes grew by 15, 12 and 6 times for layers of 128 to 512 units.
    """

    kernel: str
    gates: int
    states: int
    label: str
    reserve: int
    in_onednn: int
    attrs: Mapping[str, str] = {}


_MODES: Mapping[str, _Mode] = {
    "lstm": _Mode("lstm_layer", 4, 2, "LSTM", 6, 12), "gru": _Mode("gru_layer", 3, 1, "GRU", 5, 10),
    **{f"rnn_{name}": _Mode("rnn_layer", 1, 1, f"{name} RNN", 2, 5, {"act": act}) for name, act in ACTS.items()},
}  # fmt: skip


def match_rnn(view: View, number: int) -> Fusion | str | None:
    """The layers of this node: a fusion, why there is none, or None where it is no RNN."""
    node = view.graph.nodes[number]
    if node.op != "RNN":
        return None
    attrs = node.attrs
    mode = _MODES.get(attrs.get("mode", ""))
    if mode is None:
        return f"an RNN operator of mode {attrs.get('mode')}"
    layers = int(attrs.get("num_layers", "1"))
    drops = float(attrs.get("p", "0")) > 0 and layers > 1
    if drops and not view.setting.onednn_rnn:
        return "an RNN operator with dropout between its layers"
    for option in ("projection_size", "lstm_state_clip_min", "lstm_state_clip_max"):
        if attrs.get(option, "None") != "None":
            return f"an RNN operator with {option}"
    if is_true(attrs, "use_sequence_length"):
        return "an RNN operator with sequence lengths"
    build = _Build(view, number, mode, layers, _DIRECTIONS if is_true(attrs, "bidirectional") else 1)
    weights = build.weights()
    if weights is None:
        return "a bidirectional RNN operator with packed parameters"
    fusion = build.fusion(weights)
    return replace(fusion, label=fusion.label + _SILENT, dtypes=("float32",)) if drops else fusion


class _Build:
    def __init__(self, view: View, number: int, mode: _Mode, layers: int, directions: int) -> None:
        self.view, self.number, self.mode, self.node = view, number, mode, view.graph.nodes[number]
        self.layers, self.directions = layers, directions
        self.hidden = int(self.node.attrs["state_size"])
        self.nodes: list[Node] = []

    def add(self, op: str, inputs: Sequence[Entry], attrs: dict[str, str]) -> Entry:
        name = f"{self.node.name}_echo{len(self.nodes)}"
        self.nodes.append(Node(op, name, tuple(inputs), attrs=attrs))
        return local(len(self.nodes) - 1)

    def weights(self) -> list[tuple[Entry, Entry, Entry, Entry]] | None:
        """The weights wi, bi, wh, bh of each layer and direction; None where only shapes would tell them apart."""
        packed = self.node.inputs[1]
        source = self.view.node(packed)
        cells = self.layers * self.directions
        if source.op == "_rnn_param_concat" and len(source.inputs) == 4 * cells:
            parts = [self.view.inputs(entry, ("Reshape",)) for entry in source.inputs]
            if all(parts):
                flat = [part[0] for part in parts if part]
                return [(flat[2 * cell], flat[2 * (cells + cell)], flat[2 * cell + 1], flat[2 * (cells + cell) + 1])
                        for cell in range(cells)]  # fmt: skip
        return self._unpacked(packed) if self.directions == 1 else None

    def _unpacked(self, packed: Entry) -> list[tuple[Entry, Entry, Entry, Entry]]:
        """Slices of the vector of all weights, then all biases; their offsets from its end need no shapes."""
        gates, end = self.mode.gates * self.hidden, 0
        parts: dict[str, list[Entry]] = {"bias": [], "weight": []}
        sizes = [("bias", gates)] * 2 * self.layers
        sizes += [("weight", gates * self.hidden)] * (2 * self.layers - 1) + [("weight", 0)]
        for role, size in sizes:
            begin = f"-{-end + size}" if size else "0"
            limits = {"axis": "0", "begin": begin, "end": str(end) if end else "None"}
            part = self.add("slice_axis", [packed], limits)
            if role == "weight":
                part = self.add("Reshape", [part], {"shape": f"({gates},-1)"})
            parts[role].append(part)
            end -= size
        bias, weight = parts["bias"][::-1], parts["weight"][::-1]
        return [(weight[2 * layer], bias[2 * layer], weight[2 * layer + 1], bias[2 * layer + 1])
                for layer in range(self.layers)]  # fmt: skip

    def states(self, entry: Entry) -> list[Entry]:
        """The state of each layer and direction, [B,H], from [L*D,B,H]."""
        cells = self.layers * self.directions
        if cells == 1:
            return [self.add("Reshape", [entry], {"shape": "(-3,-2)"})]
        split = self.add("SliceChannel", [entry], split_attrs(0, cells))
        return [Entry(split.node, index) for index in range(cells)]

    def together(self, states: list[Entry]) -> Entry:
        return self.add("stack", states, {"axis": "0", "num_args": str(len(states))})

    def fusion(self, weights: list[tuple[Entry, Entry, Entry, Entry]]) -> Fusion:
        data, _, *first_states = self.node.inputs[: 2 + self.mode.states]
        states = [self.states(state) for state in first_states]
        x, last = data, [list[Entry]() for _ in first_states]
        for layer in range(self.layers):
            outputs = []
            for direction in range(self.directions):
                at = layer * self.directions + direction
                name = f"{self.node.name}_echo{len(self.nodes)}"
                first = [state[at] for state in states]
                self.nodes.append(layer_node(self.mode.kernel, name, x, weights[at], first, direction == 1,
                                             self.mode.attrs))  # fmt: skip
                of_layer = local(len(self.nodes) - 1).node
                outputs.append(Entry(of_layer, 0))
                for number, entries in enumerate(last):
                    entries.append(Entry(of_layer, 1 + number))
            x = outputs[0] if len(outputs) == 1 else self.add("Concat", outputs, {"dim": "2", "num_args": "2"})
        outputs_of = {Entry(self.number, 0): x}
        if is_true(self.node.attrs, "state_outputs"):
            outputs_of.update({Entry(self.number, 1 + k): self.together(entries) for k, entries in enumerate(last)})
        shape = f"{self.layers * self.directions},B,H"
        reserve = self.mode.in_onednn if self.view.setting.onednn_rnn else self.mode.reserve
        return Fusion(
            pattern=RNN.name,
            anchor=self.number,
            nodes=tuple(self.nodes),
            outputs=outputs_of,
            replaced=frozenset({self.number}),
            shapes={data: "T,B,I", **dict.fromkeys(first_states, shape)},
            label=f"an RNN operator of {self.layers} {self.mode.label} layers"
            + (", both ways" if self.directions > 1 else ""),
            hidden_bytes=(reserve * self.layers, Entry(self.number, 0)),
        )


RNN = Pattern("rnn", frozenset({"RNN"}), match_rnn)
