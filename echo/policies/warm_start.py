"""Starts a search from the choice for another graph of the same model: twenty buckets do not cost twenty searches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import AbstractSet, Container, Iterable, Mapping

from echo.ir.schedule import Splits
from echo.ir.training_graph import TrainingGraph
from echo.policies.classes import roles

_ROLE_ROUNDS = (3, 2, 1, 0)
# The least part of the candidates whose roles the other graph has: short lengths of one model share a third of their
# roles, graphs with and without fused operators none.
_KNOWN = 0.2


@dataclass(frozen=True)
class WarmStart:
    """The choice for a graph of the same model with another length of its sequences, or another batch size.

    ``recompute`` says for each role (`echo.policies.classes.roles`), finest first, whether most of its nodes were
    recomputed. ``splits`` is the whole schedule, for a graph with the same ``structure``, as another batch size has.
    ``is_known``: the graph is the other one with a few operators replaced, whatever their neighbours' roles say.
    """

    recompute: tuple[Mapping[int, bool], ...]
    splits: Splits = field(default_factory=dict)
    structure: int = 0
    is_known: bool = False

    @staticmethod
    def of(
        training: TrainingGraph, nodes: Iterable[int], chosen: AbstractSet[int], splits: Splits | None = None
    ) -> WarmStart:
        """The warm start that the ``chosen`` among these nodes give, and the schedule in which they run again."""
        numbers = list(nodes)
        levels = []
        for colours in roles(training, _ROLE_ROUNDS):
            votes: dict[int, int] = {}
            for number in numbers:
                role = colours[number]
                votes[role] = votes.get(role, 0) + (1 if number in chosen else -1)
            levels.append({role: count >= 0 for role, count in votes.items()})
        return WarmStart(tuple(levels)) if splits is None else WarmStart(tuple(levels), splits, _structure(training))

    def by_roles(self) -> WarmStart:
        """This warm start without its schedule, as it can be read from the marks of a plan."""
        return WarmStart(self.recompute)

    def schedule(self, training: TrainingGraph, candidates: Container[int]) -> Splits | None:
        """The schedule of the other graph, where this one differs from it in sizes alone; else None."""
        if not self.structure or self.structure != _structure(training):
            return None
        return self.splits if all(node in candidates for node in self.splits) else None

    def fits(self, training: TrainingGraph, candidates: Iterable[int]) -> bool:
        """Whether enough candidates have a role that the other graph has; else it is another model."""
        if self.is_known:
            return True
        (finest,) = roles(training, _ROLE_ROUNDS[:1])
        has_seen_role = [finest[number] in self.recompute[0] for number in candidates]
        return sum(has_seen_role) >= _KNOWN * len(has_seen_role)

    def nodes(self, training: TrainingGraph, candidates: Iterable[int]) -> list[int]:
        """The candidates whose role was recomputed in the other graph."""
        numbers = list(candidates)
        is_recomputed: dict[int, bool] = {}
        for colours, level in zip(roles(training, _ROLE_ROUNDS), self.recompute):
            left = [number for number in numbers if number not in is_recomputed]
            is_recomputed.update({number: level[colours[number]] for number in left if colours[number] in level})
        return [number for number in numbers if is_recomputed.get(number)]


def _structure(training: TrainingGraph) -> int:
    """A number that is equal, in one process, for graphs of the same operators with the same inputs."""
    return hash(tuple([(node.op, node.inputs, node.control_deps) for node in training.nodes]))
