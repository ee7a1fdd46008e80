"""Gluon: the CachedOp after a hybridized block, planned when it is first called for training.

A block creates its CachedOp as ``mxnet.ndarray.CachedOp(symbol, flags)`` and never looks inside. `PlannedCachedOp`
stands in for it: it starts with MXNet's own, plans at the first recorded call for the shapes at hand, and goes on with
a CachedOp of the rewritten symbol. The block's own graph stays the user's, and with it ``export``.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping, Sequence, Tuple

import mxnet as mx
from mxnet import autograd
from mxnet.symbol import Symbol

from echo import native
from echo.errors import GraphError
from echo.frontend import mxnet_settings
from echo.frontend.capture import bind_without_memory
from echo.frontend.install import install_hook
from echo.frontend.symbols import Binding, graph_of, sparse_gradients, symbol_of, without_marks
from echo.ir.graph import Graph
from echo.ir.op_spec import is_true
from echo.ir.training_graph import Runner
from echo.planning.reuse import PlannedGraph
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.runtime.backward_checks import attach_record, quiet_backward, record_mode
from echo.runtime.bind_plan import PLANNER, find_plan, follow_plan
from echo.runtime.error_policy import ErrorPolicy, first_bindable
from echo.runtime.executor import WithoutClones
from echo.runtime.peak_prediction import PEAK_PREDICTION
from echo.runtime.shape_plans import ORIGINAL, Answer, CachedOpGraph, ShapePlans, Signature, chosen
from echo.system.process import return_large_blocks
from echo.system.threads import Lock, own_binds
from echo.verify.verifier import Case, Findings, matches_original

logger = logging.getLogger("echo")
_MOST_OPS = 8  # CachedOps of one block
Ran = Tuple[Any, CachedOpGraph]  # outputs, and the choice that ran


# MXNet's own CachedOp, and one that leaves pointwise operators as they are on GPUs.

StockCachedOp = mx.nd.CachedOp  # before anybody puts another in its place


def _unfused(kind: Any) -> Any:
    """A class of CachedOps of planned graphs: MXNet decides in a call, the first on a device, whether to fuse."""

    class UnfusedCachedOp(kind):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """As ``CachedOp.__call__``."""
            with native.unfused():
                return super().__call__(*args, **kwargs)

    return UnfusedCachedOp


# Only CUDA builds of MXNet fuse. Another copy of echo may have put a function instead of the class: this copy then
# refuses to plan.
_IS_NEEDED = isinstance(StockCachedOp, type) and mx.runtime.Features().is_enabled("CUDA")
UnfusedCachedOp = _unfused(StockCachedOp) if _IS_NEEDED else StockCachedOp


class PlannedCachedOp:
    """A CachedOp that plans itself; its callers see no difference. ``plans`` has the plan of each signature so far.

    The plan of the first signature serves further ones too (`echo.runtime.shape_plans`). A signature is shapes, types
    and storage types of the data inputs, and the device of the first. ``on_error`` decides what the user gets if a
    signature cannot be planned. With ``details`` plans say where the memory is.
    """

    def __init__(
        self, symbol: Symbol, flags: Sequence[tuple[str, Any]], on_error: ErrorPolicy, details: bool = True
    ) -> None:
        self.details = details
        self._on_error = on_error
        self._shapes = ShapePlans(lambda: PLANNER.spare_time)
        symbol, self._graph = without_marks(symbol, graph_of(symbol), cached=True)
        self._symbol, self._flags = symbol, flags
        self._current = StockCachedOp(symbol, flags)
        self._choice = ORIGINAL
        self._ops = {ORIGINAL.key: self._current}
        settings = dict(flags)
        texts = {name: str(value) for name, value in flags}
        self._static, shaped = (is_true(texts, name) for name in ("static_alloc", "static_shape"))
        self._runner = Runner.of_flags(self._static, shaped)
        self._data = tuple(settings.get("data_indices", ()))
        self._monitor: tuple[Any, bool] | None = None
        self._lock = Lock()
        self._warm: set[int] = set()  # the handles of CachedOps that have run
        self._options: Options | None = None  # of the last choice
        self._ran: set[Signature] = set()
        self._verified: set[Signature] = set()
        self._untouched = _why_untouched(self._graph, self._static, int(settings.get("inline_limit", 2)))

    @property
    def plans(self) -> dict[Signature, Plan]:
        """The plan of each signature that has one."""
        return self._shapes.plans

    @property
    def handle(self) -> Any:
        """The handle of the CachedOp that the next call runs."""
        return self._current.handle

    @property
    def is_np_sym(self) -> bool:
        """As ``CachedOp.is_np_sym``."""
        return bool(self._current.is_np_sym)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As ``CachedOp.__call__``."""
        if self._untouched:
            return self._current(*args, **kwargs)
        if not autograd.is_recording():
            return self._infer(args, kwargs)
        with self._lock.held():
            signature = self._signature(args)
            ran = self._on_error(lambda options: self._choose(signature, args, options),
                                 lambda: self._run_stock(signature, args, kwargs))  # fmt: skip
            current, choice = self._current, self._choice
        outputs, choice = ran or self._run(current, choice, signature, args, kwargs)
        first = outputs[0] if isinstance(outputs, list) else outputs
        if choice.mode_dependent:
            record_mode(first, choice.mode_dependent)
        if choice.watch is not None:
            attach_record(choice.watch.record(args), first)
        return outputs

    def _run(self, current: Any, choice: CachedOpGraph, signature: Signature, args: Any, kwargs: Any) -> Ran:
        """Runs one call, with `first_bindable` where MXNet refuses a planned graph at its first call.

        Gives the outputs, and the choice that ran.
        """
        if choice is ORIGINAL or signature in self._ran:
            self._warm.add(current.handle.value)
            return current(*args, **kwargs), choice

        def run(choice: CachedOpGraph) -> Any:
            with self._lock.held():
                self._switch(choice)
                current = self._current
                self._warm.add(current.handle.value)
            with mxnet_settings.of_user(lambda: self._write_own_lines(args)) if choice.graph else nullcontext():
                return current(*args, **kwargs)

        outputs, ran = self._next_best(choice, run, signature, args)
        self._ran.add(signature)
        PEAK_PREDICTION.returned(self.plans.get(signature), outputs)
        return outputs, ran

    def _write_own_lines(self, args: Sequence[Any]) -> None:
        """Has MXNet write the lines on storage types of the original graph, and none in backward passes."""
        binding = binding_of_call(self._symbol, args)
        bind_without_memory(self._symbol, binding, args[0].context, quiet=False)
        quiet_backward()

    def _next_best(
        self, choice: CachedOpGraph, run: Callable[[CachedOpGraph], Any], signature: Signature, args: Sequence[Any]
    ) -> Ran:
        """As `first_bindable`; the choice that comes to run is that of the signature from now on.

        Where that one cannot run in the mode of this call, the original graph runs, and the choice waits.
        """
        second = ORIGINAL

        def unfused() -> CachedOpGraph:
            nonlocal second
            with self._lock.held():
                second = self._unfused(choice, signature, args)
                return self._now(second)

        result, ran = first_bindable(choice, run, unfused, ORIGINAL, self._on_error, "runs")
        if ran is not choice:
            waits = ran is ORIGINAL and self._now(second) is not second
            self._shapes.settle(signature, second if waits else ran)
            self._verified.discard(signature)
        return result, ran

    def _unfused(self, choice: CachedOpGraph, signature: Signature, args: Sequence[Any]) -> CachedOpGraph:
        """The plan without fused operators; the original graph where it had none, or where the user gave the plan."""
        if not choice.fuses or self._options is None or self._options.plans:
            return ORIGINAL
        with own_binds():
            return _Planning(self, args, replace(self._options, fuse=False)).search().choice

    def _now(self, choice: CachedOpGraph) -> CachedOpGraph:
        """The choice, if it computes in the mode of this call what the user asks for; else the original graph."""
        shows_all = self._monitor is not None and (choice.fuses or (self._monitor[1] and choice.has_gradient_rules))
        at_odds = choice.in_training and not autograd.is_training()
        return ORIGINAL if shows_all or at_odds else choice

    def _run_stock(self, signature: Signature, args: Any, kwargs: Any) -> Ran:
        """Runs a call that cannot be planned; where the call is wrong, MXNet says so, and the signature stays open."""
        self._switch(ORIGINAL)
        outputs = self._current(*args, **kwargs)
        self._shapes.settle(signature, ORIGINAL)
        return outputs, ORIGINAL

    def _infer(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs a call for inference. What MXNet does at the first call of a CachedOp is not for two threads at once.

        In stock MXNet, the one CachedOp that there is has run in training before.
        """
        current = self._for_inference(args)
        if current.handle.value not in self._warm:
            with self._lock.held():
                outputs = current(*args, **kwargs)
                self._warm.add(current.handle.value)
                return outputs
        return current(*args, **kwargs)

    def _for_inference(self, args: Sequence[Any]) -> Any:
        """The CachedOp for inference: the user's own for shapes that the fused operators were not planned for.

        On CPUs a plan without fused operators is of no use there, and its marks keep in training what works in place in
        inference apart, which changes oneDNN's layouts. Under ``static_alloc`` two CachedOps would hold memory.
        """
        plain = not self._choice.fuses and not self._static and self._monitor is None
        if plain and args[0].context.device_type != "gpu":
            return self._ops[ORIGINAL.key]
        if self._choice.fuses:
            with self._lock.held():
                choice = self._shapes.get(self._signature(args))
                if choice is None or choice.key != self._choice.key:
                    self._switch(ORIGINAL)
        return self._current

    def _register_op_hook(self, callback: Callable[..., None], monitor_all: bool = False) -> None:
        """As ``CachedOp._register_op_hook``; the user sees no clone."""
        self._monitor = (callback, monitor_all)
        self._current._register_op_hook(self._hidden(callback), monitor_all)

    def _hidden(self, callback: Callable[..., None] | None) -> Callable[..., None] | None:
        graph = self._choice.graph
        return callback if callback is None or graph is None else WithoutClones(self._graph, graph, callback)

    def _signature(self, args: Sequence[Any]) -> Signature:
        data = [args[index] for index in self._data or range(len(args))]
        return (*((array.shape, array.dtype, array.stype) for array in data), args[0].context.device_type)

    def _choose(self, signature: Signature, args: Sequence[Any], options: Options) -> None:
        self._options = options
        with own_binds():
            choice = self._shapes.choose(signature, _Planning(self, args, options))
        self._next_best(self._now(choice), self._switch, signature, args)
        if options.verify and self._choice.graph is not None and signature not in self._verified:
            self._verified.add(signature)
            if not self._is_right(signature, args, options):
                self._give_up(signature)

    def _is_right(self, signature: Signature, args: Sequence[Any], options: Options) -> bool:
        choice = self._choice
        assert choice.graph is not None
        case = Case.of_call(
            dict(zip(self._symbol.list_inputs(), args)), args[0].context, runner=self._runner, original=self._graph,
            bound=choice.graph, fuses=choice.fuses, plan=self.plans[signature], flags=self._flags, options=options,
        )  # fmt: skip

        def find() -> Findings:
            return case.find(lambda of_plan: self._new_op(choice if of_plan else ORIGINAL), self._current)

        return matches_original(case, find, options.strict)

    def _new_op(self, choice: CachedOpGraph) -> Any:
        if choice.graph is None:
            op = StockCachedOp(self._symbol, self._flags)
        else:
            bulks = {name: choice.bulk for name in ("forward_bulk_size", "backward_bulk_size") if choice.bulk}
            op = UnfusedCachedOp(symbol_of(choice.graph), list({**bulks, **dict(self._flags)}.items()))
        op.is_np_sym = self.is_np_sym
        return op

    def _give_up(self, signature: Signature) -> None:
        self._shapes.settle(signature, ORIGINAL)
        self._switch(ORIGINAL)

    def _switch(self, choice: CachedOpGraph) -> None:
        if choice.key == self._choice.key:
            return
        if choice.key not in self._ops:
            op = self._new_op(choice)
            if self._static:
                self._warm.clear()
                self._ops.clear()  # a CachedOp keeps its memory for as long as it lives
            elif len(self._ops) >= _MOST_OPS:
                del self._ops[next(key for key in self._ops if key not in (ORIGINAL.key, self._choice.key))]
            self._ops[choice.key] = op
        self._choice, self._current = choice, self._ops[choice.key]
        if self._monitor is not None:
            self._current._register_op_hook(self._hidden(self._monitor[0]), self._monitor[1])


@dataclass(frozen=True)
class _Planning:
    """Plans one call of a `PlannedCachedOp` (`echo.runtime.shape_plans.Planning`)."""

    op: PlannedCachedOp
    args: Sequence[Any]
    options: Options

    @property
    def may_follow(self) -> bool:
        return PLANNER.may_follow(self.options) and not self._is_sparse

    @property
    def _is_sparse(self) -> bool:
        return any(array.stype != "default" for array in self.args)

    def search(self, further: bool = False) -> Answer:
        if self._is_sparse:
            logger.info("echo: a hybridized block runs as it is: sparse arguments")
            return Answer(None, ORIGINAL)
        op = self.op
        planned = find_plan(
            op._graph, self._binding, self.args[0].context, self.options, op._runner, op.details, further
        )  # fmt: skip
        return Answer(None, ORIGINAL) if planned is None else self._answer(planned)

    def follow(self) -> Answer | None:
        op = self.op
        planned = follow_plan(
            op._graph, self._binding, self.args[0].context, self.options, op._runner
        )  # fmt: skip
        return None if planned is None else self._answer(planned)

    def _binding(self) -> Binding:
        return binding_of_call(self.op._symbol, self.args)

    def _answer(self, planned: PlannedGraph) -> Answer:
        if planned.plan.changes_nothing:
            return Answer(planned.plan, ORIGINAL)
        if self.op._runner == Runner.DYNAMIC:
            return_large_blocks()
        inputs = self.op._symbol.list_inputs()
        return Answer(planned.plan, chosen(planned.plan, planned.graph, self.op._graph, inputs))


def _why_untouched(graph: Graph, static: bool, inline_limit: int) -> str:
    with own_binds():
        why_no_hook = install_hook()
    if why_no_hook:
        logger.warning("echo: a hybridized block runs as it is, only the native hook can plan it: %s", why_no_hook)
        return why_no_hook
    operators = sum(not node.is_variable for node in graph.nodes)
    if not static and operators <= inline_limit:
        return "MXNet runs so small a graph operator by operator"
    return ""


def binding_of_call(symbol: mx.sym.Symbol, args: Sequence[Any]) -> Binding:
    """The binding that MXNet assumes of a CachedOp: a gradient of every input that is no auxiliary state."""
    names = symbol.list_inputs()
    if len(set(names)) < len(names):
        raise GraphError(f"several inputs of the block have the name {Counter(names).most_common(1)[0][0]!r}")
    arrays = dict(zip(names, args))
    arguments = [arrays[name] for name in symbol.list_arguments()]
    states = [arrays[name] for name in symbol.list_auxiliary_states()]
    return Binding.of_arrays(arguments, states, ["write"] * len(arguments), sparse_gradients(symbol))
