"""Plans under other names: the same net built again has other automatic names, and the same plan."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL, Model
from echo import pipeline
from echo.errors import GraphError
from echo.frontend.framework import MxnetFramework
from echo.frontend.symbols import graph_of, infer_binding
from echo.ir.training_graph import Runner
from echo.planning.planner import Planner
from echo.planning.reuse import NOTE, Names, PlannedGraph, SpareTime, follow, renamed
from echo.plans.decisions import Note
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.runtime import bind_plan
from echo.system import files

SHAPES = {"data": (16, 8), "softmax_label": (16,)}


def net(dropout: str | None = None, layer: str = "fc") -> mx.sym.Symbol:
    """Returns a net whose Dropouts have automatic names if they get none."""
    x = mx.sym.var("data")
    for i in range(4):
        x = mx.sym.BatchNorm(mx.sym.FullyConnected(x, num_hidden=32, name=f"{layer}{i}"), name=f"bn{i}")
        x = mx.sym.Dropout(mx.sym.tanh(x, name=f"act{i}"), p=0.3, name=dropout and f"{dropout}{i}")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=5, name="out"), name="softmax")


@pytest.fixture(autouse=True)
def _cache(tmp_path: object, monkeypatch: pytest.MonkeyPatch, cheap_planning: None) -> None:
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())


def without_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "plan", lambda _: pytest.fail("planned again"))


def test_plan_of_the_net_built_again_equals_the_one_that_a_search_makes() -> None:
    symbol = net()
    echo.plan(net(), **SHAPES)
    again = echo.plan(symbol, **SHAPES)
    bind_plan.PLANNER.forget()
    files.delete(files.cached_files(files.cache_folder()))
    assert echo.plan(symbol, **SHAPES) == again


@pytest.mark.parametrize("restarted", [False, True])
def test_plan_of_the_net_built_again_is_not_searched(monkeypatch: pytest.MonkeyPatch, restarted: bool) -> None:
    first = echo.plan(net(), **SHAPES)
    if restarted:
        monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    without_search(monkeypatch)
    symbol = net()
    again = echo.plan(symbol, **SHAPES)
    assert again.marks == first.marks
    names = set(symbol.get_internals().list_outputs())
    assert {f"{decision.name}_output" for decision in again.decisions if decision.op != "BatchNorm"} <= names
    assert again != first
    assert again.why(again.decisions[0].name)


def test_executor_of_the_net_built_again_has_the_new_names(monkeypatch: pytest.MonkeyPatch) -> None:
    echo.optimize(net()).simple_bind(mx.cpu(), **SHAPES)
    without_search(monkeypatch)
    symbol = net()
    executor = echo.optimize(symbol).simple_bind(mx.cpu(), **SHAPES)
    assert executor._symbol.list_arguments() == symbol.list_arguments()
    assert executor._symbol.get_internals().list_outputs() == symbol.get_internals().list_outputs()


@pytest.mark.parametrize("option", ["keep", "recompute"])
def test_names_in_options_make_another_plan(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    echo.plan(net("a"), **{option: "act1"}, **SHAPES)
    searched: list[object] = []
    full = pipeline.plan
    monkeypatch.setattr(pipeline, "plan", lambda request: (searched.append(request), full(request))[1])
    echo.plan(net("a"), **{option: "act1"}, **SHAPES)
    assert searched == []
    echo.plan(net("b"), **{option: "act1"}, **SHAPES)
    assert len(searched) == 1


def test_renamed_changes_whole_words_only() -> None:
    plan = echo.plan(net("a"), **SHAPES)
    old = Names(("a1", "a", "b"), ("a1", "a", "b"))
    new = Names(("c1", "c", "b"), ("c1", "c", "b"))
    noted = Plan(**{**vars_of(plan), "notes": (Note("recomputed from a1, 'a' and a10, ab"),)})
    result = renamed(noted, old, new, ["tanh", "tanh", "tanh"])
    assert result is not None
    assert result.notes == (Note("recomputed from c1, 'c' and a10, ab"),)


def vars_of(plan: Plan) -> dict[str, object]:
    return {name: value for name, value in vars(plan).items() if name != "_alternatives"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(("a", "a"), ("b", "c"), id="two names for one"),
        pytest.param(("x_a_1", "x_a_2"), ("x_a_1", "y_a_2"), id="a layer becomes two"),
        pytest.param(("a b", "c"), ("d", "c"), id="a name of two words"),
        pytest.param(("a",), ("a", "b"), id="another number of nodes"),
        pytest.param(("tanh0", "c"), ("mine", "c"), id="an automatic name becomes the user's"),
    ],
)
def test_renamed_returns_none_if_names_do_not_correspond(old: tuple[str, ...], new: tuple[str, ...]) -> None:
    plan = echo.plan(net("a"), **SHAPES)
    assert renamed(plan, Names(old, old), Names(new, new), ["tanh"] * len(old)) is None


pytestmark = pytest.mark.usefixtures("cheap_planning")


def framework_of(
    model: Model, runner: str = Runner.EXECUTOR, factor: int = 1, **shapes: tuple[int, ...]
) -> MxnetFramework:
    """The framework of a model for a batch ``factor`` times as large."""
    sizes = {name: (shape[0] * factor, *shape[1:]) for name, shape in model.shapes.items()}
    binding = infer_binding(model.symbol, {**sizes, **shapes}, None, model.grad_req())
    return MxnetFramework(graph_of(model.symbol), binding, mx.cpu(), runner)


def planned(framework: MxnetFramework, options: Options) -> PlannedGraph:
    return Planner().plan(lambda: framework, options)


@pytest.mark.every(5)
@pytest.mark.parametrize("runner", [Runner.EXECUTOR, Runner.STATIC, Runner.DYNAMIC])
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("name", ["lm", "nmt"])
def test_follow_keeps_the_marks_and_counts_the_bytes_of_the_new_shapes(name: str, fuse: bool, runner: str) -> None:
    model, options = SMALL[name](), Options(fuse=fuse)
    first = planned(framework_of(model, runner), options)
    assert not first.plan.changes_nothing
    other = framework_of(model, runner, factor=3)
    followed = follow(first, other.graph, other, options)
    assert followed.plan.marks == first.plan.marks
    assert followed.plan.fused == first.plan.fused
    assert followed.plan.key == other.key
    assert NOTE in followed.plan.notes
    fresh = other.fresh_copy().on(followed.base)
    match_range = other.match_range if followed.plan.match_range is None else followed.plan.match_range
    assert followed.plan.after.planned == fresh.mxnet_memory_plan(followed.graph, match_range)[0]
    assert followed.plan.before.planned == other.fresh_copy().original_bytes()
    assert followed.plan.after.planned < followed.plan.before.planned
    sizes = [later.bytes / decision.bytes for later, decision in zip(followed.plan.decisions, first.plan.decisions)]
    assert max(sizes) == 3


def test_follow_of_its_own_shapes_has_the_bytes_of_the_plan() -> None:
    model, options = SMALL["nmt"](), Options()
    first = planned(framework_of(model), options)
    same = framework_of(model)
    followed = follow(first, same.graph, same, options).plan
    assert (followed.after.planned, followed.before.planned) == (first.plan.after.planned, first.plan.before.planned)
    assert followed.after.total == first.plan.after.total
    assert followed.time == first.plan.time


def softmax_model(rows: int) -> Model:
    """A chain whose fused operator needs many bytes in its input."""
    x = mx.sym.var("data")
    for number in range(3):
        x = mx.sym.tanh(mx.sym.exp(mx.sym.FullyConnected(x, num_hidden=64, name=f"fc{number}")))
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=4096, name="out"), name="softmax")
    return Model("chain", symbol, {"data": (rows, 32), "softmax_label": (rows,)})


def test_follow_refuses_shapes_that_a_fused_operator_does_not_take() -> None:
    first = planned(framework_of(softmax_model(256)), Options())
    assert first.plan.fused
    small = framework_of(softmax_model(1))
    with pytest.raises(GraphError, match=r"^fused: node \d+ \('softmax'\) is no .*: too small"):
        follow(first, small.graph, small, Options())


def test_follow_refuses_a_plan_of_which_mxnet_says_that_it_saves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, options = SMALL["lm"](), Options(fuse=False)
    first = planned(framework_of(model), options)
    other = framework_of(model, factor=2)
    training = other.differentiate()
    monkeypatch.setattr(
        MxnetFramework, "mxnet_memory_plan", lambda *_: (training.planned_bytes, training.accumulations)
    )
    with pytest.raises(GraphError, match=r"^nothing to gain$"):
        follow(first, other.graph, other, options)


def test_planner_follow_returns_none_where_the_plan_does_not_hold() -> None:
    planner, options = Planner(), Options()
    planner.plan(lambda: framework_of(softmax_model(256)), options)
    assert planner.follow(lambda: framework_of(softmax_model(1)), options) is None
    assert planner.follow(lambda: framework_of(softmax_model(512)), options) is not None


def test_follow_where_nothing_can_be_fused_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    first = planned(framework_of(softmax_model(256)), Options())
    other = framework_of(softmax_model(512))
    monkeypatch.setattr(MxnetFramework, "why_no_fusion", "no library")
    with pytest.raises(GraphError, match=r"^the plan has fused operators: no library$"):
        follow(first, other.graph, other, Options())


def test_planner_follow_prefers_the_plan_that_was_searched_for_these_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, planner = SMALL["lm"](), Planner()
    options = Options(fuse=False)
    planner.plan(lambda: framework_of(model), options)
    searched = planner.plan(lambda: framework_of(model, factor=2), options)
    monkeypatch.setattr("echo.planning.planner.follow", lambda *_: pytest.fail("followed"))
    again = planner.follow(lambda: framework_of(model, factor=2), options)
    assert again is not None
    assert again.plan == searched.plan


def test_planner_follow_without_a_plan_of_the_model_returns_none() -> None:
    model, planner = SMALL["lm"](), Planner()
    assert planner.follow(lambda: framework_of(model), Options()) is None
    planner.plan(lambda: framework_of(model), Options(fuse=False))
    assert planner.follow(lambda: framework_of(model, factor=2), Options()) is None, "the options are others"
    assert planner.follow(lambda: framework_of(SMALL["nmt"]()), Options(fuse=False)) is None, "so is the model"
    assert planner.follow(lambda: framework_of(model, factor=2), Options(fuse=False)) is not None


@pytest.mark.parametrize(
    ("values", "may"),
    [({}, True), ({"memory_budget": 0.5}, False), ({"policy": "echo"}, False), ({"fuse": False, "keep": "x"}, True)],
)
def test_options_that_hold_for_each_shape_are_not_followed(values: dict[str, Any], may: bool) -> None:
    assert Planner().may_follow(Options.of(**values)) == may


# Time --------------------------------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_spare_time_is_a_share_of_the_seconds_that_are_not_planning() -> None:
    clock = Clock()
    spare = SpareTime(0.1, clock)
    assert not spare.allows(0.0), "nothing was trained before the first plan"
    with spare.planning():
        clock.now += 50
    assert spare.allows(0.0)
    assert not spare.allows(0.01)
    clock.now += 10
    assert spare.allows(0.99)
    assert not spare.allows(1.01)
    assert not spare.allows(0.99, part=0.5)
    with spare.planning(further=True):
        clock.now += 0.6
    assert spare.allows(0.39)
    assert not spare.allows(0.41)
    with spare.planning():  # the first plan of another model counts neither as training nor as spent
        clock.now += 30
    assert spare.allows(0.39)
    assert not spare.allows(0.41)


def test_spare_time_counts_plans_inside_of_plans_once() -> None:
    clock = Clock()
    spare = SpareTime(0.1, clock)
    with spare.planning():
        pass
    clock.now += 100
    with spare.planning(further=True):
        clock.now += 1
        with spare.planning(further=True):
            clock.now += 1
    assert spare.allows(7.9)
    assert not spare.allows(8.1)
