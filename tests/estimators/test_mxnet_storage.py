"""Storage assignment: the native one, the reference, an independent checker, and MXNet with the hook agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo.estimators.mxnet_storage import Block, assign_chunks, blocks_of, plan_storage
from echo.estimators.storage_planner import ReferencePlanner, StoragePlanner
from echo.frontend.derived_graphs import as_cached
from echo.frontend.symbols import symbol_of
from echo.ir.schedule import with_clones
from echo.ir.training_graph import Runner, StorageStrategy, TrainingGraph
from echo.plans.decisions import mark
from tests.estimators.test_runners import allocated, trained_inputs
from tests.support.cases import ALL_CASES, Case, any_case, case_of
from tests.support.made_graphs import Builder
from tests.support.planning import choice_of
from tests.support.training import assert_same, bind, random_arrays, train

BLOCKS = st.lists(
    st.builds(lambda size, first, length: Block(4 * size, first, first + length),
              st.integers(1, 40), st.integers(0, 60), st.integers(0, 25)),
    max_size=60,
)  # fmt: skip


def most_alive(blocks: list[Block]) -> int:
    return max((sum(b.bytes for b in blocks if b.first <= at <= b.last) for at in range(100)), default=0)


def check(blocks: Sequence[Block], chunk_of: Sequence[int], sizes: Sequence[int]) -> None:
    """Checks the rules of an assignment, without knowing how it was made.

    Raises:
        ValueError: two blocks that are alive together share a chunk, or a block is larger than its chunk.
    """
    members: dict[int, list[Block]] = {}
    for block, chunk in zip(blocks, chunk_of):
        members.setdefault(chunk, []).append(block)
    for chunk, sharing in members.items():
        sharing.sort(key=lambda block: block.first)
        for before, after in zip(sharing, sharing[1:]):
            if after.first <= before.last:
                raise ValueError(f"chunk {chunk}: {before} and {after} are alive together")
        if max(block.bytes for block in sharing) > sizes[chunk]:
            raise ValueError(f"chunk {chunk} has {sizes[chunk]} bytes, too few for its blocks")


@given(BLOCKS)
@settings(max_examples=200, deadline=None)
def test_blocks_that_share_a_chunk_never_live_together(blocks: list[Block]) -> None:
    chunk_of, sizes = assign_chunks(blocks)
    check(blocks, chunk_of, sizes)
    assert most_alive(blocks) <= sum(sizes) <= sum(block.bytes for block in blocks)


def test_the_checker_finds_what_is_wrong() -> None:
    blocks = [Block(8, 0, 5), Block(4, 5, 9), Block(4, 6, 7)]
    check(blocks, [0, 1, 0], [8, 4])
    with pytest.raises(ValueError, match="are alive together"):
        check(blocks, [0, 0, 1], [8, 4])
    with pytest.raises(ValueError, match="too few"):
        check(blocks, [0, 1, 0], [4, 4])


def test_large_blocks_come_first() -> None:
    """In the order of their lifetimes the small block would take the chunk that the large one needs."""
    blocks = [Block(10, 0, 1), Block(2, 2, 5), Block(10, 3, 4), Block(2, 0, 1)]
    assert sum(assign_chunks(blocks)[1]) == 12


# what the large chunk leaves free for the block that lives longest; what the small one leaves free for a large block
LARGEST_FIRST = [Block(1, 4, 7), Block(2, 6, 7), Block(3, 1, 4), Block(3, 2, 2)]
SMALLEST_FIRST = [Block(2, 3, 5), Block(1, 0, 3), Block(3, 5, 7), Block(1, 0, 2)]


@pytest.mark.parametrize(("blocks", "total"), [(LARGEST_FIRST, 6), (SMALLEST_FIRST, 5)])
def test_the_better_of_two_ways(blocks: list[Block], total: int) -> None:
    """Each of these needs one byte more where every block takes the other one of the chunks that are free."""
    chunk_of, sizes = assign_chunks(blocks)
    check(blocks, chunk_of, sizes)
    assert sum(sizes) == total


def moved(case: Case, seed: int, share: float) -> tuple[frozenset[object], TrainingGraph]:
    entries = case.draw(seed, share)
    return entries, with_clones(case.training, entries)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", ALL_CASES)
def test_native_reference_and_mxnet_agree(name: str) -> None:
    case = any_case(name)
    seconds = [0.0] * len(case.training.nodes)
    fast, slow = StoragePlanner(case.training, seconds), ReferencePlanner(case.training, seconds)
    for seed, share in enumerate((0.0, 0.4, 1.0)):
        entries = case.draw(seed, share)
        choice = choice_of(case.training, entries)
        asked = (StorageStrategy.ASSIGNED, StorageStrategy.PEAK, 16)
        totals = fast.evaluate(choice, asked).totals
        assert totals == slow.evaluate(choice, asked).totals
        assert totals[1] <= totals[0]
        marks: dict[int, list[int]] = {}
        for entry in entries:
            original = case.training.nodes[entry.node].original
            assert original is not None
            marks.setdefault(original, []).append(entry.index)
        graph = mark(case.graph, marks, hook=True, match_range=StorageStrategy.ASSIGNED)
        assert case.bound(graph).planned_bytes == totals[0]


@pytest.mark.parametrize("name", ALL_CASES)
def test_assignments_of_training_graphs_are_sound(name: str) -> None:
    training = with_clones(any_case(name).training, any_case(name).draw(3, 0.5))
    apart = plan_storage(training, 0)
    together = plan_storage(training, StorageStrategy.ASSIGNED)
    blocks = blocks_of(training, apart.chunk, apart.chunk_bytes)
    numbers = sorted(blocks)
    chunk_of = {old: new for old, new in zip(apart.chunk, together.chunk) if old >= 0 and new >= 0}
    check([blocks[number] for number in numbers], [chunk_of[number] for number in numbers], together.chunk_bytes)
    assert together.total == sum(together.chunk_bytes)


def steps_of_one_weight(steps: int) -> Case:
    """So many products with one weight, whose gradients MXNet adds up in one array as it computes them."""
    weight, x = mx.sym.var("weight"), mx.sym.var("data")
    for step in range(steps):
        x = mx.sym.Activation(
            mx.sym.FullyConnected(x, weight, no_bias=True, num_hidden=64, name=f"step{step}"), act_type="tanh"
        )
    return case_of(mx.sym.MakeLoss(x), {"data": (2, 64)})


def test_gradient_added_in_place_needs_no_memory() -> None:
    case = steps_of_one_weight(12)
    added = [(node.op, sorted(node.untouched)) for node in case.training.nodes if node.untouched]
    # the first step's product also leaves out the gradient of the data, which nothing reads
    assert added == 10 * [("_backward_FullyConnected", [1])] + [("_backward_FullyConnected", [0, 1])]
    sums = [kind.bytes for node in case.training.nodes if node.op == "_grad_add" for kind in node.outputs]
    blocks = plan_storage(case.training, 0)
    assert (
        64 * 64 * 4
        == sums[0]
        <= plan_storage(case.training, StorageStrategy.ASSIGNED).total
        < 2 * sums[0]
        < blocks.total
    )
    bound = case.bound(mark(case.graph, {}, hook=True, match_range=StorageStrategy.ASSIGNED))
    assert bound.planned_bytes == plan_storage(case.training, StorageStrategy.ASSIGNED).total
    assert bound.accumulations == case.training.accumulations == 11 * (True,)


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_sums_have_their_bits_without_that_memory(grad_req: str) -> None:
    case = steps_of_one_weight(12)
    shapes = {"data": (2, 64)}
    values = random_arrays(symbol_of(case.graph), shapes)
    results = []
    for match_range in (None, StorageStrategy.ASSIGNED):
        symbol = symbol_of(mark(case.graph, {}, hook=True, match_range=match_range))
        results.append(train(bind(symbol, values, grad_req)))
    assert_same(*results)


@pytest.mark.parametrize("name", ["resnet50_v1", "densenet121", "slices", "two outputs", "steps", "many readers"])
def test_static_cached_ops_are_assigned_too(name: str) -> None:
    case = trained_inputs(steps_of_one_weight(12) if name == "steps" else any_case(name))
    training = as_cached(case.training, Runner.STATIC, 16)
    assert sum(len(node.untouched) for node in training.nodes) == sum(training.accumulations)
    assert any(training.accumulations) == (name in ("steps", "many readers"))
    graph = mark(case.graph, {}, hook=True, match_range=StorageStrategy.ASSIGNED, static=True)
    found = (
        StoragePlanner(training, [0.0] * len(training.nodes))
        .evaluate(choice_of(training, ()), (StorageStrategy.ASSIGNED,))
        .bytes
    )
    assert sum(allocated(case, graph, static=True)) == found == plan_storage(training, StorageStrategy.ASSIGNED).total


@pytest.mark.parametrize("name", ["nmt", "densenet121", "many readers", "dropout"])
def test_bits_stay(name: str) -> None:
    case = any_case(name)
    results = []
    for match_range in (None, StorageStrategy.ASSIGNED):
        mx.random.seed(7)
        symbol = symbol_of(mark(case.graph, {}, hook=True, match_range=match_range))
        executor = symbol.simple_bind(mx.cpu(), grad_req=list(case.binding.grad_req), **dict(zip(
            symbol.list_arguments(), case.binding.arg_shapes)))  # fmt: skip
        generator = np.random.RandomState(0)
        for array in executor.arg_arrays:
            array[:] = generator.randint(0, 3, array.shape) + generator.uniform(0, 0.5)
        for array in executor.aux_arrays:
            array[:] = 1
        for _ in range(2):
            executor.forward(is_train=True)
            executor.backward([mx.nd.ones(out.shape) for out in executor.outputs])
        mx.nd.waitall()
        arrays = [*executor.outputs, *(g for g in executor.grad_arrays if g is not None), *executor.aux_arrays]
        results.append([array.asnumpy() for array in arrays])
    for one, other in zip(*results):
        np.testing.assert_array_equal(one, other)


def chain(*elements: int, **last: Any) -> TrainingGraph:
    """x -> 0 -> 1 -> ...; each map has so many elements of four bytes, and only the next reads it."""
    b = Builder()
    maps = [b.variable("x", 1)]
    for number, count in enumerate(elements):
        more = last if number == len(elements) - 1 else {}
        maps.append(b.forward("exp", f"map{number}", (count,), maps[-1], **more))
    return b.graph([maps[-1]])


def chunks(training: TrainingGraph, match_range: int = 16) -> tuple[int, ...]:
    return plan_storage(training, match_range).chunk[1:]


def test_a_chunk_is_free_after_its_last_reader() -> None:
    training = chain(10, 10, 10, 10)
    assert chunks(training) == (0, 1, 0, 1)
    assert plan_storage(training).total == 80


@pytest.mark.parametrize(("match_range", "total"), [(0, 4 * 112), (1, 4 * 112), (2, 4 * 112), (16, 4 * 110)])
def test_the_match_range_bounds_how_much_a_chunk_may_differ(match_range: int, total: int) -> None:
    """The third map would take the chunk of the first, which is fifty times as large or small; at most 16 times."""
    found = plan_storage(chain(10, 100, 2), match_range)
    assert found.total == total
    assert (found.chunk[3] == found.chunk[1]) == (match_range == 16)


def test_a_chunk_grows_to_the_largest_map_in_it() -> None:
    found = plan_storage(chain(10, 10, 30))
    assert found.chunk_bytes == (120, 40)


@pytest.mark.parametrize(
    ("pair", "elements", "shared"),
    [((0, 0, False), 10, True), ((0, 0, False), 20, False), ((0, 0, True), 10, True)],
)
def test_operator_works_in_place_only_with_equal_sizes(
    pair: tuple[int, int, bool], elements: int, shared: bool
) -> None:
    found = plan_storage(chain(10, elements, inplace=(pair,)))
    assert (found.chunk[2] == found.chunk[1]) == shared
    assert found.inplace[2] == (0 if shared else -1)


def test_a_map_that_is_read_again_stays() -> None:
    b = Builder()
    x = b.variable("x", 10)
    one = b.forward("exp", "one", (10,), x)
    two = b.forward("exp", "two", (10,), one, inplace=((0, 0, False),))
    three = b.forward("add", "three", (10,), two, one)
    found = plan_storage(b.graph([three]))
    assert len({found.chunk[entry.node] for entry in (one, two, three)}) == 3
    assert found.inplace == (-1, -1, -1, -1)


def test_a_view_shares_what_others_read() -> None:
    b = Builder()
    x = b.variable("x", 10)
    one = b.forward("exp", "one", (10,), x)
    view = b.forward("Reshape", "view", (10,), one, inplace=((0, 0, True),))
    both = b.forward("add", "both", (10,), view, one)
    found = plan_storage(b.graph([both]))
    assert found.chunk[view.node] == found.chunk[one.node]
    assert found.total == 80


def test_external_and_untouched_outputs_take_no_memory() -> None:
    assert plan_storage(chain(10, 10, external=frozenset({0}))).total == 40
    assert plan_storage(chain(10, 10, untouched=frozenset({0}))).total == 40
    assert plan_storage(chain(10, 10)).total == 80


def test_echos_own_assignment_and_the_peak() -> None:
    """Assigned largest first, the small maps lie in what the large ones leave free."""
    training = chain(10, 10, 100, 100, 10)
    assert plan_storage(training, StorageStrategy.ASSIGNED).total == 4 * 200
    assert plan_storage(training, StorageStrategy.PEAK).total == 4 * 200
    assert plan_storage(training, 0).total == 4 * 230


def two_passes(runner: str) -> TrainingGraph:
    b = Builder()
    x = b.variable("x", 10)
    first = b.forward("exp", "first", (10,), x)
    second = b.forward("exp", "second", (10,), first)
    loss = b.forward("exp", "loss", (10,), second)
    gradient = b.backward("_backward", "gradient", (10,), loss)
    last = b.backward("_backward", "last", (10,), gradient, first)
    return replace(b.graph([loss, last]), runner=runner)


@pytest.mark.parametrize(
    ("runner", "total"), [(Runner.EXECUTOR, 4 * 40), (Runner.STATIC, 4 * 50), (Runner.DYNAMIC, 4 * 40)]
)
def test_the_passes_of_a_cached_op_are_planned_apart(runner: str, total: int) -> None:
    """After the forward pass everything stays where it is; allocated dynamically, what is alive at once counts."""
    assert plan_storage(two_passes(runner)).total == total


def test_blocks_live_from_their_first_to_their_last_entry() -> None:
    training = chain(10, 10, 10)
    found = plan_storage(training, 0)
    blocks = blocks_of(training, found.chunk, found.chunk_bytes)
    assert [(block.bytes, block.first, block.last) for block in blocks.values()][:2] == [(40, 1, 2), (40, 2, 3)]
