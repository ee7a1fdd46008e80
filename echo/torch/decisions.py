"""What a schedule decides about the values of the forward pass: saved or recomputed, why, and what a change costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Iterable, Iterator, Sequence

from echo.ir.graph import Entry
from echo.ir.schedule import RecomputeSchedule, Replayed, Step, once, replay, steps_of
from echo.plans.decisions import RECOMPUTE, STASH, Decision
from echo.plans.text import Alternative, Cost
from echo.system.terminal import counted
from echo.torch.planned_graph import PlannedGraph


def replayed(graph: PlannedGraph, schedule: RecomputeSchedule) -> Replayed:
    """The peak of a schedule and its seconds of recomputation, by a replay that trusts no planner."""
    steps = steps_of(graph.training, schedule)
    bytes_ = replay(graph.training, [step.node for step in steps], graph.seconds).bytes
    return Replayed(bytes_, sum(graph.seconds[step.node] for step in steps if step.node != step.position))


@dataclass(frozen=True)
class ScheduleView:
    """A schedule on its graph: the steps, the decisions on values, and the costs of other decisions."""

    graph: PlannedGraph
    schedule: RecomputeSchedule

    @cached_property
    def steps(self) -> list[Step]:
        """The steps of a training step, in order."""
        return steps_of(self.graph.training, self.schedule)

    @cached_property
    def forward_steps(self) -> int:
        """The number of steps of the forward pass."""
        return sum(node.forward for _, node in self.graph.training.operators())

    @cached_property
    def runs(self) -> Counter[int]:
        """How often each node runs again."""
        return Counter(step.node for step in self.steps if step.node != step.position)

    @cached_property
    def saved(self) -> tuple[Entry, ...]:
        """The values of the forward pass that the backward pass reads, in the order in which they are computed."""
        nodes, last_run, found = self.graph.training.nodes, dict[int, int](), set[Entry]()
        for number, (node, _) in enumerate(self.steps):
            if number >= self.forward_steps:
                found.update(Entry(*entry[:2]) for entry in nodes[node].inputs
                             if last_run.get(entry.node, self.forward_steps) < self.forward_steps)  # fmt: skip
            last_run[node] = number
        return tuple(sorted(found))

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """A decision on each value that the backward pass reads or computes again, in the order of the forward pass."""
        training = self.graph.training
        read = {Entry(*entry[:2]) for entry in training.backward_readers} | set(self.saved)
        return tuple(
            self._decision(Entry(number, index))
            for number, node in training.operators() if node.forward
            for index in range(len(node.outputs)) if self.runs[number] or Entry(number, index) in read
        )  # fmt: skip

    def residuals(self) -> Iterator[Decision]:
        """The decisions on values that the forward pass hands to the backward pass, the largest first."""
        saved = set(self.saved)
        found = [one for one in self.decisions if Entry(one.node, one.output) in saved and one.bytes]
        yield from sorted(found, key=lambda decision: -decision.bytes)

    def _decision(self, entry: Entry) -> Decision:
        node, again = self.graph.training.nodes[entry.node], self.runs[entry.node] > 0
        return Decision(
            node=entry.node, name=node.name, op=node.op, output=entry.index, action=RECOMPUTE if again else STASH,
            bytes=node.outputs[entry.index].bytes, seconds=self.graph.seconds[entry.node],
            reason=self._why_again(entry) if again else self._why_saved(entry),
        )  # fmt: skip

    def _why_again(self, entry: Entry) -> str:
        node, runs = self.graph.training.nodes[entry.node], self.runs[entry.node]
        readers = len(self.graph.training.backward_readers.get(entry, ()))
        purpose = f"read by {counted(readers, 'gradient')}" if readers else "needed to recompute another value"
        if entry.node in self.graph.insisted:
            purpose = f"the user insists on it; {purpose}"
        sources = dict.fromkeys(self.graph.training.nodes[source.node].name for source in node.inputs)
        often = "" if runs == 1 else f" {runs} times"
        return f"{purpose}; recomputed{often} from {', '.join(sources) or 'nothing'}"

    def _why_saved(self, entry: Entry) -> str:
        if entry.node in self.graph.reasons:
            return self.graph.reasons[entry.node]
        if entry in {Entry(*output[:2]) for output in self.graph.training.outputs}:
            return "an output of the model lives to the end anyway"
        if entry in self._read_again:
            return "other values are recomputed from it"
        return "the limits are kept without recomputing it"

    @cached_property
    def _read_again(self) -> set[Entry]:
        """The values that nodes read which run again."""
        nodes = self.graph.training.nodes
        return {Entry(*entry[:2]) for number in self.runs for entry in nodes[number].inputs}

    # What another decision would cost, by a replay of the changed schedule.

    def without(self, nodes: Iterable[int]) -> Replayed:
        """Bytes and seconds if these nodes were saved instead."""
        left = set(nodes)
        return replayed(self.graph, {node: at for node, at in self.schedule.items() if node not in left})

    def alternative(self, decision: Decision) -> Alternative:
        """The cost of a decision reversed, on one value and on all that are alike; where that cannot be, the reason."""
        origin = self.graph.origin(decision.node)
        if decision.action == STASH and self.graph.training.nodes[decision.node].stateful:
            return Alternative(note="it must not run again" + (f"; from {origin}" if origin else ""))
        alike = [one for one in self._alike(decision) if one != decision.node]
        together = self._reversed(decision.action, [decision.node, *alike]) if alike else None
        note = f"from {origin}" if origin else ""
        return Alternative(self._reversed(decision.action, [decision.node]), together, len(alike), note)

    def _alike(self, decision: Decision) -> list[int]:
        """The nodes of the same operator and size with the same decision, which may run again."""
        nodes = self.graph.training.nodes
        sizes = nodes[decision.node].outputs
        return list(dict.fromkeys(
            one.node for one in self.decisions
            if (one.op, one.action) == (decision.op, decision.action) and nodes[one.node].outputs == sizes
            and not nodes[one.node].stateful
        ))  # fmt: skip

    def _reversed(self, action: str, nodes: Sequence[int]) -> Cost:
        if action == RECOMPUTE:
            value = self.without(nodes)
        else:
            value = replayed(self.graph, {**self.schedule, **once(self.graph.training, nodes)})
        return Cost(value.bytes, value.seconds)
