"""Starts a search from the choice for another graph of the same model: twenty buckets do not cost twenty searches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import AbstractSet, Iterable, Mapping

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
    recomputed.
    """

    recompute: tuple[Mapping[int, bool], ...]

    @staticmethod
    def of(training: TrainingGraph, nodes: Iterable[int], chosen: AbstractSet[int]) -> WarmStart:
        """The warm start that the ``chosen`` among these nodes give."""
        numbers = list(nodes)
        levels = []
        for colours in roles(training, _ROLE_ROUNDS):
            votes: dict[int, int] = {}
            for number in numbers:
                role = colours[number]
                votes[role] = votes.get(role, 0) + (1 if number in chosen else -1)
            levels.append({role: count >= 0 for role, count in votes.items()})
        return WarmStart(tuple(levels))

    def fits(self, training: TrainingGraph, candidates: Iterable[int]) -> bool:
        """Whether enough candidates have a role that the other graph has; else it is another model."""
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
