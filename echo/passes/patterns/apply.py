"""Puts fused operators instead of patterns: the graph keeps its arguments, their order, and its outputs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import AbstractSet, Callable, Iterable, Iterator, Mapping, Sequence, Tuple

from echo.errors import GraphError
from echo.ir.graph import NO_SETTING, PREFIX, Entry, Graph, Setting
from echo.ir.training_node import TensorType
from echo.passes.patterns import LAYERS, PATTERNS, QUIET, batched_products, substitute
from echo.passes.patterns.graph_view import Fusion, Pattern, View
from echo.passes.patterns.legality import Infer, check_inferred_types, numbered, ordered, unnumbered
from echo.passes.patterns.substitute import applied
from echo.plans.decisions import MissedFusion, Note

_ANY_TYPE = "#"  # in front of a shape: the type does not count
_TRIES = 32  # graphs that are made to find the match sites that would change an order, each in some milliseconds
ORDER = "the order of arguments, or of random numbers, would change"
MatchSite = Tuple[str, int]  # the name of a pattern, and the number of the user's node where it is found
Types = Mapping[Entry, TensorType]
Refused = Mapping[Tuple[str, str], str]  # why there must be no fused operator of this kind and name


@dataclass(frozen=True)
class Fused:
    """The graph with fused operators, the match sites of the patterns that they replace, and the near-misses.

    ``counts`` has the number of fusions by label. ``hidden`` are the bytes that the replaced operators hold beyond
    planned memory. ``bits`` says why no operator may change last bits, empty where one may.
    """

    graph: Graph
    match_sites: tuple[MatchSite, ...] = ()
    missed: tuple[MissedFusion, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    hidden: int = 0
    notes: tuple[Note, ...] = ()
    bits: str = ""


class Matcher:
    """Matches each pattern once at a node, whatever is pinned, left out or refused afterwards.

    It remembers the results in one graph, the last that was asked about.
    """

    def __init__(self) -> None:
        self._view: View | None = None
        self._results: dict[MatchSite, Fusion | str | None] = {}

    def of(self, graph: Graph, setting: Setting) -> Matcher:
        """This matcher, ready for a graph; it forgets another one."""
        if self._view is None or self._view.setting != setting or self._view.graph != graph:
            self._view, self._results = View(graph, setting), {}
        return self

    def result(self, pattern: Pattern, number: int) -> Fusion | str | None:
        """The result of a pattern at a node of the graph; None without a try where the operators rule it out."""
        view, site = self._view, (pattern.name, number)
        if view is None or not pattern.may_match(view.graph, number):
            return None
        if site not in self._results:
            self._results[site] = _match(view, pattern, number)
        return self._results[site]


def find(
    graph: Graph,
    pinned: AbstractSet[int] = frozenset(),
    without: AbstractSet[str] = frozenset(),
    refused: Refused = MappingProxyType({}),
    setting: Setting = NO_SETTING,
    matcher: Matcher | None = None,
) -> tuple[list[Fusion], list[MissedFusion]]:
    """All fusions that do not overlap, those that replace most first, and the near-misses.

    ``pinned`` nodes stay, ``without`` are patterns that are not matched. A ``matcher`` remembers what matches.
    """
    matcher = (matcher or Matcher()).of(graph, setting)
    by_anchor: dict[str, list[Pattern]] = defaultdict(list)
    for pattern in PATTERNS.values():
        for op in pattern.anchors if pattern.name not in without else ():
            by_anchor[op].append(pattern)
    fusions: list[Fusion] = []
    missed: list[MissedFusion] = []
    for number, node in enumerate(graph.nodes):
        for pattern in by_anchor.get(node.op, ()):
            result = matcher.result(pattern, number)
            if isinstance(result, Fusion):
                kinds = [(new.op, new.name) for new in result.nodes]
                result = next((refused[kind] for kind in kinds if kind in refused), result)
            if isinstance(result, Fusion) and not pinned.isdisjoint(result.replaced):
                result = f"keep or recompute names {graph.nodes[min(pinned & result.replaced)].name!r}, which is inside"
            if isinstance(result, Fusion):
                fusions.append(result)
            elif result is not None:
                missed.append(missed_fusion(graph, (pattern.name, number), result))
    return list(_disjoint(fusions)), missed


def _match(view: View, pattern: Pattern, number: int) -> Fusion | str | None:
    """The result of a pattern at a node; a near-miss where the shape that the fusion needs is known too late."""
    match = view.result(pattern, number)
    late = (
        view.shape_known_too_late(match.shape_source)
        if isinstance(match, Fusion) and match.shape_source is not None
        else ""
    )
    return late or match


def _disjoint(fusions: Iterable[Fusion]) -> Iterator[Fusion]:
    """The fusions that do not overlap, those that replace most first."""
    taken: set[int] = set()
    for fusion in sorted(fusions, key=lambda fusion: (-len(fusion.replaced), fusion.anchor)):
        if taken.isdisjoint(fusion.replaced):
            taken |= fusion.replaced
            yield fusion


def fuse(
    graph: Graph,
    types: Callable[[], Types],
    copies: bool,
    pinned: AbstractSet[int] = frozenset(),
    without: AbstractSet[str] = frozenset(),
    refused: Refused = MappingProxyType({}),
    why_left: Callable[[Fusion, Types], str] = lambda *_: "",
    setting: Setting = NO_SETTING,
    infer: Infer | None = None,
    matcher: Matcher | None = None,
) -> Fused:
    """The original graph with all the fused operators that its shapes and types allow.

    ``types`` gives the shape and type of each of the user's entries. With ``copies``, gradients may be added to arrays
    that hold other gradients. ``pinned`` are nodes that the user wants kept or recomputed: no fusion replaces them.
    ``without``, ``refused`` and ``matcher`` are as for `find`; ``why_left`` gives another reason against a fusion that
    fits. ``infer`` asks MXNet whether fused operators compute arrays like those that they take the place of.
    """
    graph, matcher = numbered(graph), matcher or Matcher()
    fusions, missed = find(graph, pinned, without, refused, setting, matcher)
    entry_types = types() if fusions else {}
    shaped = _fusion_blockers(fusions, entry_types, infer)
    fitting, layers = [], dict[Tuple[str, str], str]()  # layers that are left, whose cells may be fused
    for fusion in fusions:
        reason = shaped[fusion.anchor]
        if not reason and (reason := why_left(fusion, entry_types)):
            layers.update(_layers([fusion], reason))
        if reason:
            missed.append(missed_fusion(graph, fusion.match_site, reason, _is_small(fusion, entry_types)))
        else:
            fitting.append(fusion)
    taken, fused_graph = _in_order(graph, fitting, copies)
    anchors = {fusion.anchor for fusion in taken}
    if layers := layers or _layers(fusion for fusion in fitting if fusion.anchor not in anchors):
        return fuse(graph, types, copies, pinned, without, {**refused, **layers}, why_left, setting, infer, matcher)
    missed += [missed_fusion(graph, fusion.match_site, ORDER) for fusion in fitting if fusion.anchor not in anchors]
    sites, counts = tuple(fusion.match_site for fusion in taken), Counter(fusion.label for fusion in taken)
    return Fused(unnumbered(fused_graph), sites, tuple(missed), counts, _hidden(taken, entry_types))


def _hidden(fusions: Iterable[Fusion], types: Types) -> int:
    """Returns the bytes that the replaced operators hold beyond planned memory."""
    arrays = filter(None, (fusion.hidden_bytes for fusion in fusions))
    return sum(times * types[entry].bytes for times, entry in arrays)


def _fusion_blockers(fusions: Iterable[Fusion], types: Types, infer: Infer | None) -> dict[int, str]:
    """Returns, by its anchor, why shapes or types forbid each fusion; an empty text where they allow it."""
    reasons = {fusion.anchor: fusion_blocker(fusion, types) for fusion in fusions}
    right = [fusion for fusion in fusions if not reasons[fusion.anchor]]
    return reasons if infer is None else {**reasons, **check_inferred_types(right, types, infer)}


def _layers(fusions: Iterable[Fusion], reason: str = ORDER) -> dict[tuple[str, str], str]:
    """Returns the operators of whole layers among fusions that cannot be taken, with the reason."""
    nodes = (new for fusion in fusions if fusion.pattern in LAYERS for new in fusion.nodes)
    return {(new.op, new.name): reason for new in nodes if new.op.startswith(PREFIX)}


def missed_fusion(graph: Graph, site: MatchSite, reason: str, small: bool = False) -> MissedFusion:
    """A near-miss at a match site in the graph; one whose arrays are too ``small`` to matter is quiet."""
    pattern, number = site
    return MissedFusion(number, graph.nodes[number].name, pattern, reason, quiet=small or pattern in QUIET)


def fused_at(graph: Graph, match_sites: Sequence[MatchSite], copies: bool, setting: Setting = NO_SETTING) -> Graph:
    """The graph with the fused operators of a plan, which may come from anywhere, and then with its layouts.

    Raises:
        GraphError: there is no such pattern, or no such group of products, at one of these match sites.
    """
    graph = numbered(graph)
    return _with_fusions(graph, _fusions_at(graph, match_sites, setting), match_sites, copies)


def fused_for_shapes(
    graph: Graph, match_sites: Sequence[MatchSite], copies: bool, setting: Setting, types: Types, infer: Infer
) -> tuple[Graph, int]:
    """Returns the graph with the fused operators of a plan that was made for other shapes.

    Also returns the bytes that the replaced operators hold beyond planned memory. ``types`` and ``infer`` are those of
    the shapes at hand, as for `fuse`.

    Raises:
        GraphError: as `fused_at`, or these shapes do not allow one of the operators.
    """
    graph = numbered(graph)
    fusions = _fusions_at(graph, match_sites, setting)
    reasons = _fusion_blockers(fusions, types, infer)
    for fusion in fusions:
        if reasons[fusion.anchor]:
            name = graph.nodes[fusion.anchor].name
            raise GraphError(f"fused: node {fusion.anchor} ({name!r}) is no {fusion.pattern}: {reasons[fusion.anchor]}")
    return _with_fusions(graph, fusions, match_sites, copies), _hidden(fusions, types)


def _fusions_at(graph: Graph, match_sites: Sequence[MatchSite], setting: Setting) -> list[Fusion]:
    """Returns the fusion at each match site that is no layout."""
    matcher, fusions = Matcher().of(graph, setting), []
    for name, number in match_sites:
        if batched_products.is_layout(name):
            continue
        if name not in PATTERNS or not 0 <= number < len(graph.nodes):
            raise GraphError(f"fused: there is no pattern {name!r} at node {number}")
        fusion = matcher.result(PATTERNS[name], number)
        if not isinstance(fusion, Fusion):
            why = fusion or "nothing alike"
            raise GraphError(f"fused: node {number} ({graph.nodes[number].name!r}) is no {name}: {why}")
        fusions.append(fusion)
    if len(list(_disjoint(fusions))) != len(fusions):
        raise GraphError("fused: two of the operators would take the place of the same nodes")
    return fusions


def _with_fusions(graph: Graph, fusions: Sequence[Fusion], match_sites: Sequence[MatchSite], copies: bool) -> Graph:
    """Returns the graph with these fusions, and with the layouts among the match sites."""
    fused_graph = _fused_graph(graph, fusions, copies)
    if fused_graph is None:
        raise GraphError(f"fused: {ORDER}")
    fused_graph = unnumbered(fused_graph)
    layouts = [site for site in match_sites if batched_products.is_layout(site[0])]
    taken, result = laid_out(fused_graph, batched_products.found_at(View(fused_graph), layouts), copies)
    if len(taken) < len(layouts):
        raise GraphError(f"fused: {ORDER}")
    return result


def laid_out(graph: Graph, fusions: Sequence[Fusion], copies: bool) -> tuple[list[Fusion], Graph]:
    """As many of the layouts as leave arguments and random numbers in their order, and the graph with them."""
    taken, laid_out_graph = _as_many(numbered(graph), [], list(fusions), copies)
    return taken, unnumbered(laid_out_graph)


def _fused_graph(graph: Graph, fusions: Sequence[Fusion], copies: bool) -> Graph | None:
    """The graph with these fusions, tidied; None where arguments or random numbers would come in another order.

    The order is checked last, since each change of the graph may change it.
    """
    if not fusions:
        return graph
    fused_graph = applied(graph, fusions, copies) if len(list(_disjoint(fusions))) == len(fusions) else None
    return None if fused_graph is None else ordered(_tidied(fused_graph, copies), graph)


def _tidied(graph: Graph, copies: bool) -> Graph:
    """The graph without pairs of nodes that split steps apart and put them together again between fused operators."""
    view = View(graph)
    fusions = [
        substitute.match(view, number) for number, node in enumerate(graph.nodes) if node.op in substitute.ANCHORS
    ]
    tidy_graph = applied(graph, list(filter(None, fusions)), copies)
    assert tidy_graph is not None
    shared_graph = applied(tidy_graph, substitute.equal(View(tidy_graph)), copies)
    assert shared_graph is not None
    return shared_graph


def fusion_blocker(fusion: Fusion, types: Types) -> str:
    """Why the shapes or types of the entries that a fusion reads do not allow it; empty where they do."""
    sizes: dict[str, int] = {}
    dtypes = {types[entry].dtype for entry, text in fusion.shapes.items() if not text.startswith(_ANY_TYPE)}
    if len(dtypes) > 1 or not dtypes.issubset(fusion.dtypes):
        return f"expected arrays of one type, {' or '.join(fusion.dtypes)}, got {', '.join(sorted(dtypes))}"
    if fusion.min_bytes is not None and _is_small(fusion, types):
        return f"too small: {types[fusion.min_bytes[0]].bytes:,} bytes, expected {fusion.min_bytes[1]:,} or more"
    for entry, text in fusion.shapes.items():
        shape = types[entry].shape
        if not shape or 0 in shape or any(size < 0 for size in shape):
            return f"an array of shape {shape} is empty, or not known"
        if not _fits(text, shape, sizes):
            return f"expected shape ({text}), got {shape}" + (f" where {sizes}" if sizes else "")
    return ""


def _is_small(fusion: Fusion, types: Types) -> bool:
    return fusion.min_bytes is not None and types[fusion.min_bytes[0]].bytes < fusion.min_bytes[1]


def _fits(text: str, shape: tuple[int, ...], sizes: dict[str, int]) -> bool:
    text = text.lstrip(_ANY_TYPE)
    if text.startswith("*"):  # that many elements, in any shape
        shape, text = (math.prod(shape),), text[1:]
    if text.startswith("1...,"):  # axes of size 1 in front, or none
        shape, text = _without_ones(shape), text[len("1...,") :]
    if text.startswith("1?,"):  # an axis of size 1 in front, or none
        shape, text = shape[1:] if len(shape) > 1 and shape[0] == 1 else shape, text[3:]
    names = text.replace("...", "").split(",")
    if text.startswith("..."):  # any axes in front
        shape = shape[-len(names) :]
    if len(names) != len(shape):
        return False
    for name, size in zip(names, shape):
        if name.isdigit() or (name.endswith("?") and size == 1):
            if size != int(name.rstrip("?") if name.isdigit() else 1):
                return False
            continue
        name = name.rstrip("?")
        factor, letter = (int(name[:-1]), name[-1]) if name[:-1].isdigit() else (1, name)
        if size % factor or sizes.setdefault(letter, size // factor) != size // factor:
            return False
    return True


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape from its first axis on that is no 1, or from its last one."""
    ones = next((number for number, size in enumerate(shape[:-1]) if size != 1), len(shape) - 1)
    return shape[ones:]


def _in_order(graph: Graph, fusions: list[Fusion], copies: bool) -> tuple[list[Fusion], Graph]:
    """As many of the fusions as leave arguments and random numbers in their order, and the graph with them.

    Where not all do, the fusions of one pattern are mostly the cause: of these, some tries find as many as can stay.
    """
    names = sorted({fusion.pattern for fusion in fusions})
    for left_out in [[], *([name] for name in names), names]:
        taken = [fusion for fusion in fusions if fusion.pattern not in left_out]
        fused_graph = _fused_graph(graph, taken, copies)
        if fused_graph is not None:
            more = [fusion for fusion in fusions if fusion.pattern in left_out]
            taken, fused_graph = _as_many(graph, taken, more, copies) if more else (taken, fused_graph)
            return sorted(taken, key=lambda fusion: fusion.anchor), fused_graph
    raise AssertionError("the graph itself is in order")


def _as_many(graph: Graph, taken: list[Fusion], more: list[Fusion], copies: bool) -> tuple[list[Fusion], Graph]:
    """The fusions ``taken``, as many of ``more`` as keep the order, tried by halves, and the graph with them."""
    fused_graph = _fused_graph(graph, taken, copies)
    assert fused_graph is not None
    groups = [more] if more else []
    for _ in range(_TRIES):
        if not groups:
            break
        group = groups.pop()
        larger_graph = _fused_graph(graph, [*taken, *group], copies)
        if larger_graph is not None:
            taken, fused_graph = [*taken, *group], larger_graph
        elif len(group) > 1:
            half = len(group) // 2
            groups += [group[half:], group[:half]]
    return taken, fused_graph
