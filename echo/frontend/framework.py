"""MXNet as a framework of the planner: one symbol graph, bound with known shapes on one device."""

from __future__ import annotations

import contextlib
import copy
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ContextManager, Iterator, Mapping, Sequence

import mxnet as mx
from mxnet.ndarray.ndarray import _DTYPE_MX_TO_NP

from echo import native
from echo.errors import GraphError, LeftAloneError, UnsupportedError
from echo.estimators.cost_model import CostModel, MeasureFunction, estimate
from echo.estimators.cost_table import CostTable
from echo.estimators.storage_planner import Evaluator, make_planner
from echo.frontend.capture import LARGE, captured_graph, chunks_in, graph_in, mxnet_memory_plan
from echo.frontend.derived_graphs import apply_gradient_rules, as_cached
from echo.frontend.install import (
    check_version,
    device_blocker,
    extension_blocker,
    install_hook,
    onednn_activations,
    onednn_norms,
)
from echo.frontend.measure import TimerClient, race
from echo.frontend.measurement_process import measuring
from echo.frontend.mirror import MirrorEvaluator, forward_graph
from echo.frontend.mxnet_settings import (
    FUSION_VARIABLE,
    changed_variable,
    default_match_range,
    fuses,
    is_deterministic,
    match_range,
    pool,
    setting_of,
    workspace_slots,
)
from echo.frontend.plan_key import arrays, call_of, check_device, device_key, family, plan_key, static_bytes
from echo.frontend.symbols import (
    Binding,
    number_of,
    numbered_symbol,
    symbol_of,
    types_of,
    why_left_alone,
    with_attrs,
)
from echo.ir.graph import Entry, Graph, Setting
from echo.ir.op_spec import GradientRule
from echo.ir.training_graph import Runner, TrainingGraph
from echo.ir.training_node import TensorType

MIRROR_VARIABLE = "MXNET_BACKWARD_DO_MIRROR"
_FUSED = (f"this MXNet would fuse pointwise operators of planned graphs, too, and cannot be told not to: "
          f"{FUSION_VARIABLE}=0 lets echo plan")  # fmt: skip


class MxnetFramework:
    """Answers the planner's questions about one graph, as `echo.passes.request.Framework` says what each returns.

    It asks MXNet nothing twice about the graph, and remembers the chunks that MXNet planned for rewritten graphs.
    """

    def __init__(self, graph: Graph, binding: Binding, ctx: mx.Context, runner: Runner = Runner.EXECUTOR) -> None:
        check_version()
        check_device(ctx)
        self._forget()
        self.graph, self._binding, self._ctx, self._runner = graph, binding, ctx, runner
        self._original = graph
        self.device: str = "gpu" if ctx.device_type == "gpu" else "cpu"
        self.why_no_hook = install_hook()
        self.hook = not self.why_no_hook
        if self.hook and self.fuses and not native.keeps_unfused():
            raise UnsupportedError(_FUSED)
        self.device_key = device_key(ctx)
        self.match_range = default_match_range()
        self.static: Mapping[str, int] = static_bytes(binding)
        self.workspace_slots = workspace_slots(self.device, runner)
        self._pool = pool(self.device, runner)
        self.family = family(graph, binding, self.device, runner)
        self.key = plan_key(graph, binding, self.device, runner)

    def _forget(self) -> None:
        self._derived: list[MxnetFramework] = []
        self._symbol: mx.sym.Symbol | None = None
        self._names: Sequence[str] | None = None
        self._inferred: list[tuple[Graph, Mapping[str, TensorType], Mapping[Entry, TensorType] | None]] = []
        self._types: Mapping[Entry, TensorType] | None = None
        self._memory_plans: dict[int, tuple[int, tuple[bool, ...]]] = {}  # of the graph itself, by match range
        self._original_bytes: int | None = None
        self._training: TrainingGraph | None = None
        self._ahead: Future[TrainingGraph] | None = None
        self._with_gradient_rules: tuple[Mapping[int, GradientRule], TrainingGraph] | None = None
        self._costs: tuple[TrainingGraph, CostModel] | None = None
        self._chunks: list[tuple[Graph, tuple[int, ...]]] = []

    def fresh_copy(self) -> MxnetFramework:
        """A copy of this framework that remembers nothing, for callers that keep it."""
        framework = copy.copy(self)
        framework._forget()
        return framework

    def on(self, graph: Graph) -> MxnetFramework:
        if graph is self.graph:
            return self
        for framework in self._derived:
            if framework.graph == graph:
                return framework
        framework = self.fresh_copy()
        framework.graph = graph
        self._derived.append(framework)
        return framework

    @property
    def why_no_fusion(self) -> str:
        return self.why_no_hook or extension_blocker() or device_blocker(self._ctx)

    @property
    def adds(self) -> bool:
        """Whether gradients may be added to arrays of the user's; of a CachedOp that is not known."""
        return self._runner != Runner.EXECUTOR or "add" in self._binding.grad_req

    @property
    def setting(self) -> Setting:
        """The variables without gradients, and what MXNet's operators do here: patterns read it."""
        names = self.argument_names() if "null" in self._binding.grad_req else ()
        setting = setting_of(names, self._binding, self.device)
        normalizes = self.device == "cpu" and any(node.op == "BatchNorm" for node in self.graph.nodes)
        return replace(setting, onednn_norm=True) if normalizes and self.hook and onednn_norms() else setting

    def types(self) -> Mapping[Entry, TensorType]:
        if self._types is None:
            self._types = types_of(self.graph, self._binding, self._numbered)
        return self._types

    @property
    def _numbered(self) -> mx.sym.Symbol:
        """The graph as a symbol with numbers for names, which is made once, and which nothing may change."""
        if self._symbol is None:
            self._symbol = numbered_symbol(self.graph)
        return self._symbol

    def inferred(self, graph: Graph, variables: Mapping[str, TensorType]) -> Mapping[Entry, TensorType] | None:
        for known, types_of_variables, found in self._inferred:
            if types_of_variables == variables and known == graph:
                return found
        found = self._inferred_types(graph, variables)
        self._inferred.append((graph, variables, found))
        return found

    def _inferred_types(self, graph: Graph, variables: Mapping[str, TensorType]) -> Mapping[Entry, TensorType] | None:
        symbol = numbered_symbol(graph)
        types = [variables[graph.nodes[number_of(name)].name] for name in symbol.list_arguments()]  # in MXNet's order
        shapes = tuple(kind.shape for kind in types)
        binding = Binding(shapes, tuple(_DTYPE_MX_TO_NP[kind.flag] for kind in types), (), (), ("write",) * len(types))
        try:
            return types_of(graph, binding, symbol)
        except (UnsupportedError, mx.MXNetError):
            return None

    def argument_names(self) -> Sequence[str]:
        if self._names is None:
            names = [*self._numbered.list_arguments(), *self._numbered.list_auxiliary_states()]
            self._names = [self.graph.nodes[number_of(name)].name for name in names]
        return self._names

    def arrays(self) -> Iterator[tuple[str, str, int]]:
        """The arrays that the executor is given: name, kind and bytes."""
        names = self.argument_names()
        return ((names[place], kind, size) for place, kind, size in arrays(self._binding))

    def call(self) -> dict[str, Any]:
        """The bind of the user's symbol as a JSON value (`call_of`)."""
        return call_of(symbol_of(self._original).list_arguments(), self._binding, self._ctx)

    def mirrored(self) -> TrainingGraph:
        """The training graph of the user's symbol with MXNet's own recomputation, ``MXNET_BACKWARD_DO_MIRROR``."""
        with changed_variable(MIRROR_VARIABLE, "1"):
            return self.fresh_copy().differentiate()

    @contextlib.contextmanager
    def differentiating(self) -> Iterator[None]:
        if self._training is not None or len(self.graph.nodes) < LARGE or not self.hook:
            yield
            return
        self.argument_names()  # which makes the symbol that threads then share
        with ThreadPoolExecutor(1) as threads:
            self._ahead = threads.submit(self._differentiated)
            yield

    def differentiate(self) -> TrainingGraph:
        if self._training is None:
            self._training = self._differentiated() if self._ahead is None else self._ahead.result()
        return self._training

    def _differentiated(self) -> TrainingGraph:
        if not self.hook:
            return forward_graph(self.graph, self._binding, self._ctx)
        captured = self._captured(self.graph)
        training = self._as_run(graph_in(captured, self.graph), self.match_range)
        if self._runner == Runner.EXECUTOR:
            self._chunks.append((self.graph, chunks_in(captured)))
        is_other = self.graph is self._original and self.fuses
        return replace(training, planned_bytes=self.original_bytes()) if is_other else training

    def _captured(self, graph: Graph, stock: bool = False) -> Mapping[str, Any]:
        """Returns the training graph and memory plan that MXNet makes; MXNet's mirroring is off for a CachedOp."""
        is_cached = self._runner != Runner.EXECUTOR
        try:
            with changed_variable(MIRROR_VARIABLE, "0") if is_cached else contextlib.nullcontext():
                symbol = self._numbered if graph is self.graph else None
                return captured_graph(graph, self._binding, self._ctx, stock=stock, symbol=symbol)
        except mx.MXNetError as error:
            self.types()  # where the shape of a node is not known, this names it
            reason = why_left_alone(self._original, str(error))
            if reason:
                raise LeftAloneError(reason) from error
            raise

    @property
    def onednn(self) -> bool:
        """Whether gradients of activations are those of oneDNN, which is measured once."""
        return self.device == "cpu" and onednn_activations()

    @property
    def fuses(self) -> bool:
        """Whether MXNet fuses pointwise operators of the original graph; those that echo planned stay as they are."""
        return fuses(self._ctx)

    @property
    def repeats_bits(self) -> bool:
        """Whether a copy of a product or a convolution has its bits: on GPUs, if the algorithms are always the same."""
        return self.device == "cpu" or is_deterministic()

    @property
    def cudnn(self) -> bool:
        """Whether gradients of convolutions are cuDNN's, which none of them adds to an array."""
        return self.device == "gpu" and not self.adds

    def apply_gradient_rules(
        self, training: TrainingGraph, gradient_rules: Mapping[int, GradientRule]
    ) -> TrainingGraph:
        """The training graph whose gradients follow these rules.

        Where MXNet would then add up gradients in another way, it is ``training`` itself.
        """
        if self._with_gradient_rules is None or self._with_gradient_rules[0] != gradient_rules:
            self._with_gradient_rules = (dict(gradient_rules), apply_gradient_rules(training, gradient_rules))
        return self._with_gradient_rules[1]

    def _as_run(self, training: TrainingGraph, match_range_: int) -> TrainingGraph:
        return (
            training if self._runner == Runner.EXECUTOR else as_cached(training, self._runner, match_range_, self._pool)
        )

    def original_bytes(self) -> int:
        """The bytes that MXNet plans for the original graph as a program binds it without echo."""
        if not (self.fuses and self.hook):
            return self.mxnet_memory_plan(self._original, self.match_range)[0]
        if self._original_bytes is None:
            captured = self._captured(self._original, stock=True)
            is_cached = self._runner != Runner.EXECUTOR
            self._original_bytes = (
                self._as_run(graph_in(captured, self._original), self.match_range).planned_bytes
                if is_cached else int(captured["touched_bytes"])
            )  # fmt: skip
        return self._original_bytes

    def mxnet_memory_plan(self, graph: Graph, match_range_: int) -> tuple[int, tuple[bool, ...]]:
        """MXNet's own memory plan of a rewritten graph: bytes (MB without the hook), accumulations.

        A CachedOp is planned when it runs: its graph is MXNet's own, its planner is replayed.
        """
        if graph.nodes != self.graph.nodes:
            return self._ask_mxnet(graph, match_range_)
        if match_range_ not in self._memory_plans:
            self._memory_plans[match_range_] = self._said_already(match_range_) or self._ask_mxnet(graph, match_range_)
        return self._memory_plans[match_range_]

    def _said_already(self, match_range_: int) -> tuple[int, tuple[bool, ...]] | None:
        """The answer about the graph itself, where its training graph has it: that saves a bind."""
        if self._training is None or match_range_ != self.match_range or self.fuses or not self.hook:
            return None
        return self._training.planned_bytes, self._training.accumulations

    def _ask_mxnet(self, graph: Graph, match_range_: int) -> tuple[int, tuple[bool, ...]]:
        try:
            return self._planned(graph, match_range_)
        except mx.MXNetError as error:
            raise GraphError(f"MXNet, with the hook, does not bind it: {str(error).splitlines()[0]}") from error

    def _planned(self, graph: Graph, match_range_: int) -> tuple[int, tuple[bool, ...]]:
        if self._runner != Runner.EXECUTOR:
            captured = self._captured(graph)
            training = self._as_run(graph_in(captured, graph), match_range_)
            return training.planned_bytes, training.accumulations
        with contextlib.nullcontext() if self.hook else match_range(match_range_):
            symbol = with_attrs(self._numbered, self.graph, graph)
            symbol = symbol_of(graph) if symbol is None else symbol
            answer = mxnet_memory_plan(symbol, self._binding, self._ctx, self.hook)
        if answer.chunks is not None:
            self._chunks.append((graph, answer.chunks))
        return answer.bytes, answer.accumulations

    def chunks(self, graph: Graph) -> tuple[int, ...] | None:
        """Bytes of each chunk that MXNet plans for the original graph or a rewritten one, None if it was not asked."""
        return next((chunks for planned, chunks in self._chunks if planned == graph), None)

    def evaluator(self, training: TrainingGraph, seconds: Sequence[float]) -> tuple[Evaluator, int]:
        """MXNet's planner, replayed; without the hook MXNet's planner itself."""
        if self.hook:
            return make_planner(training, seconds)
        evaluator = MirrorEvaluator(self.graph, self._binding, self._ctx, training, seconds)
        return evaluator, evaluator.effort

    def measuring(self) -> ContextManager[None]:
        """Has one process make all measurements while this is open (`echo.frontend.measurement_process`)."""
        return measuring()

    def cost_table(self) -> CostTable:
        return CostTable(self.device_key)

    def costs(self, training: TrainingGraph, time_limit: float, clock_limit: float) -> CostModel:
        """Seconds of every node, measured once: all plans that are compared have the same."""
        if self._costs is None or self._costs[0] is not training:
            table, measure = self.cost_table(), self.measure_function()
            costs = estimate(training, table, measure, time_limit, self.onednn, clock_limit)
            self._costs = training, costs
        return self._costs[1]

    def measure_function(self) -> MeasureFunction:
        """The function that measures the seconds of a node of a training graph on this device."""
        return TimerClient(self._ctx)

    def race(
        self, graphs: Mapping[str, Graph], types: Mapping[str, TensorType], limit: float
    ) -> Mapping[str, float] | None:
        return race(graphs, types, self._ctx, limit)
