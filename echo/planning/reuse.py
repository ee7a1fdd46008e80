"""A plan that was made before serves another graph: under other names, from a file, or for other shapes."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, replace
from typing import Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

from echo.errors import GraphError, PlanError
from echo.estimators.footprint import has_automatic_name, layer_named
from echo.ir.graph import Graph
from echo.ir.schedule import once
from echo.ir.training_graph import TrainingGraph
from echo.passes.analysis import Candidates, Differentiate, FindCandidates
from echo.passes.check_marks import check_marks, with_marks
from echo.passes.fuse import CountWorkspaces, too_large
from echo.passes.pass_manager import run
from echo.passes.patterns.apply import fused_at, fused_for_shapes
from echo.passes.request import Framework, Request
from echo.passes.rewrite import Confirm, Rewritten
from echo.passes.rules import RULES
from echo.plans.decisions import HIDDEN, LAYOUT_COPIES, Decision, Memory, Note, NoteKind, recomputed_in
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.policies.problem import WarmStart

# A plan of one model under the names of another: the same network built twice differs only in automatic names.
#
# `echo.plans.key` leaves names out of the key of a plan, so `dropout0` and `dropout5` share one. Reports name nodes,
# and so the names in a plan change with the graph that it is bound to.

_WORD = re.compile(r"[^\s,;:'\"()]+")


@dataclass(frozen=True)
class Names:
    """The names of all nodes of the original graph, and of its base, which has the plan's fused operators."""

    original: tuple[str, ...]
    base: tuple[str, ...]

    @staticmethod
    def of(graph: Graph, base: Graph) -> Names:
        """Returns the names in these two graphs."""
        original = tuple([node.name for node in graph.nodes])
        return Names(original, original if base is graph else tuple([node.name for node in base.nodes]))


def renamed(plan: Plan, old: Names, new: Names, ops: Sequence[str]) -> Plan | None:
    """Returns the plan with the names of another graph of the same structure.

    Args:
        plan: made for a graph with the ``old`` names.
        old: the names when the plan was made.
        new: the names now.
        ops: the operator of each node of the base.

    Returns:
        None if the names do not correspond: two nodes that share a name have different names now, a layer became two,
        or a name cannot be told from the words around it.
    """
    if old == new:
        return plan
    if len(old.original) != len(new.original) or len(old.base) != len(new.base):
        return None
    pairs = dict.fromkeys((*zip(old.original, new.original), *zip(old.base, new.base)))
    words = _mapping(pairs)
    layers = _mapping((layer_named(before), layer_named(after)) for before, after in pairs)
    changed = {} if words is None else {before: after for before, after in words.items() if before != after}
    if words is None or layers is None or not all(map(_WORD.fullmatch, changed)):
        return None
    if any(has_automatic_name(op, one) != has_automatic_name(op, two) for op, one, two in zip(ops, old.base, new.base)):
        return None
    return _with_words(plan, changed, layers)


def _mapping(pairs: Iterable[tuple[str, str]]) -> dict[str, str] | None:
    """Returns the pairs as a mapping, or None if one key has two values."""
    mapping: dict[str, str] = {}
    for before, after in pairs:
        if mapping.setdefault(before, after) != after:
            return None
    return mapping


def _with_words(plan: Plan, words: Mapping[str, str], layers: Mapping[str, str]) -> Plan:
    def text(sentence: str) -> str:
        return _WORD.sub(lambda match: words.get(match[0], match[0]), sentence)

    def memory(held: Memory) -> Memory:
        return replace(held, layers={layers.get(layer, layer): size for layer, size in held.layers.items()})

    return replace(
        plan,
        decisions=tuple(
            replace(decision, name=words.get(decision.name, decision.name), reason=text(decision.reason))
            for decision in plan.decisions
        ),
        before=memory(plan.before),
        after=memory(plan.after),
        notes=tuple(replace(note, text=text(note.text)) for note in plan.notes),
        missed=tuple(
            replace(missed, name=words.get(missed.name, missed.name), reason=text(missed.reason))
            for missed in plan.missed
        ),
        reason=text(plan.reason),
    )


# Plans from memory, the disk or the user: each is checked against the graph that it is bound to.


class PlannedGraph(NamedTuple):
    """A plan, the graph to bind, and the bytes of each chunk that MXNet wants for it (None: not known).

    ``base`` is the original graph with the plan's fused operators, without its marks. ``names`` are those that the plan
    was made or loaded for.
    """

    plan: Plan
    graph: Graph
    base: Graph
    chunks: tuple[int, ...] | None = None
    names: Names = Names((), ())

    def for_graph(self, graph: Graph, framework: Framework) -> PlannedGraph | None:
        """Returns the same plan for an equal graph under other names, or None if names do not correspond.

        Raises:
            GraphError: a fused operator or a mark does not fit the graph.
        """
        if self.names.original == tuple([node.name for node in graph.nodes]):
            return self
        base = fused_base(self.plan, graph, framework)
        names = Names.of(graph, base)
        plan = renamed(self.plan, self.names, names, [node.op for node in base.nodes])
        return None if plan is None else PlannedGraph(plan, with_marks(base, plan, framework), base, self.chunks, names)


def fused_base(plan: Plan, graph: Graph, framework: Framework) -> Graph:
    """The original graph with the fused operators of a plan, which may come from anywhere.

    Raises:
        GraphError: the fused operators do not fit the graph, or cannot run here.
    """
    if not plan.fused:
        return graph
    if framework.why_no_fusion:
        raise GraphError(f"the plan has fused operators: {framework.why_no_fusion}")
    return fused_at(graph, plan.fused, framework.adds, framework.setting)


_SHAPES = ". A plan holds for its own shapes and types alone: another batch size or length needs its own, by echo.plan"


def fitting(plans: Sequence[Plan], graph: Graph, framework: Framework) -> tuple[Plan, Graph, Graph]:
    """The first of these plans that was made for this graph as it is bound now, the graph to bind, and its base.

    The base is the same graph without marks. MXNet's own planner has to plan as many bytes as when the plan was made.

    Raises:
        PlanError: there is none; the message says in what the closest one differs.
    """
    mismatches = []
    for plan in plans:
        differences = list(_differences(plan, framework))
        if not differences:
            return (plan, *_confirmed(plan, graph, framework))
        mismatches.append(differences)
    closest = min(mismatches, key=len)
    few = "; ".join(closest[:4]) + (f"; and {len(closest) - 4} more" if len(closest) > 4 else "")
    which = "the plan was" if len(plans) == 1 else f"each of the {len(plans)} plans was"
    hint = _SHAPES if any(": expected shape " in text for text in closest) else ""
    raise PlanError(f"{which} made for something else; {few}{hint}")


def _differences(plan: Plan, framework: Framework) -> Iterator[str]:
    if plan.key != framework.key:
        yield from plan.key.differences(framework.key, framework.argument_names())
    way = "hook" if framework.hook else "mirror"
    if plan.applied not in ("none", way):
        yield f"applied by: expected {plan.applied}, got {way}"


def _confirmed(plan: Plan, original: Graph, framework: Framework) -> tuple[Graph, Graph]:
    if plan.changes_nothing:
        return original, original
    default_range = framework.match_range
    match_range = default_range if plan.match_range is None else plan.match_range
    try:
        graph = fused_base(plan, original, framework)
        marked = with_marks(graph, plan, framework)
        framework = framework.on(graph)
        check_marks(graph, plan, framework)
        planned, accumulations = framework.mxnet_memory_plan(marked, match_range)
    except GraphError as error:
        raise PlanError(f"the plan does not fit the graph that it names: {error}") from error
    if planned != plan.after.planned:
        raise PlanError(f"the plan is not what MXNet makes of it: expected {plan.after.planned:,} bytes planned, "
                        f"got {planned:,}")  # fmt: skip
    if accumulations != framework.mxnet_memory_plan(graph, default_range)[1]:
        raise PlanError("under this plan MXNet adds up gradients in another way, which may change the last bit")
    return marked, graph


def warm_start_of(base: Graph, plan: Plan, options: Options, framework: Framework) -> WarmStart:
    """Returns the warm start that a plan's marks give: what it recomputes, and the backward nodes where copies begin.

    ``base`` is the graph with the plan's fused operators, ``framework`` the framework of that graph.

    Raises:
        EchoError: the graph cannot be differentiated.
    """
    request = Request(base, options, framework)
    values = run((Differentiate(), FindCandidates()), [request], request.progress)
    training, candidates = values[TrainingGraph], values[Candidates]
    entries, splits = recomputed_in(training, plan.marks)
    chosen = {entry.node for entry in entries}
    offered = {**candidates.light, **candidates.heavy}
    return WarmStart.of(training, offered, chosen, {**once(training, chosen), **splits})


# The plan of a model for other shapes than its own: the same marks, checked again, without a search.
#
# A training whose batches seldom have the same shape twice cannot search for a plan at each of them. What a plan
# recomputes hardly depends on the shapes; whether it keeps every bit and saves memory does. So all rules are checked
# for the new shapes, and MXNet's planner is asked, which takes some milliseconds. `SpareTime` bounds the seconds that
# this takes of a training.

_SHARE = 0.05  # of the seconds of training: with all bookkeeping, steps take well below a tenth longer
NOTE = Note("the plan of the model's first shapes, which holds for these: only bytes were recalculated")


class SpareTime:
    """Bounds the seconds that plans of further shapes take to a share of the seconds that the program has trained.

    Training counts from when the first plan was made; all other planning is left out. ``clock`` returns seconds.
    """

    def __init__(self, share: float = _SHARE, clock: Callable[[], float] = time.perf_counter) -> None:
        self._share, self._clock = share, clock
        self._began: float | None = None
        self._planning = self._spent = 0.0
        self._depth = 0

    def allows(self, seconds: float, part: float = 1.0) -> bool:
        """Whether so many more seconds are within a part of the share."""
        if self._began is None:
            return False
        trained = self._clock() - self._began - self._planning
        return self._spent + seconds <= part * self._share * trained

    @contextlib.contextmanager
    def planning(self, further: bool = False) -> Iterator[None]:
        """Counts what happens meanwhile as planning, and as that of ``further`` shapes."""
        started, self._depth = self._clock(), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            seconds = self._clock() - started
            if not self._depth:
                self._planning += seconds
                self._spent += seconds if further else 0.0
                if self._began is None:
                    self._began, self._planning = self._clock(), 0.0


# Tiny graphs with nothing to gain. Programs make such by the hundred, as blocks that slice at another place or scale by
# another number each; planning one takes as long as several of its steps.

FEW_OPERATORS, _MOST_ALIKE = 32, 1000
_NUMBER = re.compile(r"\d[\d.e]*")


class NothingToGain:
    """Remembers tiny graphs that planning left unchanged: those that differ in numbers alone are not planned."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], set[tuple[str, str]]] = {}

    def note(self, graph: Graph, options: Options, plan: Plan) -> None:
        """Remembers a plan's graph, if the plan changes nothing and is whole, and the graph is tiny."""
        whole = all(note.kind is NoteKind.REMARK for note in plan.notes)
        if not (plan.changes_nothing and whole) or plan.before.planned > RULES.tiny:
            return
        form = _form(graph, options)
        if form is None:
            return
        while len(self._known) >= _MOST_ALIKE:
            del self._known[next(iter(self._known))]
        self._known.setdefault(form, set()).add((plan.key.device, plan.key.runner))

    def holds(self, graph: Graph, make_framework: Callable[[], Framework], options: Options) -> bool:
        """Whether a graph is one of those with other numbers, and all its arrays together are tiny, too."""
        form = _form(graph, options)
        if form not in self._known:
            return False
        framework = make_framework()
        made = (array.bytes for entry, array in framework.types().items() if not graph.nodes[entry.node].is_variable)
        return (framework.key.device, framework.key.runner) in self._known[form] and 2 * sum(made) <= RULES.tiny


def _form(graph: Graph, options: Options) -> tuple[object, ...] | None:
    """The structure of a small graph with its attributes, but for numbers in them; None of any other graph."""
    if len(graph.nodes) > 2 * FEW_OPERATORS or any(node.subgraphs for node in graph.nodes):
        return None
    nodes = ((node.op, node.inputs, node.control_deps, *node.attrs, _NUMBER.sub("", " ".join(node.attrs.values())))
             for node in graph.nodes)  # fmt: skip
    return (options.key, graph.heads, *nodes)


def follow(model: PlannedGraph, graph: Graph, framework: Framework, options: Options) -> PlannedGraph:
    """Returns the plan of a model for the shapes of ``framework``, and the graph to bind, whose chunks are not known.

    Raises:
        GraphError: the plan does not hold for these shapes, or would save nothing; the message says why.
    """
    plan = model.plan
    base, hidden = graph, 0
    if plan.fused:
        if framework.why_no_fusion:
            raise GraphError(f"the plan has fused operators: {framework.why_no_fusion}")
        types = framework.types()
        base, hidden = fused_for_shapes(
            graph, plan.fused, framework.adds, framework.setting, types, framework.inferred
        )  # fmt: skip
    marked = with_marks(base, plan, framework)
    request = Request(base, options, framework.on(base), details=False)
    if plan.fused and (large := too_large(request.framework)):
        raise GraphError(next(iter(large.values())))
    check_marks(base, plan, request.framework)
    training = Differentiate().run(request)
    confirmed = Confirm().confirmed(request, training, Rewritten(marked, plan.match_range))
    if not confirmed.accepted:
        raise GraphError(confirmed.reason)
    request = replace(request, workspaces=CountWorkspaces().run(request).bytes if plan.fused else 0)
    kept = {LAYOUT_COPIES: confirmed.layout_copy_bytes} if confirmed.layout_copy_bytes else {}
    after = Memory(confirmed.planned_bytes, 0, {**request.static, **kept}, {}, {})
    before = Memory(framework.original_bytes(), 0, _without_workspaces(request, hidden), {}, {})
    if after.total > before.total:
        raise GraphError(f"it would need {after.total:,} bytes, the original graph needs {before.total:,}")
    result = _resized(plan, training, before, after, framework)
    return PlannedGraph(result, marked, base, None, Names.of(graph, base))


def _without_workspaces(request: Request, hidden: int) -> dict[str, int]:
    static = replace(request, workspaces=0).static
    return {**static, HIDDEN: hidden} if hidden else static


def _resized(plan: Plan, training: TrainingGraph, before: Memory, after: Memory, framework: Framework) -> Plan:
    """The plan with the bytes of other shapes, and with seconds in proportion to the bytes of the original graph."""
    sizes = {
        (node.original, output): array_type.bytes
        for _, node in training.operators()
        if node.original is not None
        for output, array_type in enumerate(node.outputs)
    }
    factor = before.planned / max(1, plan.before.planned)

    def resized(decision: Decision) -> Decision:
        size = sizes.get((decision.node, decision.output), decision.bytes)
        return replace(decision, bytes=size, seconds=decision.seconds * factor)

    return replace(
        plan,
        decisions=tuple(map(resized, plan.decisions)),
        before=before,
        after=after,
        key=framework.key,
        notes=(*(note for note in plan.notes if note != NOTE), NOTE),
        step_seconds=plan.step_seconds * factor,
        overhead_seconds=plan.overhead_seconds * factor,
        stock_seconds=None if plan.stock_seconds is None else plan.stock_seconds * factor,
    )
