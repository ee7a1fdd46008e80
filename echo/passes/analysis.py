"""The passes that find out: the training graph, candidates for recomputation, segments, and seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import ClassVar, Mapping, Sequence

from echo.errors import OptionError, matches_no_node
from echo.estimators.cost_model import CostModel
from echo.estimators.inplace import as_stock, displacing, in_place, over_first_input
from echo.estimators.layouts import copied, has_layouts, may_be_blocked, relaid, with_layout_copies
from echo.ir.gradient_rules import gradient_rules
from echo.ir.graph import Entry, Graph
from echo.ir.ops import spec
from echo.ir.training_graph import Runner, TrainingGraph, common_subexpressions
from echo.ir.training_node import TrainingNode, all_outputs, why_not_reader, why_not_recomputable
from echo.passes.request import Request
from echo.policies.problem import Segments, partition

# The training graph of the original graph, from the framework's own gradient pass.


@dataclass(frozen=True)
class Differentiate:
    """Asks the framework, which asks MXNet. Gradients then get rules by which they read less where they can.

    Those rules keep every bit. An operator whose bits could depend on it works in place where it does in the user's
    graph, and nowhere else.
    """

    name: ClassVar[str] = "differentiate"
    needs: ClassVar[tuple[type, ...]] = (Request,)
    gives: ClassVar[type] = TrainingGraph

    def run(self, request: Request) -> TrainingGraph:
        framework = request.framework
        original = framework.differentiate()
        if not framework.hook:
            return original
        training = with_layout_copies(as_stock(original, framework.device), framework.device)
        if request.memory_frozen_reason:
            return training
        copied_entries, may_overwrite = copied(training, framework.device), over_first_input(original, framework.device)
        rules = gradient_rules(training, framework.onednn, copied_entries, framework.cudnn, may_overwrite)
        while rules:
            changed = framework.apply_gradient_rules(training, rules)
            displaced = displacing(training, changed, framework.device)
            if not displaced:
                return changed
            rules = {number: rule for number, rule in rules.items() if number not in displaced}
        return training


# Which feature maps may be recomputed at all: safe operators, and what the user insists on.

_DRAWS = "in inference the graph draws random numbers, and a backward pass after that could not run it again"
_LAYOUT_MAY_DIFFER = "its copy could have another of oneDNN's layouts, and sums after it other last bits"
_RELAID = "a view changes from oneDNN's layout to the plain one"


@dataclass(frozen=True)
class Candidates:
    """Recomputable entries by node, of light and of compute-heavy operators.

    ``must_recompute`` are the entries of the nodes that the user insists on. ``refused`` says for every other forward
    operator why it stays stashed.
    """

    light: Mapping[int, tuple[Entry, ...]]
    heavy: Mapping[int, tuple[Entry, ...]]
    must_recompute: frozenset[Entry]
    refused: Mapping[int, str]


@dataclass(frozen=True)
class FindCandidates:
    """Sorts the forward nodes. A user's pattern has to match nodes, and only nodes that can be recomputed."""

    name: ClassVar[str] = "find candidates"
    needs: ClassVar[tuple[type, ...]] = (Request, TrainingGraph)
    gives: ClassVar[type] = Candidates

    def run(self, request: Request, training: TrainingGraph) -> Candidates:
        keep = _matching(request, training, "keep", request.options.keep)
        recompute = _matching(request, training, "recompute", request.options.recompute)
        _check_conflict(training, keep, recompute)
        heads = {entry.node for entry in training.outputs}
        outputs_stay = _why_outputs_stay(training, request.framework.device)
        graph_stays = request.memory_frozen_reason
        unsettled = _why_layout_may_differ(request, training)
        draws = training.runner == Runner.EXECUTOR and _draws_in_inference(training)
        light: dict[int, tuple[Entry, ...]] = {}
        heavy: dict[int, tuple[Entry, ...]] = {}
        refused: dict[int, str] = {}
        must_recompute: set[Entry] = set()
        for number, node in training.operators():
            if not node.forward:
                continue
            refusal = _refusal(request, training, number, heads, keep) or unsettled.get(number, "")
            refusal = refusal or why_not_recomputable(node, request.framework.device, request.framework.hook)
            refusal = refusal or outputs_stay.get(number, "") or graph_stays
            if draws and not refusal and number not in recompute and _is_train_mode_sensitive(node):
                refusal = _DRAWS
            if refusal:
                if number in recompute:
                    raise OptionError(f"recompute: {node.name!r} ({node.op}) cannot be recomputed: {refusal}")
                refused[number] = refusal
                continue
            outputs = all_outputs(node, request.framework.hook)
            entries = tuple([Entry(number, output) for output in outputs])
            if number in recompute:
                must_recompute.update(entries)
            elif spec(node.op).cost.heavy:
                heavy[number] = entries
            else:
                light[number] = entries
        return Candidates(light, heavy, frozenset(must_recompute), refused)


def _refusal(request: Request, training: TrainingGraph, number: int, heads: set[int], keep: Mapping[int, str]) -> str:
    node = training.nodes[number]
    if number in keep:
        return f"kept: matches {keep[number]!r}"
    if number in heads:
        return "an output of the symbol lives to the end anyway"
    if node.original is None:
        return "not a node of the symbol"
    if any(0 in array_type.shape or not array_type.shape for array_type in node.outputs[:1]):
        return "an array without elements"
    if training.runner != Runner.EXECUTOR and node.stateful and not spec(node.op).safety.clone_op:
        return f"{node.op} keeps state, for which a CachedOp has no room twice"
    return ""


def _why_layout_may_differ(request: Request, training: TrainingGraph) -> dict[int, str]:
    """The reason for each node whose clone could have another of oneDNN's layouts than the node itself.

    A copy that MXNet computes in place has the layout of its input, and so has its clone (`moved` refuses others).
    """
    if not has_layouts(training, request.framework.device):
        return {}
    settled, reasons = in_place(training), {}
    for number, node in training.operators():
        if not node.forward or not may_be_blocked(node.outputs[0]):
            continue
        if (
            (spec(node.op).layout.clone_layout_may_differ and number not in settled)
            or node.shape_only
            or not request.framework.hook
        ):
            reasons[number] = _LAYOUT_MAY_DIFFER
    return reasons


def _draws_in_inference(training: TrainingGraph) -> bool:
    return any(
        node.forward and node.random and not spec(node.op).random.draws_in_training(node.attrs)
        for _, node in training.operators()
    )


def _is_train_mode_sensitive(node: TrainingNode) -> bool:
    """Whether the node would have to be recomputed in the mode of the forward pass (`echo.runtime.executor`)."""
    return bool(spec(node.op).safety.clone_op) or spec(node.op).safety.train_mode_sensitive(node.attrs)


def _why_outputs_stay(training: TrainingGraph, device: str) -> dict[int, str]:
    """The reason for each node whose outputs have to stay in memory as they are."""
    reasons, layouts, changing = {}, has_layouts(training, device), relaid(training, device)
    reasons.update({entry.node: f"{_RELAID} in place" for entry in changing})
    for number, node in training.operators():
        if changing and node.forward and any(Entry(*entry[:2]) in changing for entry in node.inputs):
            reasons[number] = f"it reads what {_RELAID} in place after it"
        for position in node.shape_only if layouts else ():
            entry = node.inputs[position]
            if may_be_blocked(training.type_of(entry)):  # it reads the shape of the array that is there by then
                reasons[entry.node] = f"{node.name!r} reads its shape, and would meet another layout"
        for position, entry in enumerate(node.inputs) if node.forward else ():
            reason = why_not_reader(node.op, node.attrs, position)
            if reason:
                reasons[entry.node] = f"{node.name!r} reads it: {reason}"
    return reasons


def named(graph: Graph, patterns: Sequence[str]) -> frozenset[int]:
    """The operators of a graph that one of these patterns of names and operators matches."""
    operators = [(number, node) for number, node in enumerate(graph.nodes) if not node.is_variable]
    return frozenset(
        number
        for number, node in operators
        if any(_is_named(text, pattern) for text in (node.name, node.op) for pattern in patterns)
    )


def _is_named(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _names(graph: Graph, training: TrainingGraph) -> dict[int, list[str]]:
    """The user's names for each forward node: more than one where MXNet merges equal nodes."""
    number_of = {node.original: number for number, node in training.operators() if node.original is not None}
    names = {number: [node.name] for number, node in training.operators() if node.forward}
    for duplicate, original in common_subexpressions(graph, training).items():
        names[number_of[original]].append(graph.nodes[duplicate].name)
    return names


def _matching(request: Request, training: TrainingGraph, option: str, patterns: tuple[str, ...]) -> dict[int, str]:
    matches: dict[int, str] = {}
    names = _names(request.graph, training) if patterns else {}
    for pattern in patterns:
        hits = [
            number
            for number, node_names in names.items()
            if any(_is_named(name, pattern) for name in [*node_names, training.nodes[number].op])
        ]
        if not hits:
            operators = (node.op for _, node in training.operators() if node.forward)
            raise OptionError(matches_no_node(option, pattern, operators, chain.from_iterable(names.values())))
        matches.update({number: pattern for number in hits})
    return matches


def _check_conflict(training: TrainingGraph, keep: Mapping[int, str], recompute: Mapping[int, str]) -> None:
    both = sorted(set(keep) & set(recompute))
    if both:
        name = training.nodes[both[0]].name
        raise OptionError(
            f"expected node {name!r} in one of keep and recompute, "
            f"got both keep {keep[both[0]]!r} and recompute {recompute[both[0]]!r}"
        )


# Partition of the forward graph at compute-heavy operators (Echo, ISCA'20, section 4).
#
# A segment is a group of forward nodes that may be recomputed and that hang together without passing through an
# operator that is too expensive to run twice, or that must not.


@dataclass(frozen=True)
class Partition:
    """Finds the segments of light operators."""

    name: ClassVar[str] = "partition"
    needs: ClassVar[tuple[type, ...]] = (TrainingGraph, Candidates)
    gives: ClassVar[type] = Segments

    def run(self, training: TrainingGraph, candidates: Candidates) -> Segments:
        return partition(training, candidates.light)


# Seconds of every node, measured on the user's device where that is possible.


@dataclass(frozen=True)
class EstimateCost:
    """``time_limit``: seconds of work that measuring may take, or for long steps up to twice as many.

    A part is for a second look at some (`echo.estimators.cost_model.Measuring`). Operators that are not measured by
    then are estimated. By the clock, measuring ends after a third of the time that is left for planning: the rest is
    for the search. The start of the process that measures counts. With a warm start, ``warm_time_limit`` starts no such
    process: the families of operators were measured for another graph of the same model. After a search that ended
    late, a refinement of its graph has new operators; ``late`` of all the time is for these. If masks as bits are only
    estimated, they may be too large a part of a step to know its seconds.
    """

    time_limit: float = 1.0
    warm_time_limit: float = 0.0
    late: float = 0.02
    name: ClassVar[str] = "estimate cost"
    needs: ClassVar[tuple[type, ...]] = (Request, TrainingGraph)
    gives: ClassVar[type] = CostModel

    def run(self, request: Request, training: TrainingGraph) -> CostModel:
        deadline, warm = request.deadline, request.warm_start
        limit = self.time_limit if warm is None or warm.is_known else self.warm_time_limit
        clock = max(deadline.with_room().left / 3, min(deadline.left, self.late * deadline.seconds))
        start = time.monotonic()
        costs = request.framework.costs(training, limit, clock)
        request.timing.append((start, time.monotonic()))
        return costs
