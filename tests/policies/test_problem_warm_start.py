"""A choice for one length of a model says what to choose for another."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx
import pytest

from benchmarks.models import nmt_symbol
from echo.ir.schedule import RecomputeSchedule
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode
from echo.policies.equivalence_classes import roles
from echo.policies.problem import WarmStart
from echo.policies.search import Search
from echo.policies.solvers.ruin_recreate import RuinRecreate
from tests.support.cases import Case, any_case, case_of
from tests.support.planning import problem_of

HIDDEN, WORDS, BATCH = 16, 40, 8
WEIGHTS = {"encoder_weight": (4, 8), "decoder_weight": (4, 8)}


def nmt(steps: int, batch: int = BATCH) -> Case:
    shape = (batch, steps)
    shapes = {"source": shape, "target": shape, "softmax_label": shape}
    return case_of(nmt_symbol(steps, HIDDEN, WORDS), shapes)


def searched(case: Case, warm_start: WarmStart | None = None) -> tuple[int, WarmStart, int]:
    """Planned bytes, the warm start for others, and the evaluations that it took."""
    problem = replace(problem_of(case.training, match_ranges=(16, 1, 2, 4)), warm_start=warm_start)
    asked = []
    counted = replace(problem, evaluator=_Counting(problem.evaluator, asked))
    schedule = Search().choose(counted)
    found = problem.value(schedule).bytes
    return found, WarmStart.of(case.training, problem.candidates, set(schedule)), len(asked)


class _Counting:
    def __init__(self, evaluator: object, asked: list[int]) -> None:
        self._evaluator, self._asked = evaluator, asked
        self.entries = evaluator.entries  # type: ignore[attr-defined]

    def evaluate(self, *args: object) -> object:
        self._asked.append(1)
        return self._evaluator.evaluate(*args)  # type: ignore[attr-defined]

    def executed(self, *args: object) -> object:
        return self._evaluator.executed(*args)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "batch"), [(5, BATCH), (14, BATCH), (9, 3)])
def test_another_length_or_batch_is_searched_in_a_fraction_and_as_well(
    steps: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[int] = []
    fit = RuinRecreate.choose
    monkeypatch.setattr(RuinRecreate, "choose", lambda self, problem: fits.append(1) or fit(self, problem))
    _, warm_start, _ = searched(nmt(9))
    case = nmt(steps, batch)
    full, _, evaluations = searched(case)
    assert fits, "most of a search is for schedules"
    fits.clear()
    found, _, shortened = searched(case, warm_start)
    assert not fits
    assert found <= 1.08 * full
    assert found < 0.78 * case.training.planned_bytes  # of five steps a full search leaves 0.72
    assert shortened <= 0.6 * evaluations


def test_the_hint_of_a_graph_gives_its_classes_back() -> None:
    case = nmt(6)
    numbers = [number for number, node in case.training.operators() if node.forward]
    tanh = {number for number in numbers if case.training.nodes[number].attrs.get("act_type") == "tanh"}
    assert tanh
    warm_start = WarmStart.of(case.training, numbers, tanh)
    assert set(warm_start.nodes(case.training, numbers)) == tanh
    longer = nmt(8)
    numbers = [number for number, node in longer.training.operators() if node.forward]
    expected = {number for number in numbers if longer.training.nodes[number].attrs.get("act_type") == "tanh"}
    assert set(warm_start.nodes(longer.training, numbers)) == expected


def cells(steps: int) -> Case:
    """Two recurrent layers that differ in their weights alone, which are three nodes away from their slices."""
    values = list(mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=steps, axis=1, squeeze_axis=True))
    for layer in ("encoder", "decoder"):
        gamma, beta, weight = (mx.sym.var(f"{layer}_{name}") for name in ("gamma", "beta", "weight"))
        hidden = values[0]
        for step, value in enumerate(values):
            gates = mx.sym.LayerNorm(mx.sym.dot(value, weight), gamma, beta) + mx.sym.dot(hidden, weight)
            parts = mx.sym.SliceChannel(gates, num_outputs=2, axis=1, name=f"{layer}_slice{step}")
            hidden = mx.sym.sigmoid(parts[0]) * mx.sym.tanh(parts[1])
            values[step] = hidden
    return case_of(mx.sym.sum(mx.sym.add_n(*values)), {"data": (3, steps, 4), **WEIGHTS}, "write")


def test_a_hint_tells_layers_apart_by_weights_some_nodes_away() -> None:
    def slices(case: Case, layer: str) -> set[int]:
        operators = case.training.operators()
        return {number for number, node in operators if node.forward and node.name.startswith(f"{layer}_slice")}

    short, long = cells(5), cells(8)
    layers = slices(short, "encoder") | slices(short, "decoder")
    warm_start = WarmStart.of(short.training, layers, slices(short, "decoder"))
    found = warm_start.nodes(long.training, slices(long, "encoder") | slices(long, "decoder"))
    assert set(found) == slices(long, "decoder")


@pytest.mark.slow
def test_a_hint_of_another_model_does_no_harm() -> None:
    case = nmt(7)
    full, _, _ = searched(case)
    nonsense = WarmStart(({}, {}, {}))
    found, _, _ = searched(case, nonsense)
    assert found <= 1.25 * full


@pytest.mark.slow
def test_a_budget_is_searched_for_each_length() -> None:
    case = nmt(7)
    everything, warm_start, _ = searched(case)
    problem = problem_of(case.training, max_bytes=int(1.3 * everything))
    plain, warm = Search().choose(problem), Search().choose(replace(problem, warm_start=warm_start))
    assert plain == warm


def test_roles_leave_sizes_out() -> None:
    short, long = nmt(12).training, nmt(19, 3).training
    for rounds in (0, 1, 2):
        ours, theirs = (
            {colour for (number, node), colour in _operators(training, roles(training, [rounds])[0]) if node.forward}
            for training in (short, long)
        )
        assert len(ours & theirs) >= (0.75 if rounds else 1.0) * len(ours)


def _operators(training: TrainingGraph, colours: list[int]) -> list[tuple[tuple[int, TrainingNode], int]]:
    return [((number, node), colours[number]) for number, node in training.operators()]


@pytest.mark.slow
def test_a_hint_fits_other_lengths_and_no_other_operators() -> None:
    _, warm_start, _ = searched(nmt(9))
    longer, other = (problem_of(case.training) for case in (nmt(14), any_case("resnet50_v1")))
    assert warm_start.fits(longer.training, longer.candidates)
    assert not warm_start.fits(other.training, other.candidates)
    assert replace(warm_start, is_known=True).fits(other.training, other.candidates)


def _schedule_of(case: Case) -> tuple[RecomputeSchedule, WarmStart]:
    problem = replace(problem_of(case.training), match_ranges=(16,))
    schedule = Search().choose(problem)
    return schedule, WarmStart.of(case.training, problem.candidates, set(schedule), schedule)


@pytest.mark.slow
def test_another_batch_size_needs_no_more_than_under_the_same_schedule() -> None:
    schedule, warm_start = _schedule_of(nmt(7))
    other = problem_of(nmt(7, 3).training)
    assert warm_start.schedule_for(other.training, other.candidates) == schedule != {}
    warm = other.value(Search().choose(replace(other, warm_start=warm_start)))
    assert warm.bytes <= other.value(schedule).bytes


@pytest.mark.slow
def test_another_length_has_another_schedule() -> None:
    _, warm_start = _schedule_of(nmt(7))
    other = problem_of(nmt(6).training)
    assert warm_start.schedule_for(other.training, other.candidates) is None


@pytest.mark.slow
def test_a_schedule_that_breaks_the_bound_is_searched_again() -> None:
    schedule, warm_start = _schedule_of(nmt(7))
    other = problem_of(nmt(7, 3).training)
    bounded = replace(other, max_seconds=other.value(schedule).seconds / 2)
    assert Search().choose(replace(bounded, warm_start=warm_start)) == Search().choose(bounded)
