"""What a plan is made for: a graph, the arrays that it is bound with, and what runs it.

Two subjects are equal where a plan of one is a plan of the other, in any process. Names do not count: Gluon and MXNet
number them anew in each process, and nothing that is planned depends on them. Nor do attributes of variables (initial
values, learning rates, shapes that were not known yet): what counts of a variable is the array that it is bound to.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Iterator, Mapping, Sequence

from echo.errors import GraphError
from echo.graph import Graph
from echo.training_graph import EXECUTOR, RUNNERS

AUXILIARY = "auxiliary"  # in place of a gradient request, for what is no argument
_REQUESTS = ("write", "add", "null", AUXILIARY)
_SCOPE = "__profiler_scope__"  # a name, too; but MXNet merges equal nodes only where it is the same
_RUNNER_NAMES = {EXECUTOR: "an executor", **{name: f"a {name} CachedOp" for name in RUNNERS if name != EXECUTOR}}


@dataclass(frozen=True)
class Argument:
    """An array that a graph is bound with; ``request`` is "write", "add", "null", or "auxiliary" for a state."""

    shape: tuple[int, ...]
    dtype: str
    request: str


@dataclass(frozen=True)
class Subject:
    """What a plan is made for.

    ``graph`` is a digest of operators, their attributes and how they are connected; ``operators`` counts them.
    ``arguments`` come in the symbol's order, auxiliary states last. ``device`` is "cpu" or "gpu", whatever its number,
    ``runner`` one of `echo.training_graph.RUNNERS`, and ``settings`` are variables that change what MXNet plans.
    """

    graph: str
    operators: Mapping[str, int]
    arguments: tuple[Argument, ...]
    device: str
    runner: str
    settings: Mapping[str, str]

    @cached_property
    def fingerprint(self) -> str:
        """A text of 32 characters that is equal for equal subjects, whatever the process, Python or hash seed."""
        return _digest(self.to_json())

    def differences(self, got: Subject, names: Sequence[str]) -> Iterator[str]:
        """What another subject has that this one has not, in words; ``names`` are those of its arguments."""
        if self.device != got.device:
            yield f"device: expected {self.device}, got {got.device}"
        if self.runner != got.runner:
            yield f"runner: expected {_RUNNER_NAMES[self.runner]}, got {_RUNNER_NAMES[got.runner]}"
        for name in sorted({*self.settings, *got.settings}):
            expected, found = self.settings.get(name, ""), got.settings.get(name, "")
            if expected != found:
                yield f"{name}: expected {expected!r}, got {found!r}"
        if self.graph != got.graph:
            yield f"graph: {self._other_graph(got)}"
            return
        for name, one, other in zip(names, self.arguments, got.arguments):
            for what, field in (("shape", "shape"), ("type", "dtype"), ("grad_req", "request")):
                if getattr(one, field) != getattr(other, field):
                    yield f"argument {name!r}: expected {what} {getattr(one, field)}, got {getattr(other, field)}"

    def _other_graph(self, got: Subject) -> str:
        expected, found = Counter(self.operators), Counter(got.operators)
        if expected == found:
            return "the same operators, with other attributes or connected in another way"
        changes = [f"{count} more {op}" for op, count in sorted((found - expected).items())]
        changes += [f"{count} fewer {op}" for op, count in sorted((expected - found).items())]
        few = ", ".join(changes[:6]) + (", ..." if len(changes) > 6 else "")
        return f"expected {sum(expected.values())} operators, got {sum(found.values())} ({few})"

    def to_json(self) -> dict[str, Any]:
        """The subject as a JSON value."""
        arguments = [[list(argument.shape), argument.dtype, argument.request] for argument in self.arguments]
        return {**self._fields(), "arguments": arguments}

    def _fields(self) -> dict[str, Any]:
        return {
            "graph": self.graph, "operators": dict(self.operators), "device": self.device, "runner": self.runner,
            "settings": dict(self.settings),
        }  # fmt: skip

    @staticmethod
    def from_json(value: Any) -> Subject:
        """Reads what `to_json` wrote.

        Raises:
            GraphError: a field is missing, unknown or of another type; the message names it.
        """
        try:
            found = Subject(**{**value, "arguments": tuple(map(_argument, value["arguments"]))})
        except (KeyError, TypeError, ValueError) as error:
            raise GraphError(f"subject: {type(error).__name__}: {error}") from error
        for name in ("graph", "device", "runner"):
            _check(name, isinstance(getattr(found, name), str), "a text", getattr(found, name))
        _check("runner", found.runner in RUNNERS, f"one of {', '.join(RUNNERS)}", found.runner)
        for name, kind, what in (("operators", int, "counts"), ("settings", str, "texts")):
            mapping = getattr(found, name)
            whole = isinstance(mapping, dict) and all(type(item) is kind for item in mapping.values())
            _check(name, whole, f"a mapping of names to {what}", mapping)
        return found


def _check(name: str, fits: bool, expected: str, got: object) -> None:
    if not fits:
        raise GraphError(f"subject: {name} must be {expected}, got {got!r}")


def _argument(value: Any) -> Argument:
    shape, dtype, request = value
    whole = isinstance(shape, list) and all(type(size) is int for size in shape)
    _check("arguments", whole, "shapes of whole numbers", shape)
    _check("arguments", isinstance(dtype, str), "types by name", dtype)
    _check("arguments", request in _REQUESTS, f"requests of {', '.join(_REQUESTS)}", request)
    return Argument(tuple(shape), dtype, request)


def digest(graph: Graph) -> str:
    """A text that is equal for graphs of the same structure and attributes under any names."""
    return _digest(_structure(graph, {}))


def operators(graph: Graph) -> dict[str, int]:
    """How many nodes of each operator there are."""
    return dict(Counter(node.op for node in graph.nodes if not node.is_variable))


def _structure(graph: Graph, scopes: dict[str, int]) -> Any:
    nodes = []
    for node in graph.nodes:
        attrs: dict[str, Any] = {} if node.is_variable else dict(node.attrs)
        if _SCOPE in attrs:
            attrs[_SCOPE] = scopes.setdefault(attrs[_SCOPE], len(scopes))
        inside = [_structure(subgraph, scopes) for subgraph in node.subgraphs]
        nodes.append([node.op, attrs, node.inputs, node.control_deps, inside])
    return [nodes, graph.heads, graph.arg_nodes]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
