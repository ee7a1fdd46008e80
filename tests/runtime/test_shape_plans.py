"""Blocks whose inputs seldom have the same shape twice: which shape is planned how, and always the same bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import echo
from echo import native, pipeline
from echo.planning.planner import Planner
from echo.planning.reuse import SpareTime
from echo.plans.decisions import Memory
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.runtime import bind_plan, shape_plans
from echo.runtime.cached_op import PlannedCachedOp
from echo.runtime.error_policy import RaiseUnmetRequests
from echo.runtime.shape_plans import ORIGINAL, Answer, CachedOpGraph, ShapePlans, Signature

FLAGS = {"dynamic": {}, "static alloc": {"static_alloc": True}, "static": {"static_alloc": True, "static_shape": True}}


def signature(rows: int, dtype: type = np.float32, device: str = "cpu") -> Signature:
    return (((rows, 4), dtype, "default"), device)


def plan(before: int, after: int) -> Plan:
    """A plan of which only these bytes count."""
    key = find_key()
    return Plan((), Memory(before, 0, {}, {}, {}), Memory(after, 0, {}, {}, {}), None, 1.0, 0.0, 0, "search", "cpu",
                "hook" if after < before else "none", key)  # fmt: skip


def find_key() -> Any:
    from echo.ir.training_graph import Runner
    from echo.plans.key import PlanKey

    return PlanKey("graph", {"tanh": 4}, (), "cpu", Runner.DYNAMIC, {})


@dataclass
class FakePlanning:
    """Answers with plans of these bytes; ``asked`` has what was asked for."""

    searched: tuple[int, int] = (100, 50)
    followed: tuple[int, int] | None = (100, 50)
    may_follow: bool = True
    asked: list[str] = field(default_factory=list)

    def search(self, further: bool) -> Answer:
        self.asked.append("further search" if further else "search")
        return answer(self.searched)

    def follow(self) -> Answer | None:
        self.asked.append("follow")
        return None if self.followed is None else answer(self.followed)


def answer(sizes: tuple[int, int]) -> Answer:
    made = plan(*sizes)
    return Answer(made, ORIGINAL if made.changes_nothing else CachedOpGraph(key=sizes))


@dataclass
class FakeTime:
    """Spare time that allows what the test says."""

    open: bool = True
    asked: list[float] = field(default_factory=list)

    def allows(self, seconds: float, part: float = 1.0) -> bool:
        self.asked.append(part)
        return self.open


@pytest.fixture
def spare() -> FakeTime:
    return FakeTime()


@pytest.fixture
def shapes(spare: FakeTime) -> ShapePlans:
    return ShapePlans(lambda: spare)  # type: ignore[arg-type,return-value]


def test_first_shape_is_searched_and_others_follow(shapes: ShapePlans) -> None:
    planning = FakePlanning()
    for rows in (8, 8, 9, 10, 9, 8):
        assert shapes.choose(signature(rows), planning).key == (100, 50)
    assert planning.asked == ["search", "follow", "follow"]
    assert shapes.plans.keys() == {signature(rows) for rows in (8, 9, 10)}


def test_shape_runs_as_mxnet_has_it_until_there_is_time(shapes: ShapePlans, spare: FakeTime) -> None:
    planning = FakePlanning()
    shapes.choose(signature(8), planning)
    spare.open = False
    assert shapes.choose(signature(9), planning) is ORIGINAL
    assert shapes.get(signature(9)) is ORIGINAL
    assert signature(9) not in shapes.plans
    spare.open = True
    assert shapes.choose(signature(9), planning).key == (100, 50)
    assert planning.asked == ["search", "follow"]


@pytest.mark.parametrize(
    ("planned", "rows", "follows"),
    [(8 << 20, 12, True), (8 << 20, 9, False), (4 << 20, 12, False), (4 << 20, 16, True)],
)
def test_shape_that_raises_the_peak_of_a_large_model_follows_without_spare_time(
    shapes: ShapePlans, spare: FakeTime, planned: int, rows: int, follows: bool
) -> None:
    spare.open = False
    sizes = (planned, planned // 2)
    planning = FakePlanning(searched=sizes, followed=sizes)
    shapes.choose(signature(8), planning)
    assert (shapes.choose(signature(rows), planning) is not ORIGINAL) == follows
    assert shapes.choose(signature(7), planning) is ORIGINAL


def test_smaller_shapes_get_half_of_the_time(shapes: ShapePlans, spare: FakeTime) -> None:
    planning = FakePlanning()
    for rows in (8, 7, 9, 8, 8):
        shapes.choose(signature(rows), planning)
    assert spare.asked[:2] == [shape_plans._SMALL_PART, 1.0]


@pytest.mark.parametrize(("searched", "kept"), [((100, 20), (100, 20)), ((100, 49), (100, 50))])
def test_shape_that_comes_back_is_searched_and_gets_the_smaller_plan(
    shapes: ShapePlans, searched: tuple[int, int], kept: tuple[int, int]
) -> None:
    planning = FakePlanning()
    shapes.choose(signature(8), planning)
    planning.searched = searched
    keys = [shapes.choose(signature(9), planning).key for _ in range(20)]
    assert keys == [(100, 50)] * (shape_plans._COMES_BACK - 1) + [kept] * (20 - shape_plans._COMES_BACK + 1)
    assert planning.asked == ["search", "follow", "further search"]


def test_shape_for_which_the_plan_saves_much_less_is_searched_at_once(shapes: ShapePlans) -> None:
    planning = FakePlanning()
    shapes.choose(signature(8), planning)
    planning.followed, planning.searched = (100, 70), (100, 55)
    assert shapes.choose(signature(9), planning).key == (100, 55)
    assert planning.asked == ["search", "follow", "further search"]


def test_shape_for_which_the_plan_does_not_hold_is_searched_at_its_second_call(shapes: ShapePlans) -> None:
    planning = FakePlanning(followed=None)
    shapes.choose(signature(8), planning)
    assert shapes.choose(signature(9), planning) is ORIGINAL
    assert shapes.choose(signature(9), planning).key == (100, 50)
    assert planning.asked == ["search", "follow", "further search"]


def test_model_without_a_plan_is_searched_again_for_much_larger_shapes(shapes: ShapePlans) -> None:
    planning = FakePlanning(searched=(100, 100))
    for rows in (8, 9, 10):
        assert shapes.choose(signature(rows), planning) is ORIGINAL
    assert planning.asked == ["search"]
    planning.searched = (1000, 400)
    assert shapes.choose(signature(16), planning).key == (1000, 400)
    assert shapes.choose(signature(17), planning).key == (100, 50), "the new plan is the model's"
    assert planning.asked == ["search", "further search", "follow"]


def test_differing_type_or_device_is_planned_again(shapes: ShapePlans) -> None:
    planning = FakePlanning()
    for made in (signature(8), signature(8, np.float64), signature(8, device="gpu"), signature(9, np.float64)):
        shapes.choose(made, planning)
    assert planning.asked == ["search", "search", "search", "follow"]


def test_options_for_each_shape_are_searched_each_time(shapes: ShapePlans, spare: FakeTime) -> None:
    spare.open = False
    planning = FakePlanning(may_follow=False)
    for rows in (8, 9, 8, 9):
        shapes.choose(signature(rows), planning)
    assert planning.asked == ["search", "search"]


def test_failed_search_leaves_the_shape_open(shapes: ShapePlans) -> None:
    class Failing(FakePlanning):
        def search(self, further: bool) -> Answer:
            raise echo.BudgetError(1, 2, "", "")

    for _ in range(2):
        with pytest.raises(echo.BudgetError):
            shapes.choose(signature(8), Failing())
    assert shapes.choose(signature(8), FakePlanning()).key == (100, 50)


def test_shapes_that_were_not_seen_for_the_longest_time_are_forgotten(shapes: ShapePlans) -> None:
    planning = FakePlanning()
    for rows in range(1, shape_plans._MOST + 1):
        shapes.choose(signature(rows), planning)
    shapes.choose(signature(1), planning)
    shapes.choose(signature(10**6), planning)
    assert shapes.get(signature(1)) is not None
    assert shapes.get(signature(2)) is None
    assert len(shapes.plans) == shape_plans._MOST


# Blocks ------------------------------------------------------------------------------------------------------------


class Tagger(gluon.HybridBlock):  # type: ignore[misc]
    """Convolutions over pictures of any height, normalization, dropout, and attention over the rows."""

    def __init__(self) -> None:
        super().__init__(prefix="tagger_")
        with self.name_scope():
            self.convolutions = nn.HybridSequential()
            for _ in range(3):
                self.convolutions.add(nn.Conv2D(16, 3, padding=1), nn.BatchNorm())
                self.convolutions.add(nn.Activation("relu"), nn.Dropout(0.2))
            self.rows, self.out = nn.Dense(12, flatten=False), nn.Dense(7, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        y = F.mean(self.convolutions(x), axis=3)
        y = F.tanh(self.rows(F.transpose(y, axes=(0, 2, 1))))
        weights = F.softmax(F.batch_dot(F.sigmoid(y), y, transpose_b=True))
        return self.out(F.batch_dot(weights, F.exp(F.tanh(y))))


def trained(lengths: list[int], optimized: bool, fuse: bool, flags: dict[str, bool]) -> tuple[Any, dict[str, Any]]:
    mx.random.seed(3)
    np.random.seed(3)
    net = Tagger()
    net.initialize(mx.init.Xavier())
    net.hybridize(**flags)
    if optimized:
        echo.optimize(net, fuse=fuse, max_overhead=None)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-6})
    seen = {}
    for step, length in enumerate(lengths):
        x = mx.nd.array(np.random.RandomState(step).normal(size=(4, 3, length, 5)))
        with autograd.record():
            loss = net(x).square().sum()
        loss.backward()
        trainer.step(4)
        mx.nd.waitall()
        seen[f"loss {step}"] = loss.asnumpy()
        seen[f"inference {step}"] = net(x).asnumpy()
    seen.update({name: parameter.data().asnumpy() for name, parameter in net.collect_params().items()})
    return net, seen


LENGTHS = [16, 24, 8, 23, 64, 9, 16, 1, 65, 8]


@pytest.mark.every(5)
@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("fuse", [False, True])
def test_training_with_changing_shapes_has_the_bits_of_mxnet(
    flags: str, fuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpareTime, "allows", lambda *_: True)
    lengths = [8 * length for length in LENGTHS] if fuse else LENGTHS  # small arrays are not fused
    _, expected = trained(lengths, False, fuse, FLAGS[flags])
    net, got = trained(lengths, True, fuse, FLAGS[flags])
    plans = net._cached_op.plans
    assert sum(not made.changes_nothing for made in plans.values()) >= (4 if fuse else 6)
    assert any(made.fused for made in plans.values()) == fuse
    for name, value in expected.items():
        if fuse:
            np.testing.assert_allclose(got[name], value, rtol=2e-4, atol=1e-5, err_msg=name)
        else:
            assert np.array_equal(got[name], value), name


@pytest.mark.usefixtures("cheap_planning")
def test_followed_plan_is_searched_once_and_runs_on_one_cached_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpareTime, "allows", lambda *_: True)
    searched: list[Any] = []
    full = pipeline.plan
    monkeypatch.setattr(pipeline, "plan", lambda request: (searched.append(request), full(request))[1])
    net, _ = trained([32, 31, 33, 40, 30], True, False, {})
    assert len(searched) == 1
    assert len(net._cached_op._ops) == 2, "MXNet's own and one with the plan"
    first, *others = net._cached_op.plans.values()
    assert len(others) == 4
    assert all(made.marks == first.marks for made in others)


@pytest.mark.usefixtures("cheap_planning")
def test_further_shapes_without_spare_time_run_unplanned(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner()
    planner.spare_time = SpareTime(share=0.0)
    monkeypatch.setattr(bind_plan, "PLANNER", planner)
    monkeypatch.setattr("echo.runtime.cached_op.PLANNER", planner)
    net, got = trained([16, 24, 16, 8], True, False, {})
    assert len(net._cached_op.plans) == 1
    _, expected = trained([16, 24, 16, 8], False, False, {})
    assert all(np.array_equal(got[name], value) for name, value in expected.items())


@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("fuse", [False, True])
def test_bytes_of_a_followed_plan_come_true(fuse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With static_alloc and gradients of every input, MXNet allocates to the byte what the plan says."""
    monkeypatch.setattr(SpareTime, "allows", lambda *_: True)
    net = Tagger()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    echo.optimize(net, fuse=fuse, max_overhead=None)
    for length in (320, 480, 200):
        x = mx.nd.ones((4, 3, length, 5))
        x.attach_grad()
        with autograd.record(), native.capture() as forward:
            loss = net(x)
        with native.capture() as backward:
            loss.backward()
        mx.nd.waitall()
        made = next(made for key, made in net._cached_op.plans.items() if key[0][0] == x.shape)
        assert not made.changes_nothing
        found = forward.graph["touched_bytes"] + backward.graph["touched_bytes"]  # type: ignore[index]
        assert found == made.after.planned


pytestmark = pytest.mark.usefixtures("cheap_planning")


def choice_of(symbol: mx.sym.Symbol, **options: object) -> CachedOpGraph:
    """The choice for one call in training, of arrays of ones."""
    policy = RaiseUnmetRequests(Options.of(max_overhead=None, **options))  # type: ignore[arg-type]
    op = PlannedCachedOp(symbol, [("static_alloc", True)], policy)
    shapes, _, _ = symbol.infer_shape(data=(64, 64))
    args = [mx.nd.ones(shape) for shape in shapes]
    for array in args:
        array.attach_grad()
    with mx.autograd.record():
        op(*args)
    (shape,) = op._shapes._shapes.values()
    return shape.choice


def deep(x: mx.sym.Symbol) -> mx.sym.Symbol:
    for _ in range(4):
        x = mx.sym.tanh(mx.sym.exp(mx.sym.sigmoid(mx.sym.FullyConnected(x, num_hidden=64))))
    return x


def test_mode_independent_choice_serves_every_mode() -> None:
    choice = choice_of(deep(mx.sym.var("data")), fuse=False)
    assert choice.graph is not None
    assert (choice.in_training, choice.fuses, choice.mode_dependent) == (False, False, frozenset())
    assert choice.key != ORIGINAL.key


def test_masks_are_there_in_training_alone() -> None:
    x = mx.sym.var("data")
    for _ in range(4):
        x = mx.sym.tanh(mx.sym.Dropout(mx.sym.exp(mx.sym.FullyConnected(x, num_hidden=64))))
    assert choice_of(x, fuse=False).in_training


def test_fused_operators() -> None:
    example = mx.sym.softmax(mx.sym.FullyConnected(deep(mx.sym.var("data")), num_hidden=9))
    assert not choice_of(example, fuse=False).fuses
