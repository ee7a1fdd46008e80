"""What one choice says about graphs of the same model, so that twenty buckets do not cost twenty searches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import AbstractSet, Iterable, Mapping

from echo.ir.training_graph import TrainingGraph
from echo.policies.classes import roles

_ROLE_ROUNDS = (3, 2, 1, 0)
_KNOWN = 0.2  # of the candidates: short lengths of one model share a third of their roles, with and without fusion none


@dataclass(frozen=True)
class WarmStart:
    """What was chosen for a graph of the same model: another length of its sequences, another batch size.

    ``recompute`` says for each role (`echo.policies.classes.roles`), finest first, whether most of its nodes were
    recomputed.
    """

    recompute: tuple[Mapping[int, bool], ...]

    @staticmethod
    def of(training: TrainingGraph, nodes: Iterable[int], chosen: AbstractSet[int]) -> WarmStart:
        """The hint that this choice among these nodes gives."""
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
        """Whether enough candidates play a role that was seen: with other operators it is another model."""
        (finest,) = roles(training, _ROLE_ROUNDS[:1])
        known = [finest[number] in self.recompute[0] for number in candidates]
        return sum(known) >= _KNOWN * len(known)

    def nodes(self, training: TrainingGraph, candidates: Iterable[int]) -> list[int]:
        """The candidates that play a role which was recomputed."""
        numbers = list(candidates)
        found: dict[int, bool] = {}
        for colours, level in zip(roles(training, _ROLE_ROUNDS), self.recompute):
            left = [number for number in numbers if number not in found]
            found.update({number: level[colours[number]] for number in left if colours[number] in level})
        return [number for number in numbers if found.get(number)]
