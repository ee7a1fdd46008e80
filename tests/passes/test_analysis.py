"""The first pass: the framework's training graph, as stock works in place, with gradients that read less on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Mapping

import mxnet as mx
import pytest

from echo.errors import OptionError
from echo.estimators.cost_model import CostModel
from echo.estimators.inplace import as_stock
from echo.estimators.layouts import with_layout_copies
from echo.ir.graph import Entry
from echo.ir.ops import spec
from echo.ir.training_graph import Runner, TrainingGraph
from echo.passes.analysis import Candidates, Differentiate, EstimateCost, FindCandidates, Partition
from echo.passes.request import Request
from echo.plans.options import Options
from echo.policies.problem import WarmStart, partition
from echo.system.process import Deadline
from tests.support.cases import Case, case_of, model_case, special_case, with_dropout
from tests.support.fake_frontend import FakeFramework
from tests.support.made_graphs import Builder
from tests.support.planning import costs_of


@dataclass
class Asked(FakeFramework):
    """Keeps what it is asked to implement."""

    asked: list[Mapping[int, str]] = field(default_factory=list)

    def apply_gradient_rules(self, training: TrainingGraph, gradient_rules: Mapping[int, str]) -> TrainingGraph:
        self.asked.append(gradient_rules)
        return training


@pytest.fixture(scope="module")
def case() -> Case:
    return case_of(with_dropout(), {"data": (8, 20), "label": (8,)})


def run(case: Case, **facts: object) -> tuple[TrainingGraph, Asked]:
    framework = Asked(case.training, **facts)  # type: ignore[arg-type]
    return Differentiate().run(Request(case.graph, Options(), framework)), framework


def test_gradients_read_less_on_a_cpu(case: Case) -> None:
    found, framework = run(case)
    (chosen,) = framework.asked
    users = {case.graph.nodes[original].op for original in chosen}
    assert "Activation" in users or "sigmoid" in users
    assert found.outputs == case.training.outputs


def test_gradients_of_activations_on_a_gpu_are_mxnets(case: Case) -> None:
    found, framework = run(case, device="gpu", onednn=False)
    assert not framework.asked
    assert found == with_layout_copies(as_stock(case.training, "gpu"), "gpu")


def test_convolutions_on_a_gpu_with_cudnn_have_split_gradients() -> None:
    branches = model_case("inception_v3")
    for cudnn in (True, False):
        _, framework = run(branches, device="gpu", onednn=False, cudnn=cudnn)
        chosen = {branches.graph.nodes[original].op for rules in framework.asked for original in rules}
        assert ("Convolution" in chosen) == cudnn


def test_graph_without_the_hook_is_the_frontends(case: Case) -> None:
    found, framework = run(case, hook=False)
    assert found is case.training
    assert not framework.asked


def test_rules_without_gain_are_not_asked_for() -> None:
    _, framework = run(special_case("two outputs"), onednn=False)
    assert all(framework.asked), "never with nothing"


def network(draws: bool = False) -> Case:
    """``draws``: random numbers also in inference."""
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="enc_fc")
    hidden = mx.sym.tanh(hidden, name="enc_tanh")
    hidden = mx.sym.Dropout(hidden, p=0.5, name="enc_drop")
    drawn, given = mx.sym.random.uniform(shape=(4, 8), name="noise"), mx.sym.ones((4, 8), name="noise")
    noise = drawn if draws else given
    hidden = mx.sym.FullyConnected(hidden + noise, num_hidden=6, name="dec_fc")
    parts = mx.sym.SliceChannel(mx.sym.tanh(hidden, name="dec_tanh"), num_outputs=2, name="parts")
    return case_of(mx.sym.SoftmaxOutput(parts[0] * parts[1], name="softmax"), {"data": (4, 5), "softmax_label": (4,)})


def found(case: Case, device: str = "cpu", hook: bool = True, **options: Any) -> Candidates:
    framework = FakeFramework(case.training, device=device, hook=hook)
    return FindCandidates().run(Request(case.graph, Options.of(**options), framework), case.training)


def names(case: Case, numbers: Any) -> set[str]:
    return {case.training.nodes[number].name for number in numbers}


def test_operators_are_sorted() -> None:
    case = network()
    candidates = found(case)
    assert names(case, candidates.light) >= {"enc_tanh", "enc_drop", "dec_tanh", "parts"}
    assert names(case, candidates.heavy) == {"enc_fc", "dec_fc"}
    assert not candidates.must_recompute
    reasons = {case.training.nodes[number].name: reason for number, reason in candidates.refused.items()}
    assert reasons["softmax"] == "an output of the symbol lives to the end anyway"


def test_mode_dependent_maps_stay_if_inference_draws_random_numbers() -> None:
    """An executor could not repeat an inference pass with the same random numbers for a backward pass after it."""
    case = network(draws=True)
    candidates = found(case)
    assert names(case, candidates.light) >= {"enc_tanh", "dec_tanh", "parts"}
    reasons = {case.training.nodes[number].name: reason for number, reason in candidates.refused.items()}
    assert reasons["noise"] == "_random_uniform is not known to be safe to run twice"
    for name in ("enc_drop", "enc_fc", "dec_fc"):
        assert reasons[name].startswith("in inference the graph draws random numbers")
    assert {entry.node for entry in found(case, recompute="enc_drop").must_recompute}
    block = replace(case, training=replace(case.training, runner=Runner.DYNAMIC))
    assert "enc_drop" in names(case, found(block).light)


def test_every_forward_operator_is_somewhere_once() -> None:
    for name in ("dropout", "slices", "many readers", "float16", "two outputs"):
        case = special_case(name)
        candidates = found(case)
        forward = [number for number, node in case.training.operators() if node.forward]
        places = [*candidates.light, *candidates.heavy, *candidates.refused]
        assert sorted(places) == forward


def test_outputs_of_candidates() -> None:
    case = network()
    candidates = found(case)
    by_name = {case.training.nodes[number].name: entries for number, entries in candidates.light.items()}
    assert [entry.index for entry in by_name["parts"]] == [0, 1]
    assert [entry.index for entry in by_name["enc_drop"]] == [0], "the mask stays"
    for number, entries in {**candidates.light, **candidates.heavy}.items():
        assert {entry.node for entry in entries} == {number}


def test_candidates_without_the_hook_are_whole_nodes() -> None:
    case = network()
    candidates = found(case, hook=False)
    assert "enc_drop" not in names(case, candidates.light)
    for number, entries in {**candidates.light, **candidates.heavy}.items():
        assert [entry.index for entry in entries] == list(range(len(case.training.nodes[number].outputs)))


def test_dropout_stays_on_gpus() -> None:
    case = network()
    assert "enc_drop" in names(case, found(case).light)
    assert "enc_drop" not in names(case, found(case, device="gpu").light)


def test_empty_arrays_stay() -> None:
    b = Builder()
    x = b.variable("x", 4, 0)
    empty = b.forward("tanh", "empty", (4, 0), x)
    b.forward("Concat", "whole", (4, 3), empty, b.variable("y", 4, 3))
    training = b.graph([b.forward("tanh", "top", (4, 3), Entry(3))])
    candidates = found(Case(None, special_case("slices").graph, special_case("slices").binding, training))
    assert candidates.refused[empty.node] == "an array without elements"
    assert list(candidates.light) == [3]


# What the user insists on -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("enc_tanh", {"enc_tanh"}),
        ("*_tanh", {"enc_tanh", "dec_tanh"}),
        ("tanh", {"enc_tanh", "dec_tanh"}),
        ("enc_*", {"enc_fc", "enc_tanh", "enc_drop"}),
        ("FullyConnected", {"enc_fc", "dec_fc"}),
        ("Fully*", {"enc_fc", "dec_fc"}),
        ("???_fc", {"enc_fc", "dec_fc"}),
        (["enc_fc", "parts"], {"enc_fc", "parts"}),
    ],
)
def test_nodes_that_match_keep_are_refused(pattern: Any, kept: set[str]) -> None:
    case = network()
    candidates = found(case, keep=pattern)
    left_out = {number for number, reason in candidates.refused.items() if reason.startswith("kept")}
    assert names(case, left_out) == kept
    assert not left_out & (set(candidates.light) | set(candidates.heavy))
    everything = found(case)
    assert set(candidates.light) == set(everything.light) - left_out


def test_names_are_matched_with_their_case() -> None:
    with pytest.raises(OptionError, match="keep: 'Enc_tanh' matches no node"):
        found(network(), keep="Enc_tanh")


def test_a_name_with_brackets_matches_itself() -> None:
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.exp(mx.sym.tanh(mx.sym.var("data"), name="layer[0]"), name="exp")))
    case = case_of(symbol, {"data": (4, 5)}, grad_req="write")
    kept = [number for number, reason in found(case, keep="layer[0]").refused.items() if reason.startswith("kept")]
    assert names(case, kept) == {"layer[0]"}


@pytest.mark.parametrize("name", ["enc_tanh", "enc_fc", "parts"])
def test_nodes_that_match_recompute_are_forced(name: str) -> None:
    case = network()
    candidates = found(case, recompute=name)
    (number,) = {entry.node for entry in candidates.must_recompute}
    assert case.training.nodes[number].name == name
    assert candidates.must_recompute >= {Entry(number, 0)}
    assert number not in candidates.light
    assert number not in candidates.heavy
    assert number not in candidates.refused


@pytest.mark.parametrize(("pattern", "meant"), [("enc_tahn", "enc_tanh"), ("FullyConected", "FullyConnected")])
def test_a_misspelt_pattern_is_told_the_names_that_are_alike(pattern: str, meant: str) -> None:
    with pytest.raises(OptionError, match=rf"did you mean .*\b{meant}\b.*\? The graph has the operators"):
        found(network(), keep=pattern)


@pytest.mark.parametrize("option", ["keep", "recompute"])
@pytest.mark.parametrize("pattern", ["typo", "enc_tahn", "x*", "data", "enc_fc_weight", "_backward_*", ""])
def test_pattern_that_matches_nothing(option: str, pattern: str) -> None:
    with pytest.raises(OptionError) as caught:
        found(network(), **{option: pattern})
    text = str(caught.value)
    assert text.startswith(f"{option}: {pattern!r} matches no node, expected a node's name, an operator or a pattern")
    assert "FullyConnected" in text


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("noise", r"'noise' \(_random_uniform\) cannot be recomputed: .* not known to be safe"),
        ("softmax", r"'softmax' \(SoftmaxOutput\) cannot be recomputed: an output of the symbol"),
        ("*", "cannot be recomputed"),
    ],
)
def test_recompute_of_what_must_not_run_twice(pattern: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        found(network(draws=True), recompute=pattern)


def test_keep_and_recompute_must_not_meet() -> None:
    with pytest.raises(
        OptionError,
        match=r"node 'enc_tanh' in one of keep and recompute, got both keep 'enc_\*' and recompute '\*tanh'",
    ):
        found(network(), keep="enc_*", recompute="*tanh")


def test_dropout_that_cannot_be_redone_from_its_mask_stays() -> None:
    for options, reason in (({"axes": (0,)}, "mask of another shape"), ({"p": 0.0}, "makes no mask")):
        hidden = mx.sym.Dropout(mx.sym.tanh(mx.sym.var("data")), name="drop", **options)
        case = case_of(mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(hidden))), {"data": (4, 5)}, grad_req="write")
        refused = {case.training.nodes[number].name: why for number, why in found(case).refused.items()}
        assert reason in refused["drop"]


def test_segments_are_of_light_candidates_alone() -> None:
    case = model_case("nmt")
    candidates = FindCandidates().run(Request(case.graph, Options(), FakeFramework(case.training)), case.training)
    found = Partition().run(case.training, candidates)
    assert found == partition(case.training, candidates.light)
    assert found != partition(case.training, {**candidates.light, **candidates.heavy})
    assert any(spec(case.training.nodes[number].op).cost.heavy for number in candidates.heavy)


CASE = model_case("lm")


@dataclass
class Timed(FakeFramework):
    """Keeps the limits that it is given."""

    limits: list[tuple[float, float]] = field(default_factory=list)

    def costs(self, training: TrainingGraph, time_limit: float, clock_limit: float) -> CostModel:
        self.limits.append((time_limit, clock_limit))
        return costs_of(training)


@pytest.mark.parametrize(
    ("warm", "seconds", "left", "work", "clock"),
    [
        (None, 90.0, 90.0, 1.0, 30.0),
        (WarmStart(()), 90.0, 90.0, 0.0, 30.0),
        (WarmStart((), is_known=True), 90.0, 90.0, 1.0, 30.0),  # a refinement: the process that measures runs
        (None, 0.9, 0.75, 1.0, 0.2),  # 0.15 s stay for what follows, as long as everything took; a third of the rest
        (None, 0.9, 0.6, 1.0, 0.1),  # 0.3 s stay, a third of all
        (None, 90.0, 5.0, 1.0, 1.8),  # the searches ended late: a fiftieth of all, for new operators of a refinement
        (None, 90.0, 1.0, 1.0, 1.0),
        (None, 0.9, 0.0, 1.0, 0.0),
    ],
)
def test_time_for_measuring_follows_from_the_deadline(
    warm: WarmStart | None,
    seconds: float,
    left: float,
    work: float,
    clock: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("echo.system.process.time", SimpleNamespace(monotonic=lambda: 0.0))
    framework = Timed(CASE.training)
    request = Request(CASE.graph, Options(), framework, warm_start=warm)
    assert EstimateCost().run(replace(request, deadline=Deadline(seconds, left, seconds)), CASE.training).seconds
    assert framework.limits == [pytest.approx((work, clock))]
