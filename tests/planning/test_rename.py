"""Plans under other names: the same net built again has other automatic names, and the same plan."""

from __future__ import annotations

import mxnet as mx
import pytest

import echo
from echo import pipeline
from echo.planning.planner import Planner
from echo.planning.rename import Names, renamed
from echo.plans.decisions import Note
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
    files.delete(files.kept(files.cache_folder()))
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
    noted = Plan(**{**vars_of(plan), "notes": (Note("computed again from a1, 'a' and a10, ab"),)})
    result = renamed(noted, old, new, ["tanh", "tanh", "tanh"])
    assert result is not None
    assert result.notes == (Note("computed again from c1, 'c' and a10, ab"),)


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
