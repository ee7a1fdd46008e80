"""The plan that the user reads: a decision on every feature map, with its reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Iterator, Mapping

from echo.estimators.footprint import Footprint, footprint
from echo.estimators.overhead import Overhead
from echo.estimators.storage_planner import blocks
from echo.ir.graph import Entry
from echo.ir.ops import spec
from echo.ir.schedule import with_clones
from echo.ir.training_graph import TrainingGraph
from echo.passes.candidates import Candidates
from echo.passes.confirm import Confirmed
from echo.passes.request import Request
from echo.passes.rewrite import Rewritten
from echo.passes.select import Selection
from echo.plans.decisions import KEPT, RECOMPUTE, STASH, Decision, Memory, Note, marks_of
from echo.plans.plan import Plan
from echo.system.terminal import counted


@dataclass(frozen=True)
class Explain:
    """Turns numbers of nodes into names, bytes and reasons."""

    name: ClassVar[str] = "explain"
    needs: ClassVar[tuple[type, ...]] = (
        Request, TrainingGraph, Candidates, Overhead, Selection, Rewritten, Confirmed,
    )  # fmt: skip
    gives: ClassVar[type] = Plan

    def run(
        self,
        request: Request,
        training: TrainingGraph,
        candidates: Candidates,
        overhead: Overhead,
        selection: Selection,
        rewritten: Rewritten,
        confirmed: Confirmed,
    ) -> Plan:
        frontend = request.frontend
        chosen = selection.recompute if confirmed.accepted else frozenset()
        explain = _Reasons(request, training, candidates, overhead, chosen, selection.runs)
        after = with_clones(training, chosen, selection.splits) if request.details else training
        match_range = rewritten.match_range if confirmed.accepted else None
        seconds = selection.seconds if confirmed.accepted else 0.0
        return Plan(
            decisions=tuple(explain.decisions()),
            before=memory(request, _stock(request, training), training.planned_bytes),
            after=_with_kept(memory(request, after, confirmed.planned_bytes), confirmed.kept_bytes),
            match_range=match_range,
            step_seconds=overhead.step_seconds,
            overhead_seconds=seconds,
            recomputed_nodes=sum(selection.runs.values()) if confirmed.accepted else 0,
            policy=request.options.policy,
            device=frontend.device,
            applied=("hook" if frontend.hook else "mirror") if confirmed.accepted else "none",
            subject=frontend.subject,
            marks=marks_of(request.graph, rewritten.graph) if confirmed.accepted else (),
            notes=tuple(map(Note, _notes(request, training, overhead, confirmed))),
            exact=not confirmed.accepted or all(rule.exact for rule in training.implementations.values()),
            reason=confirmed.reason,
            stock_seconds=overhead.step_seconds,
        )


def _stock(request: Request, training: TrainingGraph) -> TrainingGraph:
    return request.frontend.differentiate() if request.details and training.implementations else training


def memory(request: Request, training: TrainingGraph, planned: int) -> Memory:
    """The bytes that a graph needs; where backward nodes are known and details asked for, also its footprint."""
    if not request.details or not request.frontend.hook:  # without the hook, the backward nodes are not known
        return Memory(planned, 0, request.static, {}, {})
    held: Footprint = footprint(training, blocks(training), request.static)
    return Memory(planned, held.peak, dict(held.static), dict(held.at_peak), dict(held.layers))


def _with_kept(planned: Memory, kept: int) -> Memory:
    return replace(planned, static={**planned.static, KEPT: kept}) if kept else planned


def _notes(request: Request, training: TrainingGraph, overhead: Overhead, confirmed: Confirmed) -> Iterator[str]:
    if not request.frontend.hook:
        yield "the native hook cannot be used: MXNet's own attributes apply the plan, within their limits"
    if confirmed.planned_bytes + confirmed.kept_bytes > training.planned_bytes:
        yield "the nodes that the user insists on recomputing need more memory than they save"
    if confirmed.accepted and request.frontend.fuses:
        yield "pointwise operators stay apart, which MXNet would fuse (MXNET_USE_FUSION): bytes before are with fusion"
    if confirmed.accepted:
        rules = training.implementations.values()
        formulas = sum(not rule.exact for rule in rules)
        if len(rules) > formulas:
            lighter = counted(len(rules) - formulas, "gradient")
            yield f"{lighter} computed from fewer arrays than MXNet keeps: every bit stays"
        if formulas:
            other = counted(formulas, "gradient")
            yield f"{other} computed by another formula, which may change last bits (exact=False)"
    if overhead.measured == 0:
        yield "no operator was measured: seconds are estimates"


@dataclass(frozen=True)
class _Reasons:
    request: Request
    training: TrainingGraph
    candidates: Candidates
    overhead: Overhead
    chosen: frozenset[Entry]
    runs: Mapping[int, int]

    def decisions(self) -> Iterator[Decision]:
        """A decision on each feature map: maps that gradients read, and maps that are recomputed on the way to them."""
        readers = self.training.backward_readers
        for number, node in self.training.operators():
            if not node.forward:
                continue
            for index, array_type in enumerate(node.outputs):
                entry = Entry(number, index)
                recomputed = entry in self.chosen and number in self.runs
                if not recomputed and entry not in readers:
                    continue
                yield Decision(
                    node=-1 if node.user is None else node.user,
                    name=node.name,
                    op=node.op,
                    output=index,
                    action=RECOMPUTE if recomputed else STASH,
                    bytes=array_type.bytes,
                    seconds=self.overhead.seconds[number],
                    reason=self.recompute_reason(entry) if recomputed else self.stash_reason(entry),
                )

    def recompute_reason(self, entry: Entry) -> str:
        if entry in self.candidates.forced:
            return "the user insists on it"
        node = self.training.nodes[entry.node]
        sources = dict.fromkeys(self.training.nodes[source.node].name for source in node.inputs)
        read = len(self.training.backward_readers.get(entry, ()))
        purpose = f"read by {read} gradient{'s' if read > 1 else ''}" if read else "needed to recompute another map"
        times = self.runs[entry.node]
        often = "" if times == 1 else f" {times} times"
        return f"{purpose}; computed again{often} from {', '.join(sources)}"

    def stash_reason(self, entry: Entry) -> str:
        if entry.node in self.candidates.refused:
            return self.candidates.refused[entry.node]
        op = self.training.nodes[entry.node].op
        if spec(op).heavy:
            return f"{op} is compute-heavy: it is never run twice unless a budget needs it"
        if entry not in self.candidates.light.get(entry.node, ()):
            return f"a saved statistic or mask of {op}"
        bound = self.request.options.overhead_bound
        limit = "" if bound is None else f" within {100 * bound:.0f} % of the step"
        return f"recomputing it does not lower the peak{limit}"
