"""The choice keeps the user's limits, says what cannot be met, and takes heavy operators only when it must."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import Any

import mxnet as mx
import pytest

from echo.errors import BudgetError, OptionError
from echo.estimators.footprint import GRADIENTS, INPUTS, WEIGHTS
from echo.passes import select as select_pass
from echo.passes.analysis import FindCandidates, Partition
from echo.passes.request import Request
from echo.passes.rules import RULES
from echo.passes.select import Select, Selection
from echo.plans.options import Options
from echo.policies.mincut import least_bytes
from echo.policies.problem import Problem, WarmStart
from echo.system.process import NEVER
from tests.support.cases import Case, any_case, case_of
from tests.support.fake_frontend import FakeFramework
from tests.support.planning import costs_of, problem_of

STATIC = {WEIGHTS: 3 << 20, GRADIENTS: 3 << 20, INPUTS: 1 << 20}
MODELS = ["nmt", "lm", "resnet50_v2", "dropout", "slices"]


def request_of(case: Case, evaluations: int = 400, own_range: int = 16, **options: Any) -> Request:
    framework = FakeFramework(case.training, static=STATIC, match_range=own_range, evaluations=evaluations)
    return Request(case.graph, Options.of(**options), framework)


def select(case: Case, **options: Any) -> Selection:
    """The selection; where no plan keeps the budget, that of the search for the least, as the pipeline asks for it."""
    request = request_of(case, **options)
    training = case.training
    candidates = FindCandidates().run(request, training)
    segments = Partition().run(training, candidates)
    values = (training, candidates, segments, costs_of(training))
    try:
        return Select().run(request, *values)
    except BudgetError:
        (unreached,) = request.unreached
        error = unreached.search(NEVER)
        if error.reachable > error.budget:
            raise error from None
        return Select().run(replace(request, known_only=True), *values)


def heavy(case: Case, selection: Selection) -> set[str]:
    ops = ("FullyConnected", "Convolution", "dot", "batch_dot")
    return {case.training.nodes[number].name for number in selection.runs if case.training.nodes[number].op in ops}


def seconds(case: Case, selection: Selection) -> float:
    return sum(costs_of(case.training).seconds[number] * times for number, times in selection.runs.items())


# Without a budget ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["search", "echo"])
@pytest.mark.parametrize("name", MODELS)
def test_figures_are_mxnets_own(name: str, policy: str) -> None:
    case = any_case(name)
    found = select(case, policy=policy, max_overhead=None)
    assert found.planned_bytes == case.mxnet_memory_plan(
        case.rewritten(found.recompute, schedule=found.schedule), found.match_range
    )
    assert found.seconds == pytest.approx(seconds(case, found))
    assert {entry.node for entry in found.recompute} >= set(found.runs)
    assert not heavy(case, found), "nothing compute-heavy without a budget"


@pytest.mark.parametrize("name", MODELS)
def test_never_worse_than_the_stock_graph(name: str) -> None:
    case = any_case(name)
    assert select(case, max_overhead=None).planned_bytes <= case.training.planned_bytes


@pytest.mark.every(3)
@pytest.mark.parametrize("policy", ["search", "echo"])
@pytest.mark.parametrize("bound", [0, 0.01, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("name", ["nmt", "dropout"])
def test_time_is_kept_within_its_bound(name: str, bound: float, policy: str) -> None:
    case = any_case(name)
    found = select(case, policy=policy, max_overhead=bound)
    assert found.seconds <= bound * costs_of(case.training).step_seconds * (1 + 1e-9)
    if bound == 0:
        assert not found.runs


@pytest.mark.slow
def test_more_time_never_costs_memory() -> None:
    case = any_case("nmt")
    sizes = [select(case, max_overhead=bound, evaluations=3000).planned_bytes for bound in (0, 0.03, 0.1, 0.3, None)]
    for tight, loose in itertools.pairwise(sizes):
        assert loose <= 1.005 * tight, "each bound is a search of its own: 0.1 % was seen"
    assert sizes[-1] < 0.8 * sizes[0]


def test_default_bound_is_a_tenth_of_the_step_less_what_stays_free() -> None:
    case = any_case("lm")
    free = RULES.unsure * 0.10 + RULES.host / costs_of(case.training).step_seconds
    assert select(case) == select(case, max_overhead=0.10 - free)


def test_the_best_match_range_is_chosen() -> None:
    case = any_case("nmt")
    found = select(case, max_overhead=0)
    assert found.planned_bytes < case.training.planned_bytes, "another range is free memory"
    assert found.match_range != 16


@pytest.mark.parametrize("own", [1, 7, 16])
def test_mxnets_own_match_range_is_among_the_choices(own: int) -> None:
    case = any_case("dropout")
    seen: list[tuple[int, ...]] = []

    class Watching(FakeFramework):
        def evaluator(self, training: Any, given: Any) -> Any:
            evaluator, effort = super().evaluator(training, given)
            evaluate = evaluator.evaluate
            evaluator.evaluate = lambda choice, ranges, *more: (  # type: ignore[method-assign]
                seen.append(tuple(ranges)) or evaluate(choice, ranges, *more)
            )
            return evaluator, effort

    request = request_of(case, own_range=own)
    request = replace(request, framework=Watching(case.training, match_range=own, evaluations=100))
    candidates = FindCandidates().run(request, case.training)
    segments = Partition().run(case.training, candidates)
    Select().run(request, case.training, candidates, segments, costs_of(case.training))
    longest = max(seen, key=len)
    assert longest[0] == own
    assert len(set(longest)) == len(longest)


# What the user insists on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["search", "echo"])
@pytest.mark.parametrize("bound", [None, 0.0, 0.1])
def test_forced_maps_are_recomputed_and_kept_ones_are_not(policy: str, bound: float | None) -> None:
    case = any_case("dropout")
    found = select(case, policy=policy, max_overhead=bound, recompute=["tanh1", "fc2"], keep="sigmoid*")
    names = {case.training.nodes[number].name for number in found.runs}
    assert {"tanh1", "fc2"} <= {case.training.nodes[entry.node].name for entry in found.recompute}
    assert not any(name.startswith("sigmoid") for name in names)


def test_unknown_policy_is_named() -> None:
    with pytest.raises(OptionError, match=r"policy: expected one of search, echo, .*, got 'magic'"):
        select(any_case("slices"), policy="magic")


# With a budget ------------------------------------------------------------------------------------------------


def total(selection: Selection) -> int:
    return selection.planned_bytes + sum(STATIC.values())


@pytest.mark.every(3)
@pytest.mark.parametrize("policy", ["search", "echo"])
@pytest.mark.parametrize("name", ["nmt", "lm", "resnet50_v2", "dropout"])
def test_budgets_are_kept(name: str, policy: str) -> None:
    case = any_case(name)
    stock = case.training.planned_bytes
    least = select(case, policy=policy, max_overhead=None).planned_bytes
    for part in (0.0, 0.3, 0.7, 1.0):
        budget = sum(STATIC.values()) + int(least + part * (stock - least))
        found = select(case, policy=policy, memory_budget=budget)
        assert total(found) <= budget
        rewritten = case.rewritten(found.recompute, schedule=found.schedule)
        assert found.planned_bytes == case.mxnet_memory_plan(rewritten, found.match_range)


def test_a_larger_budget_takes_less_time() -> None:
    case = any_case("nmt")
    stock, static = case.training.planned_bytes, sum(STATIC.values())
    least = select(case, max_overhead=None, evaluations=2000).planned_bytes
    budgets = [static + int(least + part * (stock - least)) for part in (0.05, 0.4, 0.8, 1.0)]
    times = [select(case, memory_budget=budget, evaluations=2000).seconds for budget in budgets]
    assert times == sorted(times, reverse=True)
    assert times[-1] == 0, "the stock graph fits"


@pytest.mark.parametrize("budget", [0.9, "12MB"])
def test_budgets_include_what_is_static(budget: Any) -> None:
    case = any_case("nmt_large")
    stock = case.training.planned_bytes + sum(STATIC.values())
    found = select(case, memory_budget=budget)
    assert total(found) <= (0.9 * stock if budget == 0.9 else 12 << 20)
    assert found.runs or found.match_range != 16


def test_a_bound_on_time_holds_next_to_a_budget() -> None:
    case = any_case("nmt")
    static = sum(STATIC.values())
    free = select(case, max_overhead=None).planned_bytes
    budget = static + int(1.15 * free)
    found = select(case, memory_budget=budget, max_overhead=0.25, evaluations=2000)
    assert total(found) <= budget
    assert found.seconds <= 0.25 * costs_of(case.training).step_seconds


@pytest.mark.every(2)
@pytest.mark.parametrize("bound", [0.0, 0.01])
def test_a_budget_that_needs_more_time_than_allowed_is_refused(bound: float) -> None:
    """Both limits are the user's: a plan that breaks one of them is none."""
    case = any_case("nmt")
    free = select(case, max_overhead=None)
    budget = total(free) + (20 << 10)
    assert select(case, memory_budget=budget).seconds > 2 * bound * costs_of(case.training).step_seconds
    refused(case, memory_budget=budget, max_overhead=bound)


@pytest.mark.parametrize("options", [{"recompute": "tanh*"}, {"recompute": "tanh*", "policy": "echo"}])
@pytest.mark.parametrize("budget", ["6GB", 1])
def test_a_budget_refuses_nothing_that_is_planned_without_one(options: dict[str, Any], budget: Any) -> None:
    """The user's own nodes may take longer than the bound, with a budget, too."""
    case = any_case("dropout")
    without = select(case, max_overhead=0, **options)
    assert without.seconds > 0, "the example shows something"
    found = select(case, max_overhead=0, memory_budget=budget, **options)
    assert total(found) <= total(without)
    assert {entry.node for entry in without.recompute} <= {entry.node for entry in found.recompute}


def test_heavy_operators_only_when_they_are_needed() -> None:
    case = any_case("dropout")
    light = select(case, max_overhead=None)
    reachable = refused(case, memory_budget=sum(STATIC.values()) + 100).reachable
    assert reachable < total(light), "the example shows something"
    assert not heavy(case, select(case, memory_budget=total(light)))
    tight = select(case, memory_budget=reachable)
    assert heavy(case, tight)
    assert total(tight) <= reachable


def test_the_smallest_light_choice_is_tried_before_heavy_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for the fastest within a budget may miss it."""
    case = any_case("dropout")
    light = select(case, max_overhead=None)
    whole = select_pass._solve

    def short_sighted(request: Request, problem: Problem) -> Selection:
        ops = {case.training.nodes[node].op for node in problem.candidates}
        missing = problem.max_bytes is not None and "FullyConnected" not in ops
        return whole(request, replace(problem, candidates={}) if missing else problem)

    monkeypatch.setattr(select_pass, "_solve", short_sighted)
    found = select(case, memory_budget=total(light))
    assert not heavy(case, found)
    assert total(found) <= total(light)


# A budget that cannot be met ----------------------------------------------------------------------------------


def refused(case: Case, **options: Any) -> BudgetError:
    with pytest.raises(BudgetError) as caught:
        select(case, **options)
    return caught.value


@pytest.mark.every(5)
@pytest.mark.parametrize("policy", ["search", "echo"])
@pytest.mark.parametrize("name", ["nmt", "resnet50_v2", "dropout"])
def test_missed_budget_names_what_can_be_reached(name: str, policy: str) -> None:
    case = any_case(name)
    budget = sum(STATIC.values()) + 5000
    error = refused(case, memory_budget=budget, policy=policy)
    assert error.budget == budget
    assert budget < error.reachable < case.training.planned_bytes + sum(STATIC.values())
    text = str(error)
    policy_text = "" if policy == "search" else " with policy='echo'"
    expected = f"memory_budget of {budget:,} bytes cannot be met{policy_text}: the least that can be reached is"
    assert text.startswith(expected)
    assert f"{error.reachable:,} bytes" in text
    assert "weights 3.1 MB, weight gradients 3.1 MB, inputs 1.0 MB" in text
    holders = text.split("Held at that peak: ")[1].split(", ")[len(STATIC) :]
    names = {node.name for node in case.training.nodes} | {f"{node.name}_echo" for node in case.training.nodes}
    assert holders
    assert all(holder.rsplit(" ", 2)[0] in names for holder in holders)


@pytest.mark.every(7)
@pytest.mark.parametrize("policy", ["search", "echo"])
@pytest.mark.parametrize("name", ["nmt", "lm", "resnet50_v2", "dropout", "slices"])
def test_reachable_budget_can_be_met(name: str, policy: str) -> None:
    case = any_case(name)
    error = refused(case, memory_budget=sum(STATIC.values()) + 100, policy=policy)
    found = select(case, memory_budget=error.reachable, policy=policy)
    assert total(found) <= error.reachable


def test_budget_below_what_is_static() -> None:
    error = refused(any_case("slices"), memory_budget=1000)
    assert error.reachable > sum(STATIC.values())


def test_progress_is_reported() -> None:
    seen: list[str] = []
    case = any_case("dropout")
    request = replace(request_of(case, memory_budget=sum(STATIC.values()) + 100), progress=seen.append)
    candidates = FindCandidates().run(request, case.training)
    with pytest.raises(BudgetError):
        Select().run(
            request, case.training, candidates, Partition().run(case.training, candidates), costs_of(case.training)
        )
    request.unreached[0].search(NEVER)
    assert "select: the budget needs compute-heavy operators" in seen
    assert all(text.startswith("select: ") for text in seen)


def test_a_budget_out_of_reach_is_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = any_case("lm")
    static = sum(request_of(case).static.values())
    light = int(1.01 * select(case, max_overhead=None).planned_bytes)
    solved: list[tuple[bool, bool]] = []

    def solve(request: Request, problem: Problem) -> Selection:
        heavy = any(case.training.nodes[node].op == "FullyConnected" for node in problem.candidates)
        solved.append((heavy, problem.max_bytes == light))
        return whole(request, problem)

    whole = select_pass._solve
    monkeypatch.setattr(select_pass, "_solve", solve)
    select(case, memory_budget=static + light)
    assert solved == [(False, True)], "light operators alone will do"
    solved.clear()
    light = least_bytes(problem_of(case.training, assigns=True)) - 1  # heavy ones may reach it
    with contextlib.suppress(BudgetError):
        select(case, memory_budget=static + light)
    assert (False, True) not in solved
    assert (True, True) in solved


# With a warm start ----------------------------------------------------------------------------------------------


def test_few_choices_are_all_tried_whatever_the_warm_start_says(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = mx.sym.var("weight")
    for _ in range(4):
        chain = mx.sym.tanh(mx.sym.exp(chain))
    case = case_of(mx.sym.MakeLoss(mx.sym.sum(chain)), {"weight": (64, 64)}, "write")
    request = request_of(case, evaluations=1 << 20)
    training = case.training
    candidates = FindCandidates().run(request, training)
    segments, costs = Partition().run(training, candidates), costs_of(training)
    first = Select().run(request, training, candidates, segments, costs)
    assert first.warm_start is not None
    monkeypatch.setattr(WarmStart, "of", None)
    monkeypatch.setattr(WarmStart, "fits", None)
    again = Select().run(replace(request, warm_start=first.warm_start), training, candidates, segments, costs)
    assert again == replace(first, warm_start=None)


def test_many_choices_start_from_the_warm_start() -> None:
    case = any_case("lm")
    request = request_of(case)
    first = select(case)
    training = case.training
    candidates = FindCandidates().run(request, training)
    values = training, candidates, Partition().run(training, candidates), costs_of(training)
    assert Select().run(replace(request, warm_start=first.warm_start), *values).warm_start is not None


def timed_selection(case: Case, slower: float, static: int = 0, **options: Any) -> Selection:
    """The selection where all seconds are measured, and recomputation takes this many times its seconds."""
    framework = FakeFramework(case.training, static={WEIGHTS: static}, evaluations=400)
    request = Request(case.graph, Options.of(**options), framework)
    candidates, costs = FindCandidates().run(request, case.training), costs_of(case.training)
    step = sum(costs.seconds)
    seconds_ = tuple(slower * each if at in candidates.light else each for at, each in enumerate(costs.seconds))
    costs = replace(costs, seconds=seconds_, step_seconds=step, measured=1, guessed=0.0)
    return Select().run(request, case.training, candidates, Partition().run(case.training, candidates), costs)


def test_recomputation_that_saves_too_little_for_its_time_leaves_nothing_recomputed() -> None:
    """Everything else that the plan does stays: a looser bound on time never needs more memory than a bound of 0."""
    case = any_case("lm")
    found = timed_selection(case, slower=1.0)
    assert found.runs
    assert not found.declined
    static = 30 * case.training.planned_bytes
    declined = timed_selection(case, slower=1.0, static=static)
    assert declined.declined.startswith("with recomputation it would save ")
    assert not declined.runs
    assert declined.planned_bytes == timed_selection(case, slower=1.0, static=static, max_overhead=0.0).planned_bytes
    assert timed_selection(case, slower=1.0, static=static, max_overhead=0.1).runs, "an own bound is obeyed"
    assert timed_selection(case, slower=0.001, static=static).runs, "no clock sees these seconds"
