"""A small graph in which one operator can be timed, as data that goes from one process to another."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

_VARIABLE = "null"
_VERSION = {"mxnet_version": ["int", 10901]}  # MXNet upgrades no node


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
    inputs in the caches, ``heavy`` ones take time by their arithmetic; ``bytes`` is what a copy reads and writes. The
    node may overwrite its input ``over`` (-1: none), which is then a copy of the variable. What the node allocates
    while it runs comes again from the system where it has at least ``fresh`` bytes; 0 leaves that to the C library.
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

    def graph(self, copies: int, beside: bool = False) -> dict[str, Any]:
        """So many copies of the node as NNVM's JSON value; hot ones read the same inputs.

        With ``beside``, all that stands alongside the copies, without them.
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
            if beside:
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
    """A variable from JSON."""
    shape, *more = value
    return Variable(tuple(shape), *more)
