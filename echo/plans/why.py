"""Why one feature map is stashed or recomputed, and what it would cost to change that."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Callable, Sequence

from echo.errors import OptionError
from echo.plans.decisions import Decision, MissedFusion
from echo.system.terminal import size_text

NOT_KNOWN = "what a change would cost is known to the plan that echo.plan returns, not to one that was loaded"
_OPPOSITE = {"recompute": "stashed", "stash": "recomputed"}
_IS = {"recompute": "recomputed", "stash": "stashed"}


@dataclass(frozen=True)
class Cost:
    """A plan with another decision: ``planned`` bytes under the plan's own storage, ``seconds`` of recomputation."""

    planned: int
    seconds: float


@dataclass(frozen=True)
class Alternative:
    """The cost of a plan with one decision reversed: ``alone``, and ``together`` with those on ``alike`` other maps.

    These are maps of the same class, such as equal maps of all time steps or layers: where one alone changes little,
    all of them may change much. A cost is None where there is no such plan, and ``note`` says why.
    """

    alone: Cost | None = None
    together: Cost | None = None
    alike: int = 0
    note: str = ""


Alternatives = Callable[[Decision], Alternative]


@dataclass(frozen=True)
class Why:
    """The answer of `Plan.why`: the decision with its reason, and what the plan and its alternative cost."""

    decision: Decision
    plan: Cost
    alternative: Alternative

    def __str__(self) -> str:
        decision = self.decision
        size = _size(decision.bytes)
        lines = [
            f"{decision.name}:{decision.output} ({decision.op}, {size}) is {_IS[decision.action]}",
            f"  why: {decision.reason}",
            f"  the plan: {_size(self.plan.planned)} planned, {1000 * self.plan.seconds:.2f} ms of recomputation",
        ]
        opposite = _OPPOSITE[decision.action]
        if self.alternative.alone is not None:
            lines.append(f"  {opposite} instead: {self._cost(self.alternative.alone)}")
        if self.alternative.together is not None:
            lines.append(f"  {opposite} with {self.alternative.alike} alike: {self._cost(self.alternative.together)}")
        if self.alternative.note:
            lines.append(f"  note: {self.alternative.note}")
        return "\n".join(lines)

    def _cost(self, cost: Cost) -> str:
        more, slower = cost.planned - self.plan.planned, cost.seconds - self.plan.seconds
        change = f"{'-' if more < 0 else '+'}{_size(abs(more))}"
        return (
            f"{_size(cost.planned)} planned ({change}), {1000 * cost.seconds:.2f} ms of recomputation "
            f"({1000 * slower:+.2f} ms)"
        )


@dataclass(frozen=True)
class NotFused:
    """The answer of `Plan.why` for a node at which patterns were nearly found: each with the reason why it was not."""

    name: str
    reasons: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "\n".join(f"{self.name} is no {pattern}: {reason}" for pattern, reason in self.reasons)


def why(
    name: str,
    decisions: Sequence[Decision],
    near_misses: Sequence[MissedFusion],
    cost: Cost,
    alternatives: Alternatives | None,
) -> Why | NotFused:
    """See `echo.plans.plan.Plan.why`: the answer from a plan's decisions, its near-misses and its cost."""
    nodes = {name, name.rpartition(":")[0]}
    missed = tuple((near_miss.pattern, near_miss.reason) for near_miss in near_misses if near_miss.name in nodes)
    if missed and all(decision.name not in nodes for decision in decisions):
        return NotFused(name, missed)
    decision = _find(decisions, name)
    alternative = Alternative(note=NOT_KNOWN) if alternatives is None else alternatives(decision)
    if missed:
        alternative = replace(
            alternative,
            note="; ".join([*([alternative.note] if alternative.note else []), str(NotFused(name, missed))]),
        )
    return Why(decision, cost, alternative)


def _find(decisions: Sequence[Decision], name: str) -> Decision:
    full = {f"{decision.name}:{decision.output}": decision for decision in decisions}
    if name in full:
        return full[name]
    keys = [key for key, decision in full.items() if decision.name == name]
    if len(keys) == 1:
        return full[keys[0]]
    if keys:
        raise OptionError(f"{name!r} has {len(keys)} feature maps, expected one of {', '.join(keys[:8])}")
    names = list(dict.fromkeys([*(decision.name for decision in decisions), *full]))
    close = difflib.get_close_matches(str(name), names, n=4, cutoff=0.5)
    hint = f", did you mean {', '.join(close)}" if close else ""
    raise OptionError(f"no gradient reads a feature map named {name!r}: expected one of the plan's {len(full)}{hint}")


def _size(count: int) -> str:
    return size_text(count)
