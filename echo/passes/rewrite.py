"""The passes after the choice: it is written into the symbol, confirmed by MXNet's planner, and explained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Iterable, Iterator, Mapping

from echo.estimators.cost_model import CostModel
from echo.estimators.footprint import footprint
from echo.estimators.layouts import shape_only_hazard
from echo.estimators.storage_planner import blocks
from echo.ir.graph import Entry, Graph
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, NO_INPLACE_ATTRIBUTE, GradientRule
from echo.ir.ops import spec
from echo.ir.schedule import with_clones
from echo.ir.training_graph import StorageStrategy, TrainingGraph, common_subexpressions
from echo.passes.analysis import Candidates
from echo.passes.request import Request
from echo.passes.rules import RULES
from echo.passes.select import Selection
from echo.plans.decisions import (
    LAYOUT_COPIES,
    RECOMPUTE,
    STASH,
    Decision,
    Mark,
    Memory,
    Note,
    mark,
    marks_of,
    outputs_of,
    splits_of,
)
from echo.plans.options import NEVER_HEAVY, policy_name
from echo.plans.plan import Plan
from echo.system.files import shortened
from echo.system.terminal import counted

# Why a compute-heavy operator stays stashed, where only the choice between graphs knows it, and after that one.
OPEN, NOT_WORTH = "none is run twice here", "running it twice does not pay"

# The original graph with the plan written into node attributes: the one place where graphs are changed.


@dataclass(frozen=True)
class Rewritten:
    """The graph to bind, and the match range to bind it under (None: leave MXNet's own).

    The hook reads the range from the graph; without the hook, the runtime sets it in the environment at bind.
    """

    graph: Graph
    match_range: int | None


@dataclass(frozen=True)
class Rewrite:
    """Marks the nodes that run twice; everything else stays as the user made it."""

    name: ClassVar[str] = "rewrite"
    needs: ClassVar[tuple[type, ...]] = (Request, TrainingGraph, Selection)
    gives: ClassVar[type] = Rewritten

    def run(self, request: Request, training: TrainingGraph, selection: Selection) -> Rewritten:
        outputs: dict[int, list[int]] = {}
        splits: dict[int, list[int]] = {}
        # none without the hook, where all backward nodes read the same copy
        ranks = {number: rank for rank, number in enumerate(training.backward)}
        for entry in sorted(selection.recompute):
            original = training.nodes[entry.node].original
            if original is not None and entry.node in selection.runs:
                outputs.setdefault(original, []).append(entry.index)
                splits[original] = [
                    ranks[position] for position in selection.schedule.get(entry.node, ()) if position in ranks
                ]
        for duplicate, number in common_subexpressions(request.graph, training).items():
            if number in outputs:  # with unequal marks, MXNet would not merge the two any more
                outputs[duplicate], splits[duplicate] = outputs[number], splits[number]
        default_range = request.framework.match_range
        match_range = None if selection.match_range == default_range else selection.match_range
        graph = request.graph.with_attrs(gradient_marks(request.graph, training, training.gradient_rules))
        if outputs or training.gradient_rules:
            graph = graph.with_attrs(on_equal_nodes(request.graph, training, NO_INPLACE_ATTRIBUTE, training.no_inplace))
        static = training.runner.keeps_memory
        return Rewritten(mark(graph, outputs, request.framework.hook, match_range, splits, static), match_range)


def gradient_marks(
    graph: Graph, training: TrainingGraph, rules: Mapping[int, GradientRule]
) -> dict[int, dict[str, str]]:
    """Attributes by which these nodes, and those that MXNet merges into them, get these gradient rules."""
    return on_equal_nodes(graph, training, GRADIENT_ATTRIBUTE, {number: rule.text for number, rule in rules.items()})


def on_equal_nodes(
    graph: Graph, training: TrainingGraph, name: str, texts: Mapping[int, str]
) -> dict[int, dict[str, str]]:
    """An attribute for these nodes, and for those that MXNet merges into them, which it else would not merge."""
    attributes = {number: {name: text} for number, text in texts.items()}
    if attributes:
        duplicates = common_subexpressions(graph, training).items()
        attributes.update({duplicate: attributes[number] for duplicate, number in duplicates if number in attributes})
    return attributes


# Never worse, and the same bits: where MXNet's own planner says otherwise, the original graph is bound as it is.


@dataclass(frozen=True)
class Confirmed:
    """``planned_bytes``: MXNet's own figure for the graph to bind. ``accepted``: the rewritten graph is bound.

    Recomputed operators keep ``layout_copy_bytes`` alongside that. ``reason`` says why the rewritten graph is not
    bound.
    """

    planned_bytes: int
    accepted: bool
    reason: str = ""
    layout_copy_bytes: int = 0


@dataclass(frozen=True)
class Confirm:
    """Binds the rewritten graph without memory and compares."""

    name: ClassVar[str] = "confirm"
    needs: ClassVar[tuple[type, ...]] = (Request, TrainingGraph, CostModel, Rewritten, Selection)
    gives: ClassVar[type] = Confirmed

    def run(
        self, request: Request, training: TrainingGraph, costs: CostModel, rewritten: Rewritten, selection: Selection
    ) -> Confirmed:
        confirmed = self.confirmed(request, training, rewritten)
        if selection.declined and not confirmed.accepted:
            return replace(confirmed, reason=selection.declined)
        reason = _too_little_for_its_time(request, training, costs, selection, confirmed)
        return Confirmed(training.planned_bytes, False, reason) if reason else confirmed

    def confirmed(self, request: Request, training: TrainingGraph, rewritten: Rewritten) -> Confirmed:
        """The verdict on the bytes and on the bits, whatever time it takes."""
        match_range = rewritten.match_range or request.framework.match_range
        planned, accumulations = request.framework.mxnet_memory_plan(rewritten.graph, match_range)
        kept = _layout_copy_bytes(training, marks_of(request.graph, rewritten.graph))
        late = shape_only_hazard(request.graph, training, request.framework.device)
        if accumulations != training.accumulations:
            reason = "MXNet would add up gradients in another way, which may change the last bit"
        elif late and match_range != StorageStrategy.ASSIGNED:
            reason = f"{late!r} may find another array in the memory of an input of which it reads the shape"
        else:
            reason = _too_little(request, training, planned + kept)
        if reason:
            return Confirmed(training.planned_bytes, False, reason)
        return Confirmed(planned, True, layout_copy_bytes=kept)


def _too_little(request: Request, training: TrainingGraph, planned: int) -> str:
    if request.options.recompute:
        return ""
    if planned >= training.planned_bytes:
        return "nothing to gain"
    gain = 1 - planned / training.planned_bytes
    if training.pool and training.pool.reuse_delay and gain < RULES.late_gain and request.options.memory_budget is None:
        return f"MXNet's engine frees arrays late, and may use up the {gain:.1%} that would be gained"
    return ""


def _too_little_for_its_time(
    request: Request, training: TrainingGraph, costs: CostModel, selection: Selection, confirmed: Confirmed
) -> str:
    """Why a plan saves too few of all bytes for the time of a short step, in which its executor's Python counts."""
    if not confirmed.accepted or not costs.step_seconds or not request.weighs_seconds(costs):
        return ""
    saved = training.planned_bytes - confirmed.planned_bytes - confirmed.layout_copy_bytes
    part = request.part_of_all_bytes(training, saved)
    cost = (selection.seconds + RULES.launch) / costs.step_seconds
    if part >= RULES.gain or cost <= RULES.cost:
        return ""
    return f"it would save {part:.1%} of all bytes for {cost:.1%} of the time"


def _layout_copy_bytes(training: TrainingGraph, marks: Iterable[Mark]) -> int:
    """The bytes that all copies of the marked nodes keep alongside planned memory."""
    copies = {mark.node: max(1, len(splits_of(mark))) for mark in marks if outputs_of(mark)}
    # a node that MXNet merges into an equal one is not counted: that one is
    return sum(
        node.layout_copy_bytes * copies.get(node.original, 0)
        for _, node in training.operators()
        if node.original is not None
    )


# The plan that the user reads: a decision on every feature map, with its reason.


@dataclass(frozen=True)
class Explain:
    """Turns numbers of nodes into names, bytes and reasons."""

    name: ClassVar[str] = "explain"
    needs: ClassVar[tuple[type, ...]] = (
        Request, TrainingGraph, Candidates, CostModel, Selection, Rewritten, Confirmed,
    )  # fmt: skip
    gives: ClassVar[type] = Plan

    def run(
        self,
        request: Request,
        training: TrainingGraph,
        candidates: Candidates,
        costs: CostModel,
        selection: Selection,
        rewritten: Rewritten,
        confirmed: Confirmed,
    ) -> Plan:
        framework = request.framework
        chosen = selection.recompute if confirmed.accepted else frozenset()
        explain = _Reasons(request, training, candidates, costs, chosen, selection)
        after = with_clones(training, chosen, selection.schedule) if request.details else training
        match_range = rewritten.match_range if confirmed.accepted else None
        seconds = selection.seconds if confirmed.accepted else 0.0
        return Plan(
            decisions=tuple(explain.decisions()),
            before=memory(request, _stock(request, training), training.planned_bytes),
            after=_with_layout_copies(memory(request, after, confirmed.planned_bytes), confirmed.layout_copy_bytes),
            match_range=match_range,
            step_seconds=costs.step_seconds,
            overhead_seconds=seconds,
            recomputed_nodes=sum(selection.runs.values()) if confirmed.accepted else 0,
            policy=policy_name(request.options.policy),
            device=framework.device,
            applied=("hook" if framework.hook else "mirror") if confirmed.accepted else "none",
            key=framework.key,
            marks=marks_of(request.graph, rewritten.graph) if confirmed.accepted else (),
            notes=tuple(map(Note, _notes(request, training, candidates, costs, selection, confirmed))),
            reason=confirmed.reason,
            stock_seconds=costs.step_seconds,
        )


def _stock(request: Request, training: TrainingGraph) -> TrainingGraph:
    return request.framework.differentiate() if request.details and training.gradient_rules else training


def memory(request: Request, training: TrainingGraph, planned: int) -> Memory:
    """The bytes that a graph needs; where backward nodes are known and details asked for, also its footprint."""
    if not request.details or not request.framework.hook:  # without the hook, the backward nodes are not known
        return Memory(planned, 0, request.static, {}, {})
    held = footprint(training, blocks(training))
    return Memory(planned, held.peak, request.static, dict(held.at_peak), dict(held.layers))


def _with_layout_copies(planned: Memory, kept: int) -> Memory:
    return replace(planned, static={**planned.static, LAYOUT_COPIES: kept}) if kept else planned


def _notes(
    request: Request,
    training: TrainingGraph,
    candidates: Candidates,
    costs: CostModel,
    selection: Selection,
    confirmed: Confirmed,
) -> Iterator[str]:
    if not request.framework.hook:
        yield "the native hook cannot be used: MXNet's own attributes apply the plan, within their limits"
    if confirmed.planned_bytes + confirmed.layout_copy_bytes > training.planned_bytes:
        yield "the nodes that the user insists on recomputing need more memory than they save"
    unread = sorted({entry.node for entry in candidates.must_recompute} - selection.runs.keys())
    if unread:
        names = shortened(", ".join(training.nodes[number].name for number in unread))
        yield f"recompute: no gradient reads {names}, so nothing is recomputed there"
    if confirmed.accepted and request.framework.fuses:
        yield "pointwise operators stay apart, which MXNet would fuse (MXNET_USE_FUSION): bytes before are with fusion"
    if confirmed.accepted and training.gradient_rules:
        gradients = counted(len(training.gradient_rules), "gradient")
        yield f"{gradients} computed from fewer arrays than MXNet keeps: every bit stays"
    if confirmed.accepted and selection.declined:
        yield f"{selection.declined}: nothing is recomputed"
    if costs.measured == 0:
        yield "no operator was measured: seconds are estimates"


@dataclass(frozen=True)
class _Reasons:
    request: Request
    training: TrainingGraph
    candidates: Candidates
    costs: CostModel
    chosen: frozenset[Entry]
    selection: Selection

    def decisions(self) -> Iterator[Decision]:
        """A decision on each feature map that gradients read, or that is recomputed on the way to one of these."""
        readers = self.training.backward_readers
        for number, node in self.training.operators():
            if not node.forward:
                continue
            for index, array_type in enumerate(node.outputs):
                entry = Entry(number, index)
                recomputed = entry in self.chosen and number in self.selection.runs
                if not recomputed and entry not in readers:
                    continue
                yield Decision(
                    node=-1 if node.original is None else node.original,
                    name=node.name,
                    op=node.op,
                    output=index,
                    action=RECOMPUTE if recomputed else STASH,
                    bytes=array_type.bytes,
                    seconds=self.costs.seconds[number],
                    reason=self.recompute_reason(entry) if recomputed else self.stash_reason(entry),
                )

    def recompute_reason(self, entry: Entry) -> str:
        if entry in self.candidates.must_recompute:
            return "the user insists on it"
        node = self.training.nodes[entry.node]
        sources = dict.fromkeys(self.training.nodes[source.node].name for source in node.inputs)
        read = len(self.training.backward_readers.get(entry, ()))
        purpose = (
            f"read by {read} gradient{'s' if read > 1 else ''}" if read else "needed to recompute another feature map"
        )
        times = self.selection.runs[entry.node]
        often = "" if times == 1 else f" {times} times"
        return f"{purpose}; recomputed{often} from {', '.join(sources)}"

    def stash_reason(self, entry: Entry) -> str:
        if entry.node in self.candidates.refused:
            return self.candidates.refused[entry.node]
        op = self.training.nodes[entry.node].op
        if spec(op).cost.heavy:
            return f"{op} is compute-heavy: {self._why_heavy_stays(entry)}"
        if entry not in self.candidates.light.get(entry.node, ()):
            return f"a saved statistic or mask of {op}"
        if self.selection.declined:
            return "recomputation saves too little for its time"
        bound = self.request.options.overhead_bound
        limit = "" if bound is None else f", with at most {100 * bound:.0f} % more time,"
        return f"recomputing it{limit} does not lower the peak"

    def _why_heavy_stays(self, entry: Entry) -> str:
        options = self.request.options
        if options.heavy == NEVER_HEAVY:
            return "heavy='never' runs none twice"
        is_open = options.memory_budget is None and self.request.light is None and not self.request.follows
        return OPEN if is_open else NOT_WORTH
