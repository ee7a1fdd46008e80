"""Which plan each shape of a hybridized block runs with, where shapes change from step to step.

The first shape is searched for a plan. Further ones follow it (`echo.planning.reuse`), and a search of their own is
spent only on shapes that come back, or for which the first plan saves much less. All of that together takes a tenth of
the time that the program trains (`echo.planning.reuse.SpareTime`); what there is no time for runs as MXNet has it.
Larger shapes come first, since they decide the peak of memory: one that is a quarter larger than all before follows at
once, unless the model is small.
"""

from __future__ import annotations

import math
import os
import time
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Any, Callable, NamedTuple, Protocol, Sequence, Tuple

from echo.ir.graph import Graph
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, NO_INPLACE_ATTRIBUTE, PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.ir.ops import spec
from echo.ir.training_graph import Runner
from echo.planning.reuse import SpareTime
from echo.plans.decisions import has_gradient_rules
from echo.plans.plan import Plan
from echo.runtime.backward_checks import InputWatch, needs_training, watch_of

# The choice for one signature of the inputs.

_MARKS = (PLAN_ATTRIBUTE, RANGE_ATTRIBUTE, GRADIENT_ATTRIBUTE, NO_INPLACE_ATTRIBUTE)


@dataclass(frozen=True)
class CachedOpGraph:
    """The graph that a CachedOp runs for one signature: a plan's, or None for the original one.

    ``key`` is equal for equal plans. ``mode_dependent`` holds the operators that have to be recomputed in the mode of
    the forward pass. ``in_training`` says that the graph serves only passes in training: such operators or masks of
    Dropout are recomputed. ``has_gradient_rules`` says that its gradients read less than the original graph's;
    ``watch`` has the inputs that backward reads again. ``bulk`` is how many operators the engine may run as one, 0 for
    as many as the user lets it.
    """

    graph: Graph | None = None
    key: tuple[Any, ...] = ()
    mode_dependent: frozenset[str] = frozenset()
    in_training: bool = False
    has_gradient_rules: bool = False
    fuses: bool = False
    watch: InputWatch | None = None
    bulk: int = 0


ORIGINAL = CachedOpGraph()


def chosen(plan: Plan, graph: Graph, original: Graph, inputs: Sequence[str]) -> CachedOpGraph:
    """The choice of a planned graph; ``original`` is the graph with these inputs that it was planned for."""
    recomputed = [node for node in graph.nodes if PLAN_ATTRIBUTE in node.attrs]
    mode_dependent = frozenset(node.op for node in recomputed if spec(node.op).safety.train_mode_sensitive(node.attrs))
    bulk = _bulk(plan, graph)
    return CachedOpGraph(
        graph=graph,
        key=(bulk, plan.fused, *(tuple(node.attrs.get(mark, "") for mark in _MARKS) for node in graph.nodes)),
        mode_dependent=mode_dependent,
        in_training=bool(mode_dependent) or needs_training(graph, original, recomputed),
        has_gradient_rules=has_gradient_rules(graph),
        fuses=bool(plan.fused),
        watch=watch_of(graph, original, inputs),
        bulk=bulk,
    )


# Operators that the engine runs as one, 15 of them by default. What they read is freed after the last of them, so that
# without ``static_alloc`` more is alive than is planned: twice as much for a small ResNet.

_START_SECONDS = 3.5e-6  # of the engine, for an operator or several that run as one
_MOST_STARTS = 0.01  # of the seconds of a step
_BULKS = (1, 4)  # few: each is another CachedOp
_SETTINGS = "MXNET_EXEC_BULK_EXEC_"  # of a user who chooses


def _bulk(plan: Plan, graph: Graph) -> int:
    """The smallest bulk that costs no time to speak of; 0 on GPUs, where each bulk waits for the device."""
    frees = plan.device == "cpu" and plan.key.runner == Runner.DYNAMIC
    if not frees or any(name.startswith(_SETTINGS) for name in os.environ):
        return 0
    operators = 2 * sum(not node.is_variable for node in graph.nodes)  # of both passes
    most = _MOST_STARTS * (plan.step_seconds + plan.overhead_seconds)
    return next((bulk for bulk in _BULKS if operators * _START_SECONDS <= most * bulk), 0)


# The choices for all signatures.

Signature = Tuple[Any, ...]
_MOST = 256  # shapes that are remembered, those that were not seen for the longest time go first
_COMES_BACK = 8  # calls of one shape after which its own search is worth the time
_MUCH_LARGER = 2  # times the elements of the first shape, of which the plan saves nothing
_LOSES = 0.8  # of the share of bytes that the plan saves for the first shape
_BETTER = 0.95  # times the bytes: a plan of a shape's own is another CachedOp, which has to be worth it
_SECONDS, _SECONDS_A_NODE = 0.02, 0.0005  # of following a plan, before it was measured
_GROWS, _LARGE = 1.25, 8 << 20  # times the largest shape so far, of a model that plans so many bytes for it
_SMALL_PART = 0.5  # of the spare time, for shapes that are smaller than the largest one so far


class Answer(NamedTuple):
    """A plan for a shape, and the choice that runs with it; no plan where the block runs as MXNet has it."""

    plan: Plan | None
    choice: CachedOpGraph


class _Stage(Enum):
    WAITING = "there was no time yet"
    FOLLOWS = "the model's plan holds"
    REFUSED = "the model's plan does not hold"
    SETTLED = "no more time is spent"


@dataclass
class _Shape:
    elements: int = 0
    plan: Plan | None = None
    choice: CachedOpGraph = ORIGINAL
    calls: int = 0
    stage: _Stage = _Stage.WAITING

    def take(self, answer: Answer, stage: _Stage) -> None:
        self.plan, self.choice, self.stage = answer.plan, answer.choice, stage


@dataclass
class _Model:
    plan: Plan
    elements: int
    search_seconds: float
    follow_seconds: float


class Planning(Protocol):
    """How a shape gets a plan: `search` for one of its own, or `follow` the model's, None if that does not hold.

    Without ``may_follow`` each shape is searched, since the user's options hold for each of them.
    """

    @property
    def may_follow(self) -> bool: ...
    def search(self, further: bool) -> Answer: ...
    def follow(self) -> Answer | None: ...


class ShapePlans:
    """The choices for the shapes of one block; not for two threads at once.

    A signature is a tuple of (shape, type, storage type) for each input, and the kind of device.
    """

    def __init__(self, spare_time: Callable[[], SpareTime]) -> None:
        self._spare_time = spare_time
        self._shapes: OrderedDict[Signature, _Shape] = OrderedDict()
        self._models: dict[Signature, _Model] = {}  # by types and device
        self._largest = 0

    @property
    def plans(self) -> dict[Signature, Plan]:
        return {signature: shape.plan for signature, shape in self._shapes.items() if shape.plan is not None}

    def get(self, signature: Signature) -> CachedOpGraph | None:
        """Returns the choice of a signature, or None if it was not seen."""
        shape = self._shapes.get(signature)
        return None if shape is None else shape.choice

    def settle(self, signature: Signature, choice: CachedOpGraph) -> None:
        """Makes this the choice of a signature from now on."""
        shape = self._seen(signature)
        shape.choice, shape.stage = choice, _Stage.SETTLED

    def choose(self, signature: Signature, planning: Planning) -> CachedOpGraph:
        """Returns the choice for a call, after planning as far as the spare time allows.

        Raises:
            Exception: the search for the first shape failed; the signature stays open.
        """
        shape = self._seen(signature)
        shape.calls += 1
        if shape.stage is not _Stage.SETTLED:
            self._advance(shape, _kind(signature), planning)
        return shape.choice

    def _seen(self, signature: Signature) -> _Shape:
        shape = self._shapes.get(signature)
        if shape is None:
            while len(self._shapes) >= _MOST:
                self._shapes.popitem(last=False)
            elements = sum(math.prod(array[0]) for array in signature[:-1])
            shape = self._shapes[signature] = _Shape(elements)
        self._shapes.move_to_end(signature)
        return shape

    def _advance(self, shape: _Shape, kind: Signature, planning: Planning) -> None:
        model = self._models.get(kind)
        if model is None or not planning.may_follow:
            started = time.perf_counter()
            answer = planning.search(False)
            shape.take(answer, _Stage.SETTLED)
            if answer.plan is not None:
                self._models[kind] = _model(answer.plan, shape.elements, time.perf_counter() - started)
                self._largest = max(self._largest, shape.elements)
            return
        if shape.stage is _Stage.WAITING:
            self._follow(shape, model, planning)
        if self._is_search_due(shape, model):
            self._search(shape, kind, planning)

    def _allows(self, seconds: float, shape: _Shape) -> bool:
        return self._spare_time().allows(seconds, 1.0 if shape.elements >= self._largest else _SMALL_PART)

    def _raises_peak(self, shape: _Shape, model: _Model) -> bool:
        planned = model.plan.before.planned * shape.elements
        return shape.elements >= _GROWS * self._largest and planned >= _LARGE * model.elements

    def _follow(self, shape: _Shape, model: _Model, planning: Planning) -> None:
        if model.plan.changes_nothing:
            shape.stage = _Stage.REFUSED
        elif self._raises_peak(shape, model) or self._allows(model.follow_seconds, shape):
            started = time.perf_counter()
            answer = planning.follow()
            model.follow_seconds = time.perf_counter() - started
            if answer is None:
                shape.stage = _Stage.REFUSED
            else:
                shape.take(answer, _Stage.FOLLOWS)
                self._largest = max(self._largest, shape.elements)

    def _is_search_due(self, shape: _Shape, model: _Model) -> bool:
        due = shape.calls >= _COMES_BACK
        if shape.stage is _Stage.REFUSED:
            due = due or shape.elements >= _MUCH_LARGER * model.elements
            due = due or (shape.calls > 1 and not model.plan.changes_nothing)
        elif shape.stage is _Stage.FOLLOWS:
            assert shape.plan is not None
            due = due or _saved(shape.plan) < _LOSES * _saved(model.plan)
        else:
            due = False
        return due and self._allows(model.search_seconds, shape)

    def _search(self, shape: _Shape, kind: Signature, planning: Planning) -> None:
        started = time.perf_counter()
        answer = planning.search(True)
        seconds, plan = time.perf_counter() - started, answer.plan
        followed, shape.stage = shape.plan, _Stage.SETTLED
        if followed is not None and (plan is None or plan.after.chosen > _BETTER * followed.after.chosen):
            return
        shape.take(answer, _Stage.SETTLED)
        if plan is not None and self._models[kind].plan.changes_nothing:
            self._models[kind] = _model(plan, shape.elements, seconds)


def _kind(signature: Signature) -> Signature:
    return (*(array[1:] for array in signature[:-1]), signature[-1])


def _model(plan: Plan, elements: int, seconds: float) -> _Model:
    nodes = sum(plan.key.operators.values())
    return _Model(plan, elements, seconds, min(seconds, _SECONDS + _SECONDS_A_NODE * nodes))


def _saved(plan: Plan) -> float:
    """The share of the planned bytes that a plan saves."""
    return 1 - plan.after.chosen / max(1, plan.before.planned)
