"""The paper's own acceptance checks (ISCA'20), and the limits that every policy keeps."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import mxnet as mx
import pytest
from mxnet.gluon.model_zoo import vision

from echo.estimators.storage_planner import Evaluation, RecomputeMask, ReferencePlanner, StoragePlanner
from echo.ir.graph import Entry
from echo.ir.schedule import RecomputeSchedule
from echo.policies import policy_of
from echo.policies.echo import Echo
from echo.policies.problem import Problem, partition
from echo.policies.search import Search
from tests.support.cases import ALL_CASES, Case, any_case, case_of
from tests.support.made_graphs import Builder, CountedGraph, diamonds
from tests.support.planning import costs_of, problem_of

BOTH = pytest.mark.parametrize("policy", [Search(), Echo()], ids=lambda policy: policy.name)


def recomputed(problem: Problem, schedule: RecomputeSchedule) -> set[str]:
    """Names of the nodes that are recomputed."""
    executed = problem.evaluator.executed(problem.choice(list(schedule)), schedule)
    return {problem.training.nodes[number].name for number in executed.nonzero()[0]}


def entries(problem: Problem, schedule: RecomputeSchedule) -> frozenset[Entry]:
    return frozenset(entry for number in schedule for entry in problem.candidates[number]) | problem.must_recompute


# (a) A cell whose output is the tanh: there is nothing to save ----------------------------------------------


def cell() -> Case:
    x, y = (mx.sym.FullyConnected(mx.sym.var(name), num_hidden=4096, name=f"fc_{name}") for name in "xy")
    symbol = mx.sym.tanh(mx.sym.elemwise_add(x, y, name="add"), name="tanh")
    return case_of(symbol, {"x": (32, 4096), "y": (32, 4096)})


@BOTH
def test_the_cell_is_left_alone(policy: Echo | Search) -> None:
    problem = problem_of(cell().training)
    assert recomputed(problem, policy.choose(problem)) == set()


# (b) MLP attention: large maps from small inputs ------------------------------------------------------------


def attention(grad_req: str) -> Case:
    x, weight = mx.sym.var("x"), mx.sym.var("weight")
    scores = []
    for step in range(5):
        both = mx.sym.broadcast_add(x, mx.sym.var(f"y{step}"), name=f"add{step}")
        hidden = mx.sym.tanh(both, name=f"tanh{step}")
        scores.append(mx.sym.FullyConnected(hidden, weight=weight, no_bias=True, num_hidden=1, name=f"score{step}"))
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.add_n(*scores), name="total"), name="loss")
    shapes = {"x": (5, 4096), **{f"y{step}": (1, 4096) for step in range(5)}}
    return case_of(symbol, shapes, grad_req={name: grad_req for name in shapes} | {"weight": "write"})


ALL_TEN = {f"{op}{step}" for op in ("add", "tanh") for step in range(5)}


@pytest.mark.parametrize("grad_req", ["write", "null"])
def test_the_whole_attention_is_recomputed(grad_req: str) -> None:
    problem = problem_of(attention(grad_req).training)
    assert recomputed(problem, Echo().choose(problem)) == ALL_TEN


@BOTH
def test_recomputing_the_attention_saves_its_maps(policy: Echo | Search) -> None:
    """Where x and y want gradients, MXNet holds as many gradients of maps at once, to add them up."""
    problem = problem_of(attention("null").training)
    choice = policy.choose(problem)
    stock = problem.evaluate(problem.choice()).bytes
    assert len(recomputed(problem, choice)) >= 8
    assert stock > 5 * 5 * 4096 * 4
    assert problem.value(choice).bytes < 0.5 * stock


# (c) Two tanh in front of a matrix product: the second is recomputed from the first ----------------------


def two_tanh() -> Case:
    first = mx.sym.tanh(mx.sym.var("data"), name="first")
    second = mx.sym.tanh(first, name="second")
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.FullyConnected(second, num_hidden=16, name="fc")), name="loss")
    return case_of(symbol, {"data": (64, 512)}, grad_req="write")


def test_the_first_tanh_is_kept_and_the_second_recomputed() -> None:
    case = two_tanh()
    problem = problem_of(case.training)
    choice = Echo().choose(problem)
    assert recomputed(problem, choice) == {"second"}


def test_the_gradient_of_the_product_reads_the_recomputed_map() -> None:
    case = two_tanh()
    problem = problem_of(case.training)
    chosen = entries(problem, Echo().choose(problem))
    bound = case.bound(case.rewritten(chosen))
    (gradient,) = (node for node in bound.nodes if node.op == "_backward_FullyConnected")
    read = [entry.node for entry in gradient.inputs if not bound.nodes[entry.node].is_variable]
    assert [(bound.nodes[number].op, bound.nodes[number].forward) for number in read][-1:] == [("tanh", False)]
    (clone,) = (number for number in read if bound.nodes[number].op == "tanh")
    (source,) = bound.nodes[clone].inputs
    assert bound.nodes[source.node].name == "first"
    assert bound.nodes[source.node].forward


# (d) ResNet-152 ----------------------------------------------------------------------------------------------


def resnet152(version: int) -> Case:
    with mx.name.NameManager():
        build = vision.resnet152_v1 if version == 1 else vision.resnet152_v2
        scores = build(prefix=f"resnet152_v{version}_")(mx.sym.var("data"))
        symbol = mx.sym.SoftmaxOutput(scores, mx.sym.var("softmax_label"), name="softmax")
    return case_of(symbol, {"data": (32, 3, 224, 224), "softmax_label": (32,)})


@pytest.mark.every(4)
@pytest.mark.parametrize("version", [1, 2])
@BOTH
def test_resnet152_plans_below_its_share_of_stock(policy: Echo | Search, version: int) -> None:
    """Under 0.6 of stock for the pre-activation network; what the others reach is held too."""
    problem = problem_of(resnet152(version).training, match_ranges=(16, 1, 2, 3), effort=4_000_000)
    ratio = problem.value(policy.choose(problem)).bytes / problem.training.planned_bytes
    assert ratio < {("search", 2): 0.6, ("search", 1): 0.65, ("echo", 2): 0.72, ("echo", 1): 0.80}[policy.name, version]


# Every policy -------------------------------------------------------------------------------------------------


@pytest.mark.every(5)
@BOTH
@pytest.mark.parametrize("name", ALL_CASES)
def test_choices_keep_to_the_candidates(name: str, policy: Echo | Search) -> None:
    problem = problem_of(any_case(name).training, effort=100_000)
    schedule = policy.choose(problem)
    assert set(schedule) <= set(problem.candidates)
    backward = {number for number, node in problem.training.operators() if not node.forward}
    assert all(
        set(positions) <= backward and list(positions) == sorted(set(positions)) for positions in schedule.values()
    )


@BOTH
@pytest.mark.parametrize("name", ["nmt", "resnet50_v1", "slices"])
def test_the_same_problem_gives_the_same_choice(name: str, policy: Echo | Search) -> None:
    case = any_case(name)
    choices = [policy.choose(problem_of(case.training, effort=200_000)) for _ in range(2)]
    assert choices[0] == choices[1]


@pytest.mark.every(5)
@BOTH
@pytest.mark.parametrize("bound", [0.0, 0.004, 0.02, 0.1])
@pytest.mark.parametrize("name", ["nmt", "lm", "dropout"])
def test_seconds_are_bounded(name: str, bound: float, policy: Echo | Search) -> None:
    problem = problem_of(any_case(name).training, max_seconds=bound, effort=300_000)
    value = problem.value(policy.choose(problem))
    assert value.seconds <= bound
    assert value.bytes <= problem.evaluate(problem.choice(), (16,)).bytes


@BOTH
def test_forced_entries_are_chosen_even_beyond_the_bound(policy: Echo | Search) -> None:
    problem = problem_of(any_case("dropout").training)
    number, *others = sorted(problem.candidates)
    must_recompute = frozenset(problem.candidates[number])
    rest = {other: problem.candidates[other] for other in others}
    segments = partition(problem.training, rest)
    problem = replace(
        problem, candidates=rest, segments=segments, must_recompute=must_recompute, max_seconds=0.0, effort=100_000
    )
    choice = problem.choice(list(policy.choose(problem)))
    assert all(choice[problem.training.entry_id(entry)] for entry in must_recompute)


@BOTH
def test_policy_without_candidates_gives_no_splits(policy: Echo | Search) -> None:
    problem = problem_of(any_case("dropout").training, effort=10_000)
    problem = replace(problem, candidates={}, segments=partition(problem.training, {}))
    assert not policy.choose(problem)


@BOTH
def test_policies_are_found_by_name(policy: Echo | Search) -> None:
    assert policy_of(policy.name) == policy


# Stacked diamonds: the published algorithm takes 3.1 million visits for twenty of them ---------------------------


def visits_of_echo(count: int) -> int:
    training = CountedGraph.of(diamonds(count))
    problem = problem_of(training)
    return training.visits(lambda: Echo().choose(problem))


def test_the_paper_s_policy_visits_nodes_of_diamonds_a_few_times() -> None:
    few, many = visits_of_echo(20), visits_of_echo(1000)
    assert few < 10 * 6 * 20
    assert many <= 1.1 * 50 * few


class Evaluations:
    """An evaluator that counts what it is asked, and how often the reference visits a node to answer."""

    def __init__(self, training: CountedGraph) -> None:
        seconds = costs_of(training).seconds
        self._fast, self._slow = StoragePlanner(training, seconds), ReferencePlanner(training, seconds)
        self._training = training
        self.entries, self.executed = self._fast.entries, self._fast.executed
        self.asked, self.most_visits = 0, 0

    def evaluate(self, choice: RecomputeMask, match_ranges: tuple[int, ...], *more: Any) -> Evaluation:
        self.asked += len(match_ranges)
        if self.asked % 40 == 1:
            visits = self._training.visits(lambda: self._slow.evaluate(choice, match_ranges[:1]))
            self.most_visits = max(self.most_visits, visits)
        return self._fast.evaluate(choice, match_ranges, *more)


@pytest.mark.parametrize("count", [20, 1000])
def test_the_search_evaluates_diamonds_as_often_as_it_may_and_each_in_linear_visits(count: int) -> None:
    training = CountedGraph.of(diamonds(count))
    evaluator = Evaluations(training)
    problem = replace(problem_of(training), evaluator=evaluator, effort=200 * len(training.nodes))
    schedule = Search().choose(problem)
    assert problem.value(schedule).bytes <= problem.evaluate(problem.choice()).bytes
    assert 100 < evaluator.asked < 300
    assert 0 < evaluator.most_visits < 40 * len(training.nodes)


# The algorithm of the paper -----------------------------------------------------------------------------------


def test_cheaper_bytes_come_first() -> None:
    """Every step of the attention saves the same; those that cost least are taken as long as time lasts."""
    training = attention("write").training
    costs = costs_of(training)
    cheap = {"add3": 1e-4, "tanh3": 1e-4, "add1": 2e-4, "tanh1": 2e-4}
    seconds = tuple(cheap.get(node.name, second) for node, second in zip(training.nodes, costs.seconds))
    costs = replace(costs, seconds=seconds)

    def within(bound: float) -> set[str]:
        problem = problem_of(training, costs, max_seconds=bound)
        return recomputed(problem, Echo().choose(problem))

    assert within(2e-4) == set(), "one step alone saves no more than its recomputation holds"
    assert within(7e-4) == set(cheap)
    assert within(1.0) == ALL_TEN


def test_memory_of_the_walk_is_linear_in_nodes() -> None:
    """Ten times the nodes in one segment take about ten times the memory, and so the time, not a hundred times."""

    def peak(length: int) -> int:
        b = Builder()
        maps = [b.variable("x", 4)]
        for step in range(length):
            maps.append(b.forward("tanh", f"t{step}", (4,), maps[-1]))
        gradient = b.variable("head", 4, forward=False)
        for number in reversed(range(1, length + 1)):
            gradient = b.backward("_backward_tanh", f"g{number}", (4,), gradient, maps[number])
        problem = problem_of(b.graph([maps[-1], gradient]), planner=ReferencePlanner)
        tracemalloc.start()
        Echo().choose(problem)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(3000) < 30 * peak(300)
