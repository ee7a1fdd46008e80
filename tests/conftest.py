"""What the tests share: golden files, training graphs of real symbols, and problems with invented costs."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import mxnet as mx
import numpy as np
import pytest

import echo
from benchmarks.models import SMALL
from echo.estimators.measuring import UnmeasurableError
from echo.estimators.overhead import Overhead
from echo.estimators.storage_planner import Choice, Evaluator, ReferencePlanner, StoragePlanner
from echo.frontend.capture import oracle, training_graph
from echo.frontend.install import install_hook
from echo.frontend.mxnet_settings import match_range
from echo.frontend.session import MxnetSession
from echo.frontend.symbols import Binding, graph_of, infer_binding, symbol_of
from echo.ir.graph import Entry, Graph
from echo.ir.op_spec import RANGE_ATTRIBUTE, GradientRule
from echo.ir.ops import spec
from echo.ir.recompute_rules import recomputable_outputs
from echo.ir.schedule import Splits
from echo.ir.training_graph import EXECUTOR, TrainingGraph
from echo.passes.request import Request
from echo.passes.rewrite import Rewrite
from echo.passes.rules import RULES
from echo.passes.select import Selection
from echo.planning.plan_cache import Found
from echo.planning.planner import Planner
from echo.plans.key import PlanKey
from echo.plans.options import Options
from echo.plans.variables import DEBUG_VARIABLE
from echo.policies.problem import Problem, partition
from echo.runtime import bind_plan
from echo.runtime.foresight import FORESIGHT
from echo.system.process import NEVER, Deadline
from echo.system.threads import ONCE
from fuzz.poison import poisoned
from tests.parts import is_slow, mark_slow, name_of, share

GOLDEN = Path(__file__).parent / "golden"
MATCH_RANGES = (1, 2, 3, 16, 64)
os.environ[DEBUG_VARIABLE] = "check"  # also for the processes that tests start


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what the tests got into tests/golden/")
    parser.addoption("--part", metavar="K/N", help="of tests with many slow cases each N-th alone, from the K-th on")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_slow(items)
    part = config.getoption("--part")
    if part:
        first, step = map(int, part.split("/"))
        items[:] = share([(item, name_of(item), is_slow(item)) for item in items], first, step)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a file of tests/golden/, or writes it there under ``--update-golden``."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text + "\n", encoding="utf-8")
        assert path.is_file(), f"there is no {path}: run pytest with --update-golden and read what it wrote"
        assert text + "\n" == path.read_text(encoding="utf-8")

    return check


# Real symbols ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A symbol, how it is bound, and the training graph that MXNet makes of it."""

    symbol: mx.sym.Symbol
    graph: Graph
    binding: Binding
    training: TrainingGraph

    def draw(self, seed: int, share: float, hook: bool = True) -> frozenset[Entry]:
        """Recomputable entries, each taken with this probability; all of a node or none without the hook."""
        generator = random.Random(seed)
        drawn: set[Entry] = set()
        for outputs in recomputable(self.training, hook).values():
            together = generator.random() < share
            drawn.update(entry for entry in outputs if (generator.random() < share if hook else together))
        return frozenset(drawn)

    def draw_splits(self, seed: int, entries: frozenset[Entry]) -> dict[int, tuple[int, ...]]:
        """Positions of one to three backward nodes for two thirds of the nodes of these entries."""
        generator = random.Random(seed)
        backward = [number for number, node in self.training.operators() if not node.forward]
        return {
            node: tuple(sorted(generator.sample(backward, min(len(backward), generator.randint(1, 3)))))
            for node in sorted({entry.node for entry in entries})
            if generator.random() < 0.67
        }

    def rewritten(self, entries: frozenset[Entry], hook: bool = True, splits: Splits | None = None) -> Graph:
        """The user's graph with the attributes that make the hook, or MXNet itself, recompute these entries."""
        request = Request(self.graph, Options(), FakeFrontend(self.training, hook=hook))
        selection = Selection(entries, splits or {}, {entry.node: 1 for entry in entries}, 16, 0, 0.0)
        return Rewrite().run(request, self.training, selection).graph

    def bound(self, graph: Graph) -> TrainingGraph:
        """The training graph that MXNet, with the hook, makes of a graph."""
        return training_graph(graph, self.binding, mx.cpu())

    def implemented(self, training: TrainingGraph, implementations: Mapping[int, GradientRule]) -> TrainingGraph:
        return training

    def oracle(self, graph: Graph, match_range_: int) -> int:
        """Bytes that MXNet's own memory planner needs for a graph."""
        if match_range_ < 0:  # no range, but echo's own assignment: the hook finds it in the graph
            everywhere = {number: {RANGE_ATTRIBUTE: str(match_range_)} for number in range(len(graph.nodes))}
            graph = graph.with_attrs({n: attrs for n, attrs in everywhere.items() if not graph.nodes[n].is_variable})
            return oracle(symbol_of(graph), self.binding, mx.cpu(), hook=True).bytes
        with match_range(match_range_):
            return oracle(symbol_of(graph), self.binding, mx.cpu(), hook=True).bytes


def plan_other_graphs(monkeypatch: pytest.MonkeyPatch, changed: Callable[[Graph], Graph]) -> None:
    """Every plan from now on is bound with what ``changed`` makes of its graph."""

    def changing(original: Callable[..., Found | None]) -> Callable[..., Found | None]:
        def called(*args: Any, **kwargs: Any) -> Found | None:
            found = original(*args, **kwargs)
            return None if found is None else found._replace(graph=changed(found.graph))

        return called

    for name in ("plan", "follow"):
        monkeypatch.setattr(Planner, name, changing(getattr(Planner, name)))


def calls_of(action: Callable[[], Any]) -> tuple[Any, int]:
    """What an action gives, and how many functions it called: the work that it took, the same on every machine."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = action()
    finally:
        sys.setprofile(before)
    return result, calls


def case_of(
    symbol: mx.sym.Symbol,
    shapes: Mapping[str, tuple[int, ...]],
    grad_req: Any = None,
    types: Mapping[str, Any] | None = None,
) -> Case:
    """A symbol bound on the CPU; by default everything but the given inputs is trained."""
    assert install_hook() == ""
    if grad_req is None:
        grad_req = {name: "null" if name in shapes else "write" for name in symbol.list_arguments()}
    graph, binding = graph_of(symbol), infer_binding(symbol, shapes, types, grad_req)
    return Case(symbol, graph, binding, training_graph(graph, binding, mx.cpu()))


@lru_cache(maxsize=None)
def model_case(name: str) -> Case:
    """A small model of the benchmarks."""
    model = SMALL[name]()
    return case_of(model.symbol, model.shapes)


def with_dropout() -> mx.sym.Symbol:
    hidden = mx.sym.var("data")
    for layer in range(3):
        hidden = mx.sym.FullyConnected(hidden, num_hidden=24, name=f"fc{layer}")
        hidden = mx.sym.Activation(hidden, act_type="tanh", name=f"tanh{layer}")
        hidden = mx.sym.Dropout(hidden, p=0.3, name=f"drop{layer}")
        hidden = mx.sym.sigmoid(hidden, name=f"sigmoid{layer}") * hidden
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=5), mx.sym.var("label"), name="softmax")


def with_slices() -> mx.sym.Symbol:
    gates = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=32, name="gates")
    parts = mx.sym.SliceChannel(gates, num_outputs=4, name="parts")
    cell = mx.sym.sigmoid(parts[0]) * mx.sym.tanh(parts[1]) + mx.sym.relu(parts[2]) * parts[1]
    joined = mx.sym.Concat(cell, mx.sym.tanh(cell) * mx.sym.sigmoid(parts[3]), parts[0], dim=1)
    halves = mx.sym.SliceChannel(mx.sym.tanh(joined), num_outputs=3, axis=1, name="thirds")
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.dot(halves[0], halves[1], transpose_b=True)) + mx.sym.sum(halves[2]))


def with_many_readers() -> mx.sym.Symbol:
    """Ten gradients are summed for one map: above eight, MXNet sums them with another operator."""
    hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="fc"), name="hidden")
    weight = mx.sym.var("weight")
    parts = [
        mx.sym.FullyConnected(mx.sym.tanh(hidden * (step + 1.0)), weight=weight, no_bias=True, num_hidden=8)
        for step in range(10)
    ]
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(mx.sym.add_n(*parts))))


def with_float16() -> mx.sym.Symbol:
    half = mx.sym.Cast(mx.sym.var("data"), dtype="float16")
    hidden = mx.sym.FullyConnected(half, mx.sym.var("w", dtype="float16"), no_bias=True, num_hidden=12)
    for _ in range(3):
        hidden = mx.sym.exp(mx.sym.tanh(hidden)) * hidden
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.softmax(mx.sym.Cast(mx.sym.Flatten(hidden), dtype="float32"))))


def with_two_outputs() -> mx.sym.Symbol:
    hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=12, name="fc"), name="hidden")
    norm = mx.sym.LayerNorm(hidden, name="norm")
    return mx.sym.Group([mx.sym.exp(norm) * hidden, hidden, mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(norm)))])


SPECIAL: dict[str, Callable[[], Case]] = {
    "dropout": lambda: case_of(with_dropout(), {"data": (8, 20), "label": (8,)}),
    "slices": lambda: case_of(with_slices(), {"data": (6, 10)}),
    "many readers": lambda: case_of(with_many_readers(), {"data": (6, 10)}, grad_req="add"),
    "float16": lambda: case_of(with_float16(), {"data": (6, 10)}),
    "two outputs": lambda: case_of(with_two_outputs(), {"data": (6, 10)}),
}


@lru_cache(maxsize=None)
def special_case(name: str) -> Case:
    """A symbol with structure that the models do not have."""
    return SPECIAL[name]()


ALL_CASES = (*SMALL, *SPECIAL)


def any_case(name: str) -> Case:
    """A small model of the benchmarks or a special symbol."""
    return special_case(name) if name in SPECIAL else model_case(name)


def recomputable(training: TrainingGraph, hook: bool = True) -> dict[int, tuple[Entry, ...]]:
    """The entries of every forward operator that may run twice, heavy ones included."""
    found = {}
    for number, node in training.operators():
        if node.forward and node.user is not None and 0 not in node.outputs[0].shape:
            outputs = recomputable_outputs(node, "cpu", hook)
            if outputs:
                found[number] = tuple(Entry(number, output) for output in outputs)
    return found


# Planning ----------------------------------------------------------------------------------------------------


def choice_of(training: TrainingGraph, entries: Iterable[Entry]) -> Choice:
    """These entries as the evaluators want them."""
    choice = np.zeros(training.first_entry[-1], np.uint8)
    choice[[training.entry_id(entry) for entry in sorted(entries)]] = 1
    return choice


def overhead_of(training: TrainingGraph, second: float = 1e-3) -> Overhead:
    """Every operator takes as long as any other."""
    seconds = tuple(0.0 if node.is_variable else second for node in training.nodes)
    return Overhead(seconds, sum(seconds), len(training.nodes), 0)


def problem_of(
    training: TrainingGraph,
    overhead: Overhead | None = None,
    planner: type[StoragePlanner] | type[ReferencePlanner] = StoragePlanner,
    **limits: Any,
) -> Problem:
    """What a policy is asked for a training graph: all light operators are candidates."""
    overhead = overhead or overhead_of(training)
    heads = {entry.node for entry in training.outputs}
    candidates = {
        number: entries
        for number, entries in recomputable(training).items()
        if not spec(training.nodes[number].op).heavy and number not in heads
    }
    return Problem(
        **{
            "training": training,
            "overhead": overhead,
            "evaluator": planner(training, overhead.seconds),
            "candidates": candidates,
            "segments": partition(training, candidates),
            "forced": frozenset(),
            "match_ranges": (16, 1, 2, 4),
            **limits,
        }
    )


SUBJECT = PlanKey("graph", {}, (), "cpu", EXECUTOR, {})


@dataclass
class FakeFrontend:
    """Answers the planner's questions with values given in advance."""

    training: TrainingGraph
    planned: Callable[[Graph, int], int] = lambda graph, match_range: 0
    device: str = "cpu"
    hook: bool = True
    onednn: bool = True
    cudnn: bool = False
    fuses: bool = False
    match_range: int = 16
    static: Mapping[str, int] = field(default_factory=dict)
    subject: PlanKey = SUBJECT
    spaces: int = 1
    family: str = "family"
    evaluations: int = 1000

    def argument_names(self) -> Sequence[str]:
        return ()

    def differentiate(self) -> TrainingGraph:
        return self.training

    def stock_bytes(self) -> int:
        return self.planned(Graph((), (), (), ()), self.match_range)

    def oracle(self, graph: Graph, match_range: int) -> tuple[int, tuple[bool, ...]]:
        return self.planned(graph, match_range), self.training.accumulations

    def evaluator(self, training: TrainingGraph, seconds: Sequence[float]) -> tuple[Evaluator, int]:
        return StoragePlanner(training, seconds), self.evaluations * len(training.nodes)


# Isolation ---------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measured costs go to a folder of this session, never to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ECHO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    """What an earlier test was warned of is news to this one."""
    ONCE.forget()


@pytest.fixture(autouse=True, scope="session")
def no_races() -> Iterator[None]:
    """No layout is chosen by what the clock says: who wants another one patches `MxnetSession.race` again."""

    def race(*_: Any) -> None:
        raise UnmeasurableError("this test measures nothing")

    with pytest.MonkeyPatch.context() as patch:  # not the fixture, whose patches would outlive those of a test's others
        patch.setattr(MxnetSession, "race", race)
        yield


@pytest.fixture
def cheap_planning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Planning without measurements and with a short search, for tests that plan many graphs."""
    full = MxnetSession.evaluator

    def evaluator(session: MxnetSession, training: TrainingGraph, seconds: Sequence[float]) -> tuple[Evaluator, int]:
        found, effort = full(session, training, seconds)
        return found, min(effort, 200 * len(training.nodes))

    def measure(*_: Any) -> float:
        raise UnmeasurableError("this test measures nothing")

    monkeypatch.setattr(MxnetSession, "evaluator", evaluator)
    monkeypatch.setattr(MxnetSession, "meter", lambda _: measure)
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    # a cost table remembers what cannot be measured
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))


class _Patient:
    """In the place of `echo.system.process.Deadline`: a busy machine changes no plan of a test."""

    @staticmethod
    def after(_: float | None) -> Deadline:
        return NEVER


@pytest.fixture
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No plan is remembered, here or on the disk; transparent mode ends with the test."""
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setattr("echo.planning.plan_cache.load", lambda *_: None)
    stock = mx.sym.Symbol.simple_bind, mx.sym.Symbol.bind
    yield
    echo.disable()
    mx.sym.Symbol.simple_bind, mx.sym.Symbol.bind = stock


@pytest.fixture
def free_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workspaces do not decide: small models are fused of which a larger one would be fused as well."""
    monkeypatch.setattr("echo.passes.trial.RULES", replace(RULES, tiny=1 << 40))


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest) -> Iterator[None]:
    """Planning takes the time that it takes, but in the tests of the deadline and of the time for further shapes."""
    with pytest.MonkeyPatch.context() as patch:  # one of its own: the order of other fixtures stays
        if not request.module.__name__.endswith(("test_follow", "test_shape_plans")):
            patch.setattr("echo.planning.follow.SpareTime.allows", lambda *_: True)
        if not request.module.__name__.endswith("deadline"):
            patch.setattr("echo.planning.planner.Deadline", _Patient)
        yield


@pytest.fixture(autouse=True)
def nothing_foreseen() -> None:
    """No graph of an earlier test waits for an update of weights, to log the peak of the process."""
    FORESIGHT._plan = None


@pytest.fixture(params=["plain", "poisoned"])
def memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs as it is, and once more on memory that is overwritten when nobody reads it any more."""
    assert install_hook() == ""
    with poisoned() if request.param == "poisoned" else contextlib.nullcontext():
        yield
