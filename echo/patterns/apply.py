"""Fused operators in the place of patterns: the graph keeps its arguments, their order, and its outputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import AbstractSet, Callable, Iterable, Iterator, Mapping, Sequence, Tuple, Union

from echo.errors import GraphError
from echo.graph import Entry, Graph, Node
from echo.kernels.operators import PREFIX, num_outputs
from echo.patterns import CPU_ONLY, PATTERNS, hoist, steps
from echo.patterns.view import Fusion, View, local
from echo.plan import Missed
from echo.training_graph import TensorType

COPY_ATTRIBUTE = "__echo_copies__"  # read by the native hook: which gradients of this operator are copied
_OVERWRITES = ("reverse",)  # as all operators of an extension library do
_FUSED_TYPES = ("float32", "float16")
_RANDOM = ("Dropout", "Custom", "random", "sample", "shuffle", "LeakyReLU", "normal", "uniform")
SMALL = "too small"
ORDER = "the order of arguments, or of random numbers, would change"
Place = Tuple[str, int]  # the name of a pattern, and the number of the user's node where it is found
Types = Mapping[Entry, TensorType]


@dataclass(frozen=True)
class Fused:
    """The graph with fused operators, where they were found, and where they nearly were.

    ``what`` counts each kind. ``hidden`` are bytes that the user's operators hold there beyond what is planned.
    """

    graph: Graph
    places: tuple[Place, ...] = ()
    missed: tuple[Missed, ...] = ()
    what: Mapping[str, int] = field(default_factory=dict)
    hidden: int = 0
    notes: tuple[str, ...] = ()


def find(
    graph: Graph, device: str, wished: AbstractSet[int] = frozenset(), without: AbstractSet[str] = frozenset()
) -> tuple[list[Fusion], list[Missed]]:
    """All fusions that do not overlap, those that replace most first, and the near-misses; ``wished`` nodes stay."""
    view = View(graph)
    without = without if device == "cpu" else without | CPU_ONLY
    patterns = [name for name in PATTERNS if name not in without]
    found: list[Fusion] = []
    missed: list[Missed] = []
    for number, node in enumerate(graph.nodes):
        if node.is_variable:
            continue
        for name in patterns:
            result = _match(view, name, number)
            if isinstance(result, Fusion) and not wished.isdisjoint(result.replaced):
                result = f"keep or recompute names {graph.nodes[min(wished & result.replaced)].name!r}, which is inside"
            if isinstance(result, Fusion):
                found.append(result)
            elif result is not None:
                missed.append(Missed(number, node.name, name, result))
    return list(_apart(found)), missed


def _match(view: View, name: str, number: int) -> Fusion | str | None:
    """What a pattern finds at a node; no fusion where the shape that it hangs on is known too late."""
    found = PATTERNS[name](view, number)
    late = view.late(found.hangs_on) if isinstance(found, Fusion) and found.hangs_on is not None else ""
    return late or found


def _apart(found: Iterable[Fusion]) -> Iterator[Fusion]:
    taken: set[int] = set()
    for fusion in sorted(found, key=lambda each: (-len(each.replaced), each.anchor)):
        if taken.isdisjoint(fusion.replaced):
            taken |= fusion.replaced
            yield fusion


def fuse(
    graph: Graph,
    types: Callable[[], Types],
    copies: bool,
    device: str = "cpu",
    wished: AbstractSet[int] = frozenset(),
    without: AbstractSet[str] = frozenset(),
) -> Fused:
    """The user's graph with all the fused operators that its shapes and types allow.

    ``types`` gives the shape and type of each of the user's entries. With ``copies``, gradients may be added to arrays
    that hold others. ``wished`` are nodes that the user wants kept or recomputed: they are left alone. ``without`` are
    patterns that are not looked for.
    """
    found, missed = find(graph, device, wished, without)
    known = types() if found else {}
    fitting = []
    for fusion in found:
        wrong = why_not(fusion, known)
        if wrong:
            missed.append(_miss(graph, fusion, wrong))
        else:
            fitting.append(fusion)
    kept, made = _in_order(graph, fitting, copies)
    missed += [
        _miss(graph, fusion, ORDER)
        for fusion in fitting
        if fusion not in kept
    ]
    kept.sort(key=lambda fusion: fusion.anchor)
    made = _tidied(made, copies) if kept else graph
    places = tuple((fusion.pattern, fusion.anchor) for fusion in kept)
    hidden = sum(fusion.hides[0] * known[fusion.hides[1]].bytes for fusion in kept if fusion.hides is not None)
    return Fused(made, places, tuple(missed), Counter(fusion.what for fusion in kept), hidden)


def _miss(graph: Graph, fusion: Fusion, reason: str) -> Missed:
    return Missed(fusion.anchor, graph.nodes[fusion.anchor].name, fusion.pattern, reason)


def fused_at(graph: Graph, places: Sequence[Place], copies: bool, device: str = "cpu") -> Graph:
    """The graph with the fused operators of a plan, which may come from anywhere, and then with its layouts.

    Raises:
        GraphError: there is no such pattern, or no such family of products, at one of these places.
    """
    view, found = View(graph), []
    layouts = [place for place in places if hoist.is_layout(place[0])]
    for name, number in places:
        if hoist.is_layout(name):
            continue
        if name not in PATTERNS or (device != "cpu" and name in CPU_ONLY) or not 0 <= number < len(graph.nodes):
            raise GraphError(f"fused: there is no pattern {name!r} at node {number}")
        fusion = _match(view, name, number)
        if not isinstance(fusion, Fusion):
            why = fusion or "nothing alike"
            raise GraphError(f"fused: node {number} ({graph.nodes[number].name!r}) is no {name}: {why}")
        found.append(fusion)
    if len(list(_apart(found))) != len(found):
        raise GraphError("fused: two of the operators would take the place of the same nodes")
    made = applied(graph, found, copies)
    made = None if made is None else _ordered(made, graph)
    if made is None:
        raise GraphError(f"fused: {ORDER}")
    made = _tidied(made, copies)
    kept, result = laid_out(made, hoist.found_at(View(made), layouts), copies)
    if len(kept) < len(layouts):
        raise GraphError(f"fused: {ORDER}")
    return result


def laid_out(graph: Graph, fusions: Sequence[Fusion], copies: bool) -> tuple[list[Fusion], Graph]:
    """As many of the layouts of products as leave arguments and random numbers in their order, the graph with them."""

    def made(fusions: Sequence[Fusion]) -> Graph | None:
        found = applied(graph, fusions, copies) if len(list(_apart(fusions))) == len(fusions) else None
        return None if found is None else _ordered(found, graph)

    kept, result = list(fusions), made(fusions) if fusions else graph
    if result is None:
        kept, result = [], graph
        for fusion in fusions:
            more = made([*kept, fusion])
            if more is not None:
                kept, result = [*kept, fusion], more
    return kept, _tidied(result, copies) if kept else graph


def _tidied(graph: Graph, copies: bool) -> Graph:
    """The graph in which steps that one fused operator splits apart are not put together again for the next."""
    view = View(graph)
    found = [steps.match(view, number) for number, node in enumerate(graph.nodes) if not node.is_variable]
    made = applied(graph, [fusion for fusion in found if fusion is not None], copies)
    assert made is not None
    return made


def why_not(fusion: Fusion, types: Types) -> str:
    """Why the shapes or types of what a fusion reads do not allow it; empty where they do."""
    sizes: dict[str, int] = {}
    kinds = {types[entry].dtype for entry in fusion.shapes}
    if len(kinds) > 1 or not kinds.issubset(_FUSED_TYPES):
        return f"expected arrays of one type, float32 or float16, got {', '.join(sorted(kinds))}"
    if fusion.worth is not None and types[fusion.worth[0]].bytes < fusion.worth[1]:
        return f"{SMALL}: {types[fusion.worth[0]].bytes:,} bytes, expected {fusion.worth[1]:,} or more"
    for entry, text in fusion.shapes.items():
        shape = types[entry].shape
        if not shape or 0 in shape or any(size < 0 for size in shape):
            return f"an array of shape {shape} is empty, or not known"
        if not _fits(text, shape, sizes):
            return f"expected shape ({text}), got {shape}" + (f" where {sizes}" if sizes else "")
    return ""


def _fits(text: str, shape: tuple[int, ...], sizes: dict[str, int]) -> bool:
    if text.startswith("*"):  # that many elements, in any shape
        total = 1
        for size in shape:
            total *= size
        shape, text = (total,), text[1:]
    if text.startswith("1?,"):  # an axis of size 1 in front, or none
        shape, text = shape[1:] if len(shape) > 1 and shape[0] == 1 else shape, text[3:]
    names = text.replace("...", "").split(",")
    if text.startswith("..."):  # any axes in front
        shape = shape[-len(names) :]
    if len(names) != len(shape):
        return False
    for name, size in zip(names, shape):
        if name.isdigit():
            if size != int(name):
                return False
            continue
        factor, letter = (int(name[:-1]), name[-1]) if name[:-1].isdigit() else (1, name)
        if size % factor or sizes.setdefault(letter, size // factor) != size // factor:
            return False
    return True


def _in_order(graph: Graph, fusions: list[Fusion], copies: bool) -> tuple[list[Fusion], Graph]:
    """As many of the fusions as leave arguments and random numbers in their order, and the graph with them."""
    names = sorted({fusion.pattern for fusion in fusions})
    for left_out in [[], *([name] for name in names), names]:
        kept = [fusion for fusion in fusions if fusion.pattern not in left_out]
        made = applied(graph, kept, copies) if kept else graph
        made = None if made is None else _ordered(made, graph)
        if made is not None:
            return kept, made
    raise AssertionError("the graph itself is in order")


def _ordered(made: Graph, user: Graph) -> Graph | None:
    """The graph with the variables in the order that they have for the user, None where it cannot be had.

    MXNet orders them as it comes to them, depth first, control dependencies last. Where a fused operator reads what it
    needs in another order than the user's nodes did, the operator before the first that comes too early waits for all
    that are to come; where there is none, a copy of the variable before it does.
    """
    if _random(made) != _random(user):
        return None
    wanted, found = _variables(user), _variables(made)
    if found == wanted:
        return made
    if sorted(found) != sorted(wanted):
        return None
    place = {made.nodes[number].name: number for number in made.arg_nodes}
    early = next(place[name] for name, other in zip(found, wanted) if name != other)
    waits = max((number for number in range(early) if not made.nodes[number].is_variable), default=None)
    repair = _copy_before(made, early) if waits is None else (waits, (made.nodes[waits],))
    if repair is None:
        return None
    at, nodes = repair
    late = tuple(place[name] for name in wanted if place[name] >= (early if waits is None else waits))
    nodes = (nodes[0]._with(inputs=nodes[0].inputs, control_deps=(*nodes[0].control_deps, *late)), *nodes[1:])
    outputs = {Entry(at, k): local(len(nodes) - 1, k) for k in range(made.num_outputs(at))}
    again = applied(made, [Fusion("order", at, nodes, outputs, frozenset({at}), {}, "")], copies=False)
    return again if again is not None and _variables(again) == wanted else None


def _copy_before(graph: Graph, variable: int) -> tuple[int, tuple[Node, Node]] | None:
    """The first reader of a variable, which reads another one before it: with a copy of that."""
    reader = next(number for number, node in enumerate(graph.nodes) if variable in (e.node for e in node.inputs))
    node = graph.nodes[reader]
    index = [entry.node for entry in node.inputs].index(variable)
    if index == 0:
        return None
    copy = Node("_copy", f"{node.name}_echo_order", (node.inputs[index - 1],))
    return reader, (copy, node._with(inputs=(*node.inputs[: index - 1], local(0), *node.inputs[index:])))


def _variables(graph: Graph) -> list[str]:
    return [graph.nodes[number].name for number in graph.arg_nodes]


def _random(graph: Graph) -> list[str]:
    """Operators that draw random numbers, in the order in which MXNet comes to them, by the user's names."""
    draws = {op: any(word in op for word in _RANDOM) for op in {node.op for node in graph.nodes}}
    return [node.name.partition("_echo_")[0] for node in graph.nodes if draws[node.op] or _drops(node)]


def _drops(node: Node) -> bool:
    layers, dropout = int(node.attrs.get("num_layers", "1")), float(node.attrs.get("p", "0"))
    return node.op == "RNN" and layers > 1 and dropout > 0


_Key = Union[int, Tuple[int, int]]  # a node of the user, or a position within a fusion


def applied(graph: Graph, fusions: Sequence[Fusion], copies: bool) -> Graph | None:
    """The graph with these fusions, in depth-first order as MXNet walks it; None where they would close a cycle."""
    moved: dict[Entry, tuple[Entry, int]] = {}
    for number, fusion in enumerate(fusions):
        moved.update({entry: (new, number) for entry, new in fusion.outputs.items()})

    def resolve(entry: Entry, which: int) -> tuple[_Key, int, int]:
        while entry.node >= 0:
            new = moved.get(Entry(entry.node, entry.index))
            if new is None:
                return entry.node, entry.index, entry.version
            entry, which = new
        return (which, -1 - entry.node), entry.index, 0

    def node_of(key: _Key) -> tuple[Node, int]:
        return (graph.nodes[key], -1) if isinstance(key, int) else (fusions[key[0]].nodes[key[1]], key[0])

    numbers: dict[_Key, int] = {}
    nodes: list[Node] = []
    counts: list[int] = []
    for key in _depth_first([resolve(head, -1)[0] for head in graph.heads], node_of, resolve):
        if key is None:
            return None
        node, which = node_of(key)
        inputs = [resolve(entry, which) for entry in node.inputs]
        deps = tuple(numbers[dep] for dep in node.control_deps)
        numbers[key] = len(nodes)
        found = tuple(Entry(numbers[source], index, version) for source, index, version in inputs)
        node = node._with(inputs=found, control_deps=deps)
        if which >= 0 and node.op.startswith((PREFIX, *_OVERWRITES)) and COPY_ATTRIBUTE not in node.attrs:
            node = node.with_attrs({COPY_ATTRIBUTE: "all" if copies else "sums"})
        nodes.append(node)
        counts.append(graph.num_outputs(key) if isinstance(key, int) else num_outputs(node))
    heads = tuple(Entry(numbers[key], index, version) for key, index, version in (resolve(h, -1) for h in graph.heads))
    return Graph(
        nodes=tuple(nodes),
        heads=heads,
        arg_nodes=tuple(number for number, node in enumerate(nodes) if node.is_variable),
        row_ptr=_running_sum(counts),
        attrs=graph.attrs,
    )


def _depth_first(heads: Sequence[_Key], node_of, resolve) -> Iterator[_Key | None]:  # type: ignore[no-untyped-def]
    """Nodes after their inputs and control dependencies; None where one depends on itself."""
    done: set[_Key] = set()
    open_: set[_Key] = set()
    for head in heads:
        stack = [head]
        while stack:
            key = stack[-1]
            if key in done:
                stack.pop()
                continue
            node, which = node_of(key)
            below = [resolve(entry, which)[0] for entry in node.inputs] + list(node.control_deps)
            waiting = [each for each in below if each not in done]
            if not waiting:
                done.add(key)
                open_.discard(key)
                stack.pop()
                yield key
            elif key in open_ and any(each in open_ for each in waiting):
                yield None
                return
            else:
                open_.add(key)
                stack.extend(reversed(waiting))


def _running_sum(counts: Sequence[int]) -> tuple[int, ...]:
    sums = [0]
    for count in counts:
        sums.append(sums[-1] + count)
    return tuple(sums)
