"""Refinements of the chosen graph: masks as bits, and products of one weight in their fastest layout."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar, Mapping, Protocol, Sequence

from echo.estimators.cost_model import LateError, UnavailableError, UnmeasurableError
from echo.estimators.cost_table import FLOPS_PER_SECOND, CostTable
from echo.ir.graph import Entry, Graph
from echo.ir.op_spec import is_true
from echo.ir.training_node import FLAGS, TensorType
from echo.passes.analysis import named
from echo.passes.fuse import with_operators
from echo.passes.patterns import MASKS, PATTERNS
from echo.passes.patterns.apply import ORDER, Fused, Types, find, laid_out, missed_fusion
from echo.passes.patterns.batched_products import (
    CHUNK,
    NAME,
    TRANSPOSED,
    Product,
    ProductGroup,
    fusion,
    product_groups,
    sample,
)
from echo.passes.patterns.graph_view import Fusion, View
from echo.passes.patterns.substitute import applied
from echo.passes.request import Request
from echo.passes.rules import RULES
from echo.plans.decisions import MissedFusion, Note
from echo.plans.plan import Plan
from echo.system.terminal import MB


class Proposal(Protocol):
    """The value of a refinement: ``unchanged`` is the graph as it was, ``fused`` the refined one or None.

    ``unchanged`` has all near-misses, also those of the refinement.
    """

    @property
    def unchanged(self) -> Fused: ...
    @property
    def fused(self) -> Fused | None: ...
    def why_not_tried(self, request: Request, without: Plan) -> str:
        """Why the refined graph is not planned, judged by the plan without the refinement; empty where it is."""

    def why_not_taken(self, request: Request, without: Plan, refined: Plan) -> str:
        """Why the refined graph is left, judged by the plans without and with it; empty where it is taken."""

    def rejected(self, request: Request, without: Plan | None, reason: str) -> Fused:
        """Returns the unchanged graph, and why it is not refined; ``without`` is its plan, where it has one."""


class Refinement(Protocol):
    """A pass that offers another graph instead of the chosen one.

    ``label`` says in messages what it puts in. ``keeps_budgets``: it may keep a budget that no plan keeps without it.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    keeps_budgets: ClassVar[bool]
    needs: ClassVar[tuple[type, ...]]
    gives: ClassVar[type]

    def run(self, request: Request, fused: Fused) -> Proposal: ...


# Masks of one bit an element, instead of MXNet's numbers: less memory, and a little more time.


@dataclass(frozen=True)
class Masked:
    """``unchanged`` is the graph as it was, ``fused`` the graph with masks as bits, None where it has no such masks.

    ``bytes`` are the bytes of those masks as numbers.
    """

    unchanged: Fused
    fused: Fused | None = None
    bytes: int = 0

    def rejected(self, request: Request, without: Plan | None, reason: str) -> Fused:
        """Returns the unchanged graph, with the masks that are not packed into bits as near-misses."""
        if self.fused is None:
            return self.unchanged
        small = without is not None and self._is_small(without)
        sites = [site for site in self.fused.match_sites if site[0] in MASKS]
        missed = (missed_fusion(request.graph, site, reason, small) for site in sites)
        return replace(self.unchanged, missed=(*self.unchanged.missed, *missed))

    def _is_small(self, without: Plan) -> bool:
        return self.bytes < RULES.mask_bytes * without.after.chosen

    def why_not_tried(self, request: Request, without: Plan) -> str:
        """Empty where the masks are large enough; within a budget, recomputation also has to cost more than bits."""
        if self._is_small(without):
            return f"too small: the masks have {self.bytes:,} of {without.after.chosen:,} bytes"
        slow = request.options.memory_budget is None or without.overhead > RULES.mask_time
        return "" if slow else "a mask as bits takes time, and the budget is met without"

    def why_not_taken(self, request: Request, without: Plan, refined: Plan) -> str:
        """Empty where bits lower planned memory, or within a budget save time."""
        if request.options.memory_budget is not None:
            if refined.overhead + RULES.mask_time < without.overhead:
                return ""
            return f"nothing to gain: +{refined.overhead:.1%} time with masks as bits, +{without.overhead:.1%} without"
        before, after = without.after.chosen, refined.after.chosen
        if after < (1 - RULES.mask_bytes) * before:
            return ""
        return f"nothing to gain: {after / MB:.2f} MB planned with masks as bits, {before / MB:.2f} MB without"


@dataclass(frozen=True)
class PackMasks:
    """Adds masks as bits to the fused operators: of Dropout, and of ReLUs whose output no other gradient reads.

    Gist (Jain et al., ISCA 2018) keeps such masks of ReLUs. Outputs, gradients and random numbers stay as they are.
    """

    name: ClassVar[str] = "pack masks"
    label: ClassVar[str] = "masks as bits"
    keeps_budgets: ClassVar[bool] = True
    needs: ClassVar[tuple[type, ...]] = (Request, Fused)
    gives: ClassVar[type] = Masked

    def run(self, request: Request, fused: Fused) -> Masked:
        framework, options = request.framework, request.options
        if not options.fuses or framework.why_no_fusion:
            return Masked(fused)
        pinned = named(request.graph, options.user_constraints)
        others, setting = frozenset(PATTERNS) - MASKS, framework.setting
        masks, near_misses = find(request.graph, pinned, others, setting=setting, matcher=request.matcher)
        if not masks:
            return Masked(replace(fused, missed=(*fused.missed, *near_misses)))
        without = frozenset(PATTERNS) - MASKS - {name for name, _ in fused.match_sites}
        packed = with_operators(request, without)
        missed = (*fused.missed, *(each for each in packed.missed if each.pattern in MASKS))
        unchanged = replace(fused, missed=missed)
        masked = [number for name, number in packed.match_sites if name in MASKS]
        if not masked:
            return Masked(unchanged)
        types = framework.types()
        total = sum(types[Entry(number)].bytes for number in masked)
        return Masked(unchanged, replace(packed, missed=missed, notes=fused.notes, bits=fused.bits), total)


# The layout of products with one weight, chosen by the time they take on this device (EcoRNN, MICRO'18, section 3).

_MOST_BYTES = 256 << 20  # of the arrays of a race
_LEAST_STEPS = 8  # of a race
_FLOATS = ("float32", "float64", "float16")


@dataclass(frozen=True)
class Batched:
    """``unchanged`` is the graph as it was, with the reasons for each group that stays as it is.

    ``fused`` is the graph with other layouts, None where none is faster. These save ``saved`` seconds a step, and
    ``gains`` has a text about each group.
    """

    unchanged: Fused
    fused: Fused | None = None
    saved: float = 0.0
    gains: tuple[str, ...] = ()

    def rejected(self, _: Request, __: Plan | None, reason: str) -> Fused:
        """The graph as it was, with a note on the gain of each layout that is left out."""
        more = (Note(f"left as it is ({reason}): {text}") for text in self.gains)
        return replace(self.unchanged, notes=(*self.unchanged.notes, *more))

    def why_not_tried(self, _: Request, __: Plan) -> str:
        """Returns an empty text: a graph with faster layouts is always planned."""
        return ""

    def why_not_taken(self, request: Request, without: Plan, refined: Plan) -> str:
        """Empty where the plan with other layouts needs hardly more memory, or keeps a budget, and saves time."""
        most = RULES.layout_bytes * without.after.chosen
        if request.options.memory_budget is None and refined.after.chosen > most:
            return f"{refined.after.chosen:,} bytes planned, at most {most:,.0f} wanted"
        lost = refined.overhead_seconds - without.overhead_seconds
        return "" if lost < self.saved else "it would cost more recomputation than it saves"


@dataclass(frozen=True)
class _LayoutChoice:
    """The layout for a group, empty where the group stays as it is, the seconds that it saves, and the reason."""

    reason: str
    layout: str = ""
    saved: float = 0.0


@dataclass(frozen=True)
class BatchProducts:
    """``group_limit``, ``time_limit``: seconds that measuring may take, for one group and for all of them."""

    group_limit: float = 0.5
    time_limit: float = 1.0
    name: ClassVar[str] = "batch products"
    label: ClassVar[str] = "layouts of products"
    keeps_budgets: ClassVar[bool] = False
    needs: ClassVar[tuple[type, ...]] = (Request, Fused)
    gives: ClassVar[type] = Batched

    def run(self, request: Request, fused: Fused) -> Batched:
        if not request.options.fuses or request.framework.why_no_fusion or fused.bits:
            return Batched(fused)
        view = View(fused.graph)
        found_groups, missed = product_groups(view)
        choices = self._choices(request, view, found_groups) if found_groups else []
        better = [(fusion(view, group, choice.layout), choice)
                  for group, choice in zip(found_groups, choices) if choice.layout]  # fmt: skip
        kept, graph = laid_out(fused.graph, [layout for layout, _ in better], request.framework.adds)
        missed += [_missed(view, group.members[0], choice.reason)
                   for group, choice in zip(found_groups, choices) if not choice.layout]  # fmt: skip
        missed += [_missed(view, layout.anchor, ORDER) for layout, _ in better if layout not in kept]
        unchanged = replace(fused, missed=(*fused.missed, *missed))
        return _batched(unchanged, graph, kept, [choice for layout, choice in better if layout in kept])

    def _choices(self, request: Request, view: View, found_groups: Sequence[ProductGroup]) -> list[_LayoutChoice]:
        framework = request.framework.on(view.graph)
        types, table, end = framework.types(), framework.cost_table(), time.perf_counter() + self.time_limit
        pinned = named(view.graph, request.options.user_constraints)
        choices = []
        for group in found_groups:
            if not pinned.isdisjoint([*group.members, *group.duplicates]):
                choices.append(_LayoutChoice("keep or recompute names one of these products"))
                continue
            product = _product(view, group, types)
            if isinstance(product, str):
                choices.append(_LayoutChoice(product))
                continue
            limit = min(self.group_limit, end - time.perf_counter())
            seconds = _measured(request, product, limit, table)
            choices.append(seconds if isinstance(seconds, _LayoutChoice) else _best(view, group, product, seconds))
        table.save()
        return choices


def _batched(unchanged: Fused, graph: Graph, kept: Sequence[Fusion], choices: Sequence[_LayoutChoice]) -> Batched:
    if not kept:
        return Batched(unchanged)
    gains = tuple(choice.reason for choice in choices)
    fused = replace(
        unchanged,
        graph=graph,
        match_sites=(*unchanged.match_sites, *(layout.match_site for layout in kept)),
        counts=Counter(unchanged.counts) + Counter(layout.label for layout in kept),
        notes=(*unchanged.notes, *map(Note, gains)),
    )
    return Batched(unchanged, fused, sum(choice.saved for choice in choices), gains)


def _missed(view: View, number: int, reason: str) -> MissedFusion:
    return MissedFusion(number, view.graph.nodes[number].name, NAME, reason)


def _product(view: View, group: ProductGroup, types: Types) -> Product | str:
    """The product that is measured for a group, or why none can be."""
    node = view.graph.nodes[group.members[0]]
    inputs = [view.graph.nodes[number].inputs[0] for number in group.members]
    input_types = {types[Entry(entry.node, entry.index)] for entry in inputs}
    data = next(iter(input_types))
    if len(input_types) > 1 or len(data.shape) != 2 or 0 in data.shape or data.dtype not in _FLOATS:
        return f"expected inputs of one type with two axes, got {', '.join(sorted(map(str, input_types)))}"
    (m, k), n = data.shape, int(node.attrs["num_hidden"])
    return Product(m, k, n, not is_true(node.attrs, "no_bias"), data.dtype, min(len(group.members), CHUNK))


def _measured(
    request: Request, product: Product, limit: float, table: CostTable
) -> Mapping[str, float] | _LayoutChoice:
    """Seconds of each layout, from the table or measured now and added to it; or a choice that says why not."""
    names = ["one by one", f"{NAME}:{CHUNK}", f"{TRANSPOSED}:{product.m}"]
    keys = {name: f"{name}: {product}" for name in names}
    if not all(key in table for key in keys.values()):
        late = _LayoutChoice(f"{product} were not measured: that would take more than {max(limit, 0):.1f} s")
        work = 6.0 * product.m * product.k * product.n * product.members  # forward, and two gradients
        if limit <= 0 or work * _LEAST_STEPS / FLOPS_PER_SECOND > 2 * limit or _bytes(product) > _MOST_BYTES:
            return late
        request.progress(f"batch products: {product}")
        try:
            seconds = _race(request, product, names, limit)
        except LateError:
            return late
        except UnmeasurableError:
            seconds = {}
        except UnavailableError as error:
            return _LayoutChoice(f"{product} were not measured: {error}")
        if seconds is None:
            return late
        for name, key in keys.items():
            table.add(key, seconds.get(name))
    costs = {name: table.get(key) for name, key in keys.items()}
    seconds_of = {name: seconds for name, seconds in costs.items() if seconds is not None}
    return seconds_of if len(seconds_of) == len(names) else _LayoutChoice(f"{product} cannot be measured")


def _race(request: Request, product: Product, names: Sequence[str], limit: float) -> Mapping[str, float] | None:
    graph = sample(product)
    view = View(graph)
    (group,), _ = product_groups(view)
    graphs = {names[0]: graph}
    for name in names[1:]:
        batched = applied(graph, [fusion(view, group, name)], copies=False)
        assert batched is not None
        graphs[name] = batched
    shapes = {"w": (product.n, product.k), "b": (product.n,)}
    arguments = graph.variable_names
    types = {name: TensorType(shapes.get(name, (product.m, product.k)), FLAGS[product.dtype]) for name in arguments}
    return request.framework.race(graphs, types, limit)


def _bytes(product: Product) -> int:
    m, k, n, _, dtype, members = product
    return TensorType((2 * n * k + 4 * members * m * (n + k),), FLAGS[dtype]).bytes


def _best(view: View, group: ProductGroup, product: Product, seconds: Mapping[str, float]) -> _LayoutChoice:
    one_by_one, *layouts = seconds
    first = min(seconds, key=lambda name: seconds[name])
    weight = view.node(view.graph.nodes[group.members[0]].inputs[1]).name
    ratios = ", ".join(f"{name} {seconds[one_by_one] / seconds[name]:.2f} times as fast" for name in layouts)
    if first == one_by_one or seconds[first] > (1 - RULES.layout_gain) * seconds[one_by_one]:
        return _LayoutChoice(f"nothing is faster than products one by one: {ratios}; {product}")
    saved = (seconds[one_by_one] - seconds[first]) * len(group.members) / product.members
    text = f"{len(group.members)} products with {weight!r}, {first}: {ratios}; {product}"
    return _LayoutChoice(text, first, saved)
