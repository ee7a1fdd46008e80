"""One segment of a planned training graph: light operators between heavy ones, and their feature maps.

`segment_of` chooses and lays it out, `echo.report.charts.segment` draws it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import asdict, dataclass
from typing import Any, Iterable, Mapping, Sequence

from echo.errors import GraphError
from echo.estimators.footprint import MIRROR_SUFFIX
from echo.ir.ops import spec
from echo.ir.schedule import CLONE_SUFFIX
from echo.ir.training_graph import TrainingGraph

HEAVY, RECOMPUTED, STASHED, FREED = "heavy", "recomputed", "stashed", "freed in the forward pass"
ROLES = (HEAVY, RECOMPUTED, STASHED, FREED)
_MOST = 20  # light operators that are drawn
_SWEEPS = 4  # over the ranks, to bring neighbours together


@dataclass(frozen=True)
class Operator:
    """An operator of the forward pass: ``bytes`` are those of its outputs, ``role`` is one of `ROLES`.

    ``read`` says whether a gradient reads its feature map, from memory or recomputed. ``count`` alike operators are
    one. It is drawn in line ``rank``, counted from the top, at ``place`` between 0 and 1.
    """

    name: str
    op: str
    role: str
    bytes: int
    read: bool
    count: int
    rank: int
    place: float


@dataclass(frozen=True)
class Segment:
    """Operators in execution order, and which reads which, as pairs of producer and reader, by position.

    ``whole`` is the number of light operators in the segment, of which the most telling ones are here.
    """

    operators: tuple[Operator, ...]
    edges: tuple[tuple[int, int], ...]
    whole: int

    def to_json(self) -> dict[str, Any]:
        """The segment as a JSON value."""
        operators = [asdict(operator) for operator in self.operators]
        return {"operators": operators, "edges": [list(edge) for edge in self.edges], "whole": self.whole}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Segment:
        """Reads what `to_json` wrote.

        Raises:
            GraphError: an edge or a role that does not exist.
            KeyError, TypeError, ValueError: it is something else.
        """
        operators = tuple(Operator(**operator) for operator in value["operators"])
        edges = tuple((int(producer), int(reader)) for producer, reader in value["edges"])
        if not all(0 <= producer < reader < len(operators) for producer, reader in edges):
            raise GraphError("segment: expected edges between its operators")
        if not all(operator.role in ROLES for operator in operators):
            raise GraphError(f"segment: expected roles {', '.join(ROLES)}")
        return Segment(operators, edges, int(value["whole"]))


def segment_of(training: TrainingGraph) -> Segment | None:
    """The segment in which the most bytes are recomputed, or else stashed; None where there is no light operator.

    Of a large one, the operators around its largest such feature map are taken.
    """
    facts = _Facts(training)
    segments = facts.segments()
    if not segments:
        return None
    largest = max(segments, key=lambda nodes: (facts.weight(nodes, RECOMPUTED), facts.weight(nodes, STASHED)))
    inside = _around(facts, largest)
    adjacent = {at for node in inside for at in facts.adjacent[node] if facts.role[at] == HEAVY}
    alike = facts.alike(inside | adjacent)
    drawn = sorted(alike)
    number = {node: position for position, node in enumerate(drawn)}
    edges = tuple((number[a], number[b]) for a in drawn for b in sorted(facts.readers[a]) if b in number)
    ranks = _ranks(len(drawn), edges)
    places = _places(ranks, edges)
    operators = tuple(
        Operator(training.nodes[node].name, training.nodes[node].op, facts.role[node],
                 sum(map(facts.bytes, alike[node])), node in facts.read, len(alike[node]), rank, place)
        for node, rank, place in zip(drawn, ranks, places)
    )  # fmt: skip
    return Segment(operators, edges, len(largest))


class _Facts:
    """Roles, readers and neighbours of the operators of the forward pass."""

    def __init__(self, training: TrainingGraph) -> None:
        self._training = training
        forward = {number for number, node in enumerate(training.nodes) if node.forward and not node.is_variable}
        by_name = {training.nodes[number].name: number for number in forward}
        self.readers: dict[int, set[int]] = defaultdict(set)
        self.adjacent: dict[int, set[int]] = defaultdict(set)
        self.read: set[int] = set()  # by gradients
        again: set[int] = set()
        kept: set[int] = set()
        original: dict[int, int] = {}
        for number, node in enumerate(training.nodes):
            if number not in forward and not node.is_variable:
                plain = node.name
                for suffix in (CLONE_SUFFIX, MIRROR_SUFFIX):
                    plain = plain[: -len(suffix)] if plain.endswith(suffix) else plain
                if plain != node.name and plain in by_name:
                    original[number] = by_name[plain]
                    again.add(by_name[plain])
            for place, entry in enumerate(node.inputs):
                source = original.get(entry.node, entry.node)
                if source not in forward:
                    continue
                if number in forward:
                    self.readers[source].add(number)
                    self.adjacent[source].add(number)
                    self.adjacent[number].add(source)
                elif place not in node.shape_only:
                    kept.add(entry.node)
                    self.read.update(() if number in original else (source,))
        self.role = {number: self._role(number, again, kept) for number in sorted(forward)}

    def _role(self, number: int, again: set[int], kept: set[int]) -> str:
        if spec(self._training.nodes[number].op).cost.heavy:
            return HEAVY
        return RECOMPUTED if number in again else STASHED if number in kept else FREED

    def bytes(self, number: int) -> int:
        return sum(output.bytes for output in self._training.nodes[number].outputs)

    def weight(self, numbers: Iterable[int], role: str) -> int:
        return sum(self.bytes(number) for number in numbers if self.role[number] == role)

    def alike(self, drawn: set[int]) -> dict[int, list[int]]:
        """These operators, those together that do the same between the same neighbours; each by its first."""
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for at in sorted(drawn):
            near = (frozenset(self.readers[at] & drawn), frozenset(self.adjacent[at] & drawn))
            node = self._training.nodes[at]
            attrs = frozenset((name, value) for name, value in node.attrs.items() if not name.startswith("__"))
            groups[node.op, attrs, self.role[at], at in self.read, near].append(at)
        return {group[0]: group for group in groups.values()}

    def segments(self) -> list[list[int]]:
        """Light operators that hang together without passing through a heavy one."""
        connected, seen = [], set()
        for first, role in self.role.items():
            if role != HEAVY and first not in seen:
                connected.append(list(self.nearest(first, len(self.role))))
                seen.update(connected[-1])
        return connected

    def nearest(self, first: int, most: int) -> Iterable[int]:
        """Light operators around one, the nearest first."""
        queue, seen = deque([first]), {first}
        while queue and most:
            node = queue.popleft()
            most -= 1
            yield node
            for at in sorted(self.adjacent[node] - seen):
                if self.role[at] != HEAVY:
                    seen.add(at)
                    queue.append(at)


def _around(facts: _Facts, nodes: Sequence[int]) -> set[int]:
    if len(nodes) <= _MOST:
        return set(nodes)
    telling = [node for node in nodes if facts.role[node] == RECOMPUTED] or nodes
    return set(facts.nearest(max(telling, key=facts.bytes), _MOST))


def _ranks(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The line of each operator: below all that it reads, and a first one right above its first reader."""
    ranks = [0] * count
    for producer, reader in sorted(edges, key=lambda edge: edge[1]):
        ranks[reader] = max(ranks[reader], ranks[producer] + 1)
    readers: dict[int, list[int]] = defaultdict(list)
    for producer, reader in edges:
        readers[producer].append(ranks[reader])
    fed = {reader for _, reader in edges}
    return [min(readers[at]) - 1 if at not in fed and readers[at] else rank for at, rank in enumerate(ranks)]


def _places(ranks: Sequence[int], edges: Iterable[tuple[int, int]]) -> list[float]:
    """The position of each in its line: near to the middle of its neighbours (the barycentre heuristic)."""
    neighbours: dict[int, list[int]] = defaultdict(list)
    for producer, reader in edges:
        neighbours[producer].append(reader)
        neighbours[reader].append(producer)
    lines: dict[int, list[int]] = defaultdict(list)
    for at, rank in enumerate(ranks):
        lines[rank].append(at)
    places = [0.5] * len(ranks)
    for sweep in range(_SWEEPS):
        for rank in sorted(lines, reverse=bool(sweep % 2)):
            middle = [
                sum(places[neighbour] for neighbour in near) / max(len(near), 1)
                for near in map(neighbours.__getitem__, lines[rank])
            ]
            lines[rank] = [at for _, at in sorted(zip(middle, lines[rank]))]
            for position, at in enumerate(lines[rank]):
                places[at] = (position + 0.5) / len(lines[rank])
    return places
