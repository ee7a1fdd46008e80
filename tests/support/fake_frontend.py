"""A framework that answers the planner's questions with values given in advance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Mapping, Sequence

from echo.estimators.storage_planner import Evaluator, StoragePlanner
from echo.ir.graph import Graph
from echo.ir.training_graph import Runner, TrainingGraph
from echo.plans.key import PlanKey

PLAN_KEY = PlanKey("graph", {}, (), "cpu", Runner.EXECUTOR, {})


@dataclass
class FakeFramework:
    """Answers the planner's questions with values given in advance."""

    training: TrainingGraph
    planned: Callable[[Graph, int], int] = lambda graph, match_range: 0
    device: str = "cpu"
    hook: bool = True
    onednn: bool = True
    cudnn: bool = False
    repeats_bits: bool = True
    fuses: bool = False
    match_range: int = 16
    static: Mapping[str, int] = field(default_factory=dict)
    key: PlanKey = PLAN_KEY
    workspace_slots: int = 1
    family: str = "family"
    evaluations: int = 1000

    def argument_names(self) -> Sequence[str]:
        return ()

    def differentiate(self) -> TrainingGraph:
        return self.training

    def original_bytes(self) -> int:
        return self.planned(Graph((), (), (), ()), self.match_range)

    def mxnet_memory_plan(self, graph: Graph, match_range: int) -> tuple[int, tuple[bool, ...]]:
        return self.planned(graph, match_range), self.training.accumulations

    def evaluator(self, training: TrainingGraph, seconds: Sequence[float]) -> tuple[Evaluator, int]:
        return StoragePlanner(training, seconds), self.evaluations * len(training.nodes)
