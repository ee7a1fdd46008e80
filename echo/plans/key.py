"""The key of a plan: the graph that it is made for, the arrays that it is bound with, and the runner.

Two keys are equal where a plan for one is a plan for the other, in any process. Names do not count: Gluon and MXNet
number them again in each process, and nothing that is planned depends on them. Nor do attributes of variables (initial
values, learning rates, shapes that were not known yet): of a variable, only the array that it is bound to counts.
"""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, Iterable, Iterator, Mapping, Sequence

from echo.errors import GraphError
from echo.ir.graph import VARIABLE, Graph
from echo.ir.training_graph import Runner

AUXILIARY = "auxiliary"  # in place of a gradient request, for auxiliary states
_REQUESTS = ("write", "add", "null", AUXILIARY)
_SCOPE = "__profiler_scope__"  # a name, too; but MXNet merges equal nodes only where it is the same
_RUNNER_NAMES = {runner: "an executor" if runner == Runner.EXECUTOR else f"a {runner} CachedOp" for runner in Runner}


@dataclass(frozen=True)
class Argument:
    """An array that a graph is bound with; ``request`` is "write", "add", "null", or "auxiliary" for a state."""

    shape: tuple[int, ...]
    dtype: str
    request: str


@dataclass(frozen=True)
class PlanKey:
    """Identifies the bind that a plan is made for: operators, arguments, device and settings.

    ``graph`` is a digest of operators, their attributes and how they are connected; ``operators`` counts them.
    ``arguments`` come in the symbol's order, auxiliary states last. ``device`` is "cpu" or "gpu", whatever its number,
    ``settings`` are variables that change what MXNet plans.
    """

    graph: str
    operators: Mapping[str, int]
    arguments: tuple[Argument, ...]
    device: str
    runner: Runner
    settings: Mapping[str, str]

    @cached_property
    def fingerprint(self) -> str:
        """A text of 32 characters that is equal for equal keys, whatever the process, Python or hash seed."""
        return _digest(self.to_json())

    def differences(self, got: PlanKey, names: Sequence[str]) -> Iterator[str]:
        """Says in words how the key ``got`` differs from this one; ``names`` are the names of the arguments."""
        if self.device != got.device:
            yield f"device: expected {self.device}, got {got.device}"
        if self.runner != got.runner:
            yield f"runner: expected {_RUNNER_NAMES[self.runner]}, got {_RUNNER_NAMES[got.runner]}"
        for name in sorted({*self.settings, *got.settings}):
            expected, actual = self.settings.get(name, ""), got.settings.get(name, "")
            if expected != actual:
                yield f"{name}: expected {expected!r}, got {actual!r}"
        if self.graph != got.graph:
            yield f"graph: {self._other_graph(got)}"
            return
        for name, argument, got_argument in zip(names, self.arguments, got.arguments):
            for label, field in (("shape", "shape"), ("type", "dtype"), ("grad_req", "request")):
                expected, actual = getattr(argument, field), getattr(got_argument, field)
                if expected != actual:
                    yield f"argument {name!r}: expected {label} {expected}, got {actual}"

    def _other_graph(self, got: PlanKey) -> str:
        expected, actual = Counter(self.operators), Counter(got.operators)
        if expected == actual:
            return "the same operators, with other attributes or connected in another way"
        changes = [f"{count} more {op}" for op, count in sorted((actual - expected).items())]
        changes += [f"{count} fewer {op}" for op, count in sorted((expected - actual).items())]
        few = ", ".join(changes[:6]) + (", ..." if len(changes) > 6 else "")
        return f"expected {sum(expected.values())} operators, got {sum(actual.values())} ({few})"

    def to_json(self) -> dict[str, Any]:
        """The key as a JSON value."""
        arguments = [[list(argument.shape), argument.dtype, argument.request] for argument in self.arguments]
        return {
            "graph": self.graph, "operators": dict(self.operators), "device": self.device, "runner": self.runner,
            "settings": dict(self.settings), "arguments": arguments,
        }  # fmt: skip

    @staticmethod
    def from_json(value: Any) -> PlanKey:
        """Reads what `to_json` wrote.

        Raises:
            GraphError: a field is missing, unknown or of another type; the message names it.
        """
        try:
            key = PlanKey(**{**value, "arguments": tuple(map(_argument, value["arguments"]))})
        except (KeyError, TypeError, ValueError) as error:
            raise GraphError(f"key: {type(error).__name__}: {error}") from error
        for name in ("graph", "device", "runner"):
            _check(name, isinstance(getattr(key, name), str), "a text", getattr(key, name))
        _check("runner", key.runner in tuple(Runner), f"one of {', '.join(Runner)}", key.runner)
        key = replace(key, runner=Runner(key.runner))
        for name, item_type, items in (("operators", int, "counts"), ("settings", str, "texts")):
            mapping = getattr(key, name)
            valid = isinstance(mapping, dict) and all(type(item) is item_type for item in mapping.values())
            _check(name, valid, f"a mapping of names to {items}", mapping)
        return key


def _check(name: str, fits: bool, expected: str, got: object) -> None:
    if not fits:
        raise GraphError(f"key: {name} must be {expected}, got {got!r}")


def _argument(value: Any) -> Argument:
    shape, dtype, request = value
    valid = isinstance(shape, list) and all(type(size) is int for size in shape)
    _check("arguments", valid, "shapes of whole numbers", shape)
    _check("arguments", isinstance(dtype, str), "types by name", dtype)
    _check("arguments", request in _REQUESTS, f"requests of {', '.join(_REQUESTS)}", request)
    return Argument(tuple(shape), dtype, request)


def digest(graph: Graph) -> str:
    """A text that is equal for graphs of the same structure and attributes under any names."""
    return hashlib.sha256(_structure(graph, {})).hexdigest()[:32]


def operators(graph: Graph) -> dict[str, int]:
    counts = Counter(map(attrgetter("op"), graph.nodes))
    del counts[VARIABLE]
    return dict(counts)


def _structure(graph: Graph, scopes: dict[str, int]) -> bytes:
    """Every kind of node once, as a text, then all nodes as numbers: graphs have few kinds and many nodes."""
    nodes = graph.nodes
    kinds: list[tuple[Any, ...]] = [
        (node.op, *node.attrs, *node.attrs.values()) if node.op != VARIABLE else (node.op,) for node in nodes
    ]
    for number, subgraphs in [(number, node.subgraphs) for number, node in enumerate(nodes) if node.subgraphs]:
        kinds[number] += (tuple(_structure(subgraph, scopes).hex() for subgraph in subgraphs),)
    number_of_kind: dict[tuple[Any, ...], int] = {}  # kinds that differ in the order of attributes alone have one text
    kind_numbers = [number_of_kind.setdefault(kind, len(number_of_kind)) for kind in kinds]
    texts: dict[str, int] = {}
    number_of = [texts.setdefault(_text(kind, scopes), len(texts)) for kind in number_of_kind]
    inputs, deps = list(map(attrgetter("inputs"), nodes)), list(map(attrgetter("control_deps"), nodes))
    lists: list[Iterable[int]] = [map(number_of.__getitem__, kind_numbers), map(len, inputs), map(len, deps)]
    lists += [_without_history(list(chain.from_iterable(chain.from_iterable(inputs)))), chain.from_iterable(deps)]
    lists += [chain.from_iterable(graph.heads), graph.arg_nodes]
    numbers = [array("q", list(items)) for items in lists]
    if sys.byteorder == "big":
        for items in numbers:
            items.byteswap()
    parts = [json.dumps([list(texts), list(map(len, numbers))]).encode(), *(items.tobytes() for items in numbers)]
    return b"".join(parts)


def _without_history(entries: list[int]) -> list[int]:
    """Triples of node, output and version, in which the versions of an entry are 0, 1, ... in their order.

    MXNet counts in a variable how often operators were made that write it, such as BatchNorm: of a Gluon block that is
    hybridized again the count goes on.
    """
    if not any(entries[2::3]):
        return entries
    versions: dict[tuple[int, int], set[int]] = {}
    for node, output, version in zip(entries[::3], entries[1::3], entries[2::3]):
        versions.setdefault((node, output), set()).add(version)
    places = {entry: {version: place for place, version in enumerate(sorted(of))} for entry, of in versions.items()}
    for start in range(0, len(entries), 3):
        node, output, version = entries[start : start + 3]
        entries[start + 2] = places[node, output][version]
    return entries


def _text(kind: tuple[Any, ...], scopes: dict[str, int]) -> str:
    """The operator, attributes and subgraphs of a kind of node, as a text without the order of the attributes."""
    op, *rest = kind
    inside = rest.pop() if len(rest) % 2 else ()
    attrs: dict[str, Any] = dict(zip(rest[: len(rest) // 2], rest[len(rest) // 2 :]))
    if _SCOPE in attrs:
        attrs[_SCOPE] = scopes.setdefault(attrs[_SCOPE], len(scopes))
    return json.dumps([op, attrs, inside], sort_keys=True)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
