"""Plans on disk are data: they come back equal, and whatever else is in the folder is ignored."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
from echo import pipeline
from echo.ir.graph import Graph
from echo.ir.op_spec import PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.planning import plan_cache
from echo.planning.planner import Planner
from echo.planning.reuse import Names, PlannedGraph
from echo.plans.decisions import mark, marks_of
from echo.plans.plan import Plan
from echo.runtime import bind_plan
from echo.system import files
from tests.support.cases import special_case
from tests.support.fake_frontend import FakeFramework

MODEL = SMALL["nmt"]()
FRAMEWORK = FakeFramework(special_case("slices").training)  # asked only about fused operators


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    return tmp_path / "plans"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return echo.plan(MODEL.symbol, fuse=False, **MODEL.shapes)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another process had started."""
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())


@pytest.mark.usefixtures("cheap_planning", "folder")
def test_the_second_start_plans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = echo.plan(MODEL.symbol, max_overhead=None, **MODEL.shapes)
    forget(monkeypatch)
    monkeypatch.setattr("echo.pipeline.plan", lambda _: pytest.fail("planned again"))
    assert echo.plan(MODEL.symbol, max_overhead=None, **MODEL.shapes) == first
    forget(monkeypatch)
    optimized = echo.optimize(MODEL.symbol, max_overhead=None)
    executor = optimized.simple_bind(mx.cpu(), grad_req=MODEL.grad_req(), **MODEL.shapes)
    assert optimized.plans == [first]
    assert executor.debug_str().count("_echo\nInputs:") == first.recomputed_nodes


@pytest.mark.every(7)
@pytest.mark.usefixtures("cheap_planning", "folder")
@pytest.mark.parametrize("changed", [{"max_overhead": 0.5}, {"keep": "Activation"}, {"policy": "echo"}, {"data": 1}])
def test_another_question_is_planned_again(monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]) -> None:
    echo.plan(MODEL.symbol, max_overhead=None, **MODEL.shapes)
    forget(monkeypatch)
    asked: list[Any] = []
    monkeypatch.setattr("echo.pipeline.plan", lambda request: asked.append(request) or pytest.skip("planned again"))
    shapes = dict(MODEL.shapes)
    if "data" in changed:
        changed, shapes = {}, {name: (shape[0] + 1, *shape[1:]) for name, shape in shapes.items()}
    with pytest.raises(pytest.skip.Exception):
        echo.plan(MODEL.symbol, **{"max_overhead": None, **changed}, **shapes)
    assert asked


def stored(plan: Plan) -> tuple[Graph, Graph]:
    """A graph and the one to bind, kept under the name "key"."""
    graph = special_case("slices").graph
    number = next(number for number, node in enumerate(graph.nodes) if node.name == "parts")
    marked = mark(graph, {number: [0, 2]}, hook=True, match_range=4)
    plan_cache.save("key", found(with_marks_of(plan, graph, marked), marked, graph))
    return graph, marked


def found(plan: Plan, marked: Graph, graph: Graph, chunks: tuple[int, ...] | None = None) -> PlannedGraph:
    return PlannedGraph(plan, marked, graph, chunks, Names.of(graph, graph))


def with_marks_of(plan: Plan, graph: Graph, marked: Graph) -> Plan:
    return replace(plan, marks=marks_of(graph, marked), match_range=4)


def value_in(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text())
    del value["digest"]
    return value


def write(path: Path, value: Any, key: str = "key") -> None:
    """As echo would have written it: with a digest."""
    files.replace(path, plan_cache._purpose(key), value)


def test_a_plan_comes_back(folder: Path, plan: Plan) -> None:
    graph, marked = stored(plan)
    assert plan_cache.load("key", graph, FRAMEWORK) == found(with_marks_of(plan, graph, marked), marked, graph)
    assert plan_cache.load("another", graph, FRAMEWORK) is None
    assert [path.name for path in folder.iterdir()] == ["key.json"]


def wrong(value: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**value, **changes}


def wrong_marks(value: dict[str, Any], marks: Any) -> dict[str, Any]:
    return wrong(value, plan={**value["plan"], "marks": marks})


def decided(value: dict[str, Any]) -> list[Any]:
    return value["plan"]["decisions"]["node"]


def wrong_decisions(value: dict[str, Any], **changes: Any) -> dict[str, Any]:
    changed = {**value["plan"]["decisions"], **changes}
    decisions = {name: items for name, items in changed.items() if items is not None}
    return wrong(value, plan={**value["plan"], "decisions": decisions})


DAMAGE = {
    "no plan": lambda value: wrong(value, plan={}),
    "no marks": lambda value: wrong_marks(value, [1, 2]),
    "a node that is not there": lambda value: wrong_marks(value, [[999, "tanh", {PLAN_ATTRIBUTE: "0"}]]),
    "no number": lambda value: wrong_marks(value, [["last", "tanh", {PLAN_ATTRIBUTE: "0"}]]),
    "a negative number": lambda value: wrong_marks(value, [[-2, "tanh", {PLAN_ATTRIBUTE: "0"}]]),
    "a variable": lambda value: wrong_marks(value, [[0, "null", {PLAN_ATTRIBUTE: "0"}]]),
    "another operator": lambda value: wrong_marks(value, [[3, "tanh", {PLAN_ATTRIBUTE: "0"}]]),
    "another attribute": lambda value: wrong_marks(value, [[3, "FullyConnected", {"num_hidden": "7"}]]),
    "no outputs": lambda value: wrong_marks(value, [[3, "FullyConnected", {PLAN_ATTRIBUTE: "all"}]]),
    "an output that is not there": lambda value: wrong_marks(value, [[3, "FullyConnected", {PLAN_ATTRIBUTE: "7"}]]),
    "no match range": lambda value: wrong_marks(value, [[3, "FullyConnected", {RANGE_ATTRIBUTE: "-3"}]]),
    "no text": lambda value: wrong_marks(value, [[3, "FullyConnected", {PLAN_ATTRIBUTE: 0}]]),
    "a decision without a field": lambda value: wrong_decisions(value, reason=None),
    "a decision with another field": lambda value: wrong_decisions(value, colour=["red"]),
    "a decision too few": lambda value: wrong_decisions(value, bytes=value["plan"]["decisions"]["bytes"][1:]),
    "a size that is a text": lambda value: wrong_decisions(value, bytes=["1"] * len(decided(value))),
    "a size that is a switch": lambda value: wrong_decisions(value, bytes=[True] * len(decided(value))),
    "an unknown action": lambda value: wrong_decisions(value, texts=["drop"] * 10**4),
    "a text that is not there": lambda value: wrong_decisions(value, reason=[10**6] * len(decided(value))),
    "a text from the end": lambda value: wrong_decisions(value, op=[-1] * len(decided(value))),
    "texts that are none": lambda value: wrong_decisions(value, texts=list(range(10**4))),
    "no texts": lambda value: wrong_decisions(value, texts=None),
    "a field that is no list": lambda value: wrong_decisions(value, action="stash"),
    "chunks that are no list": lambda value: wrong(value, chunks=64),
    "a chunk that is a text": lambda value: wrong(value, chunks=[64, "64"]),
    "a chunk that is a switch": lambda value: wrong(value, chunks=[True]),
    "a chunk that is no whole number": lambda value: wrong(value, chunks=[64.0]),
    "a chunk of negative size": lambda value: wrong(value, chunks=[64, -1]),
    "names that are no list": lambda value: wrong(value, names=["data", None]),
    "names of which one is a number": lambda value: wrong(value, names=[[1], None]),
    "names of one graph": lambda value: wrong(value, names=[["data"]]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_plan_that_makes_no_sense_is_ignored_and_made_again(
    folder: Path, plan: Plan, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Even under the right digest."""
    graph, marked = stored(plan)
    path = folder / "key.json"
    write(path, DAMAGE[damage](value_in(path)))
    check_ignored(plan, graph, marked, path, caplog)


BYTES = {
    "empty": lambda data: b"",
    "half written": lambda data: data[:400],
    "a byte too many": lambda data: data + b" ",
    "a byte too few": lambda data: data[:-1],
    "no object": lambda data: b"[]",
    "nested": lambda data: b"[" * 100_000,
    "a pickle": lambda data: b"\x80\x04\x95",
    "no digest": lambda data: b"{" + data[data.index(b",") + 2 :],
    "another plan's": None,
}


@pytest.mark.parametrize("damage", BYTES)
def test_a_damaged_file_is_ignored_and_written_again(
    folder: Path, plan: Plan, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    graph, marked = stored(plan)
    path = folder / "key.json"
    change = BYTES[damage]
    if change is None:
        write(path, value_in(path), key="other")
    else:
        path.write_bytes(change(path.read_bytes()))
        path.chmod(0o600)
    check_ignored(plan, graph, marked, path, caplog)


def check_ignored(plan: Plan, graph: Graph, marked: Graph, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert plan_cache.load("key", graph, FRAMEWORK) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{path} is ignored, and its content is made again: " in record.getMessage()
    kept = with_marks_of(plan, graph, marked)
    plan_cache.save("key", found(kept, marked, graph))
    assert plan_cache.load("key", graph, FRAMEWORK) == found(kept, marked, graph)


@pytest.mark.slow
def test_every_flipped_bit_is_noticed(folder: Path, plan: Plan) -> None:
    """Each byte in turn, some bits of it; and several at once."""
    graph, _ = stored(replace(plan, decisions=plan.decisions[:2], missed=(), notes=()))
    path = folder / "key.json"
    whole, generator = path.read_bytes(), random.Random(0)
    flips = [[(place, 1 << bit)] for place in range(len(whole)) for bit in generator.sample(range(8), 2)]
    flips += [[(generator.randrange(len(whole)), generator.randrange(1, 256)) for _ in range(count)]
              for count in range(2, 9) for _ in range(50)]  # fmt: skip
    for flip in flips:
        data = bytearray(whole)
        for place, bits in flip:
            data[place] ^= bits
        if bytes(data) != whole:
            path.write_bytes(data)
            assert plan_cache.load("key", graph, FRAMEWORK) is None, flip
    path.write_bytes(whole)
    assert plan_cache.load("key", graph, FRAMEWORK) is not None


def test_chunks_come_back_next_to_the_plan(folder: Path, plan: Plan) -> None:
    graph, marked = stored(plan)
    kept = with_marks_of(plan, graph, marked)
    for chunks in ((64, 0, 4096), ()):
        plan_cache.save("key", found(kept, marked, graph, chunks))
        assert plan_cache.load("key", graph, FRAMEWORK) == found(kept, marked, graph, chunks)
    value = value_in(folder / "key.json")
    del value["chunks"]
    write(folder / "key.json", value)
    assert plan_cache.load("key", graph, FRAMEWORK) == found(kept, marked, graph)


@pytest.mark.usefixtures("cheap_planning")
def test_damaged_chunks_cost_a_new_planning_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = echo.plan(MODEL.symbol, **MODEL.shapes)
    (path,) = folder.iterdir()
    whole = path.read_text()
    assert json.loads(whole)["chunks"]
    write(path, wrong(value_in(path), chunks=["64"]), key=path.stem)
    forget(monkeypatch)
    full, asked = pipeline.plan, []
    monkeypatch.setattr("echo.pipeline.plan", lambda request: (asked.append(request), full(request))[1])
    assert echo.plan(MODEL.symbol, **MODEL.shapes) == first
    assert len(asked) == 1
    assert path.read_text() == whole


def test_operators_that_must_not_run_twice_are_never_marked(folder: Path, plan: Plan) -> None:
    graph, _ = stored(plan)
    path = folder / "key.json"
    value = value_in(path)
    loss = next(number for number, node in enumerate(graph.nodes) if node.op == "MakeLoss")
    write(path, wrong_marks(value, [[loss, "MakeLoss", {PLAN_ATTRIBUTE: "0", RANGE_ATTRIBUTE: "4"}]]))
    assert plan_cache.load("key", graph, FRAMEWORK) is None
    ranges = mark(graph, {}, hook=True, match_range=4)  # which stand everywhere, if nothing is recomputed
    plan_cache.save("key", found(with_marks_of(plan, graph, ranges), ranges, graph))
    assert plan_cache.load("key", graph, FRAMEWORK) is not None


def test_a_folder_that_cannot_be_written_to_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path / "file"))
    graph, _ = stored(plan)
    assert plan_cache.load("key", graph, FRAMEWORK) is None
