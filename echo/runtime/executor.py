"""The executor of a symbol that was bound with a plan: in every respect as MXNet's own.

Monitors see no clones. ``reshape`` plans again for shapes that outgrow those of the plan. And where backward runs in
another mode than forward did, as after an inference forward pass, the original graph takes the backward pass.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Mapping

import mxnet as mx
from mxnet import autograd
from mxnet.base import NDArrayHandle
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol

from echo.errors import EchoError, UnsupportedError, one_line, reraise_interruption
from echo.frontend.symbols import Binding, graph_of, symbol_of
from echo.ir.graph import Graph, Node
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, MIRROR_ATTRIBUTE, PLAN_ATTRIBUTE, GradientRule
from echo.ir.ops import may_draw, spec
from echo.ir.schedule import CLONE_SUFFIX
from echo.ir.training_node import TrainingNode
from echo.plans.decisions import marked, unmarked
from echo.runtime.applied import AppliedPlan, BoundLeader, Pool
from echo.runtime.backward_checks import refuse_changed
from echo.runtime.bind_request import binding_of, fitted, inferred_shapes, outgrow, requests_of, size_of
from echo.runtime.error_policy import first_bindable
from echo.runtime.peak_prediction import PEAK_PREDICTION

if TYPE_CHECKING:
    from echo.native.watch import Record

logger = logging.getLogger("echo")


class PlannedExecutor(mx.executor.Executor):  # type: ignore[misc]
    """An executor with a plan. It is made of a bound one, by `planned_executor`."""

    _applied: AppliedPlan
    _pool: Pool | None = None  # once another executor shares it
    _leader: BoundLeader | None = None  # once another bind follows it
    _forward_mode: bool | None = None  # of the last forward pass
    _monitor: tuple[Callable[..., None], bool] | None = None
    _original: mx.executor.Executor | None = None  # the original graph on the same arrays, made when it is first needed
    _original_monitor: WithoutClones | None = None
    _runs_stock = False
    _random: list[TrainingNode] | None = None
    _is_verified = False  # set at the first training step, where ``verify`` compares it with the original graph
    _is_wrong = False  # the first step differed from the original graph, which runs from then on
    _shown: WithoutClones | None = None
    _records: tuple[Record | None, Record | None] = (None, None)  # by forward: of the arrays read again, and of all

    def set_monitor_callback(self, callback: Callable[..., None], monitor_all: bool = False) -> None:
        """As ``Executor.set_monitor_callback``; the callback sees no clone."""
        self._monitor = (callback, monitor_all)
        self._shown = WithoutClones(self._applied.base, self._applied.graph, callback)
        super().set_monitor_callback(self._shown, monitor_all)
        if self._original is not None:
            self._watch(self._original)

    def get_optimized_symbol(self) -> Symbol:
        """As ``Executor.get_optimized_symbol``, without the marks of the plan."""
        applied = self._applied
        if applied.fuses:
            return self._original_executor().get_optimized_symbol()
        symbol = super().get_optimized_symbol()
        return symbol if applied.is_unchanged else symbol_of(unmarked(applied.original, graph_of(symbol)))

    # Modes --------------------------------------------------------------------------------------------------------

    def forward(self, is_train: bool = False, **kwargs: Any) -> Any:
        """As ``Executor.forward``."""
        mode = bool(is_train)
        if mode and not self._is_verified:
            self._verify(kwargs)
        if self._applied.is_unchanged:  # short steps would be a twentieth longer with what follows
            self._forward_mode = mode
            return super().forward(is_train, **kwargs)
        # backward would have to repeat this pass, which it cannot with other random numbers: so it runs there at once
        self._runs_stock = (not mode and self._is_at_odds(mode, not mode) and self._draws(mode)) or self._shows_all()
        self._runs_stock |= self._is_wrong
        if self._runs_stock:
            original = self._original_executor()
            self._muted(False)
            self.outputs, self._output_dict = original.forward(is_train, **kwargs), None
        else:
            if self._forward_mode is not None and self._original is not None:
                self._output_dict = None
            super().forward(is_train, **kwargs)
        self._forward_mode = mode
        self._records = (None, None) if self._runs_stock else self._record(mode)
        return self.outputs

    def _verify(self, inputs: Mapping[str, Any]) -> None:
        self._is_verified = True
        PEAK_PREDICTION.begins()
        verifier = self._applied.verifier
        if verifier is not None and not self._applied.is_unchanged:
            if self._shown is not None:
                self._shown.muted = True
            self._is_wrong = not verifier.matches_original(self, inputs)
            if self._shown is not None:
                self._shown.muted = False

    @property
    def requests(self) -> dict[str, str]:
        """The request for the gradient of each argument, by its name: write, add or null."""
        return dict(zip(self._symbol.list_arguments(), requests_of(self)))

    def _record(self, mode: bool) -> tuple[Record | None, Record | None]:
        reread, all_arguments = (
            None if watch is None else watch.record(self.arg_arrays)
            for watch in (self._applied.watch, self._applied.watches_of_all[mode])
        )
        return reread, all_arguments

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """As ``Executor.backward``.

        Raises:
            ChangedInputError: an argument that is read again was written since the forward pass.
            UnsupportedError: an inference backward pass after a training forward pass with random numbers.
        """
        if self._applied.is_unchanged:
            super().backward(out_grads, is_train)
        elif self._runs_stock:
            self._original_executor().backward(out_grads, is_train)
        elif self._forward_mode is not None and self._is_at_odds(self._forward_mode, bool(is_train)):
            refuse_changed(self._records[1])
            self._repeat_forward(self._forward_mode)
            self._original_executor().backward(out_grads, is_train)
        else:
            refuse_changed(self._records[0])
            super().backward(out_grads, is_train)

    def _repeat_forward(self, mode: bool) -> None:
        if self._draws(mode):
            ops = tuple(sorted(self._applied.mode_dependent))
            raise UnsupportedError(
                f"backward(is_train={not mode}) after forward(is_train={mode}) in a graph with random numbers, "
                f"on a plan that recomputes {', '.join(ops)}: optimize with keep={ops} to have both"
            )
        original = self._original_executor()
        self._muted(True)
        original.forward(mode)
        self._muted(False)

    def _shows_all(self) -> bool:
        """Whether a monitor asks for values that a plan lacks: of fused nodes, or inputs that gradients do not read."""
        applied = self._applied
        return self._monitor is not None and (applied.fuses or (self._monitor[1] and applied.has_gradient_rules))

    def _is_at_odds(self, forward: bool, backward: bool) -> bool:
        """Whether clones, which run in the mode of backward, compute something else than forward did in its mode."""
        unwritten = not forward and self._applied.needs_training
        return unwritten or (forward != backward and bool(self._applied.mode_dependent))

    def _draws(self, mode: bool) -> bool:
        """Whether a forward pass in this mode draws random numbers; MXNet is asked where names leave it open."""
        named = (node for node in self._applied.original.nodes if not node.is_variable)
        if not any(may_draw(node.op, node.attrs) and _draws_in(mode, node) for node in named):
            return False
        if self._random is None:
            try:
                training = self._applied.rebinder.differentiate(self._applied.original, binding_of(self))
            except EchoError:  # only the native hook knows
                return True
            self._random = [node for _, node in training.operators() if node.random and node.forward]
        return any(_draws_in(mode, node) for node in self._random)

    def _original_executor(self) -> mx.executor.Executor:
        if self._original is None:
            logger.info("echo: a monitor, or backward in another mode: bound without a plan, too")
            self._original = self._bound(self._symbol, self.arg_arrays, self.grad_arrays, self.aux_arrays)
            self._watch(self._original)
        return self._original

    def _watch(self, original: mx.executor.Executor) -> None:
        if self._monitor is not None:
            self._original_monitor = WithoutClones(self._applied.original, self._applied.original, self._monitor[0])
            original.set_monitor_callback(self._original_monitor, self._monitor[1])

    def _muted(self, muted: bool) -> None:
        if self._original_monitor is not None:
            self._original_monitor.muted = muted

    # Reshape ------------------------------------------------------------------------------------------------------

    def reshape(
        self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Any
    ) -> mx.executor.Executor:
        """As ``Executor.reshape``.

        The plan is kept while no argument is longer, in any dimension, than in the shapes of the plan, since all then
        fits into the present memory, and MXNet confirms it. Otherwise the new shapes get a plan of their own.

        Raises:
            EchoError: the new shapes cannot be planned, under ``strict``; otherwise they go without a plan.
        """
        applied = self._for_shapes(kwargs)
        original = applied if applied.is_unchanged else _without_plan(applied)

        def reshaped(applied: AppliedPlan) -> mx.executor.Executor:
            return self._reshaped(applied, partial_shaping, allow_up_sizing, kwargs)

        executor, applied = first_bindable(
            applied, reshaped, lambda: original, original, applied.rebinder.on_error, "reshaped"
        )
        executor = planned_executor(executor, applied)
        if self._monitor is not None:
            executor.set_monitor_callback(*self._monitor)
        return executor

    def _reshaped(
        self, applied: AppliedPlan, partial: bool, up_sizing: bool, new_shapes: Mapping[str, Any]
    ) -> mx.executor.Executor:
        if applied.graph == self._applied.graph and not applied.fuses:
            with applied.rebinder.pointwise(applied.graph):
                return super().reshape(partial, up_sizing, **new_shapes)
        return self._rebound(applied, partial, up_sizing, new_shapes)

    def _for_shapes(self, new_shapes: Mapping[str, Any]) -> AppliedPlan:
        applied = self._applied
        try:
            shapes, aux_shapes = inferred_shapes(self._symbol, new_shapes)
        except (mx.MXNetError, EchoError):
            return applied  # MXNet's own reshape says what is wrong
        binding = replace(binding_of(self), arg_shapes=tuple(shapes.values()), aux_shapes=aux_shapes)
        verifier = applied.verifier and applied.verifier.for_rebound()
        unplanned = replace(_without_plan(applied), shapes=shapes, verifier=verifier)
        on_error = applied.rebinder.on_error
        try:
            if not outgrow(shapes, applied.shapes) and self._holds(binding):
                return replace(applied, verifier=verifier)
            replanned = applied.rebinder.replan(binding)
        except Exception as error:
            reraise_interruption(error)
            if on_error.strict and isinstance(error, EchoError):
                raise
            on_error.warn(f"echo: reshaped without a plan: {one_line(error)}")
            return unplanned
        return unplanned if replanned is None else replace(unplanned, base=replanned[0], graph=replanned[1])

    def _holds(self, binding: Binding) -> bool:
        applied = self._applied
        if applied.is_unchanged:
            return True
        if binding.key not in applied.held:
            applied.held[binding.key] = applied.rebinder.confirms(applied.base, applied.graph, binding)
        return applied.held[binding.key]

    def _rebound(
        self, applied: AppliedPlan, partial: bool, up_sizing: bool, new_shapes: Mapping[str, Any]
    ) -> mx.executor.Executor:
        """Reshapes to another graph, as ``reshape`` does: shares the pool, and arrays where they are long enough."""
        try:
            shapes, aux_shapes = inferred_shapes(self._symbol, new_shapes)
        except (mx.MXNetError, EchoError):
            return super().reshape(partial, up_sizing, **new_shapes)  # which fails, and says why
        all_shapes = [*shapes.values(), *aux_shapes]
        named = [name in new_shapes for name in shapes] + [False] * len(aux_shapes)
        for shape, is_given, array in zip(all_shapes, named, [*self.arg_arrays, *self.aux_arrays]):
            changes, grows = array.shape != shape, size_of(shape) > array.size
            if (changes and not partial and not is_given) or (grows and not up_sizing):
                return super().reshape(partial, up_sizing, **new_shapes)  # which fails, and says why
        with autograd.pause():
            args = [fitted(array, shape) for array, shape in zip(self.arg_arrays, shapes.values())]
            gradients = [fitted(array, shape) for array, shape in zip(self.grad_arrays, shapes.values())]
            aux = [fitted(array, shape) for array, shape in zip(self.aux_arrays, aux_shapes)]
        executor = self._bound(applied.graph, args, gradients, aux, shared_exec=self)
        executor._symbol = self._symbol
        return executor

    def _bound(
        self, bound: Graph | Symbol, args: list[Any], gradients: list[Any], aux: list[Any], **more: Any
    ) -> mx.executor.Executor:
        names, requests = self._symbol.list_arguments(), self.requests
        args_grad = {name: array for name, array in zip(names, gradients) if array is not None}
        executor = self._applied.rebinder.bind(bound, self._ctx, args, args_grad, requests, aux, **more)
        executor._grad_req = self._grad_req
        return executor


def _without_plan(applied: AppliedPlan) -> AppliedPlan:
    return replace(applied, base=applied.original, graph=applied.original, held={})


def _draws_in(mode: bool, node: Node | TrainingNode) -> bool:
    """Whether a node that draws random numbers draws them in this mode, training or not."""
    return mode or not spec(node.op).random.draws_in_training(node.attrs)


def planned_executor(executor: mx.executor.Executor, applied: AppliedPlan) -> mx.executor.Executor:
    """Turns a bound executor into a `PlannedExecutor`, unless it is of another class than MXNet's own."""
    if type(executor) is not mx.executor.Executor:
        return executor
    executor.__class__ = PlannedExecutor
    planned: PlannedExecutor = executor
    planned._applied = applied
    return planned


# Monitors show the user's own nodes: values of clones do not reach the callback.

_CLONE_SUFFIX = {PLAN_ATTRIBUTE: CLONE_SUFFIX, MIRROR_ATTRIBUTE: "_mirror"}


class WithoutClones:
    """A monitor callback that drops the values of clones. Its first argument is a name, its last one an array.

    MXNet names a value ``NODE_OUTPUT`` or ``NODE_INPUT``. Before an input that is a variable it shows the variable
    itself, under its own name: that one waits here for the node. ``muted`` drops everything.
    """

    def __init__(self, original: Graph, bound: Graph, callback: Callable[..., None]) -> None:
        self.muted = False
        self._callback = callback
        self._names = {node.name for node in original.nodes}
        self._variables = {node.name for node in original.nodes if node.is_variable}
        clones = {bound.nodes[number].name + _CLONE_SUFFIX[mark] for number, mark in marked(original, bound).items()}
        self._clones = clones - self._names
        texts = {node.name: node.attrs.get(GRADIENT_ATTRIBUTE) for node in bound.nodes}
        self._rules = {name: GradientRule.parse(text) for name, text in texts.items() if text}
        self._waiting: tuple[Any, ...] | None = None

    def __call__(self, *args: Any) -> None:
        """MXNet calls this with each value that a node reads or writes."""
        name = _text(args[0])
        node = self._node_of(name)
        hidden = self.muted or node in self._clones
        if node in self._rules and len(args) == 3:
            rule, op = self._rules[node], _text(args[1])
            args = (args[0], (rule.before if op == rule.after else op).encode(), args[2])
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._pass_on(waiting, hidden)
        if name in self._variables and not hidden:
            self._waiting = args
        else:
            self._pass_on(args, hidden)

    def _node_of(self, name: str) -> str:
        """Returns the name of the node that a value belongs to: the longest prefix of its name that is a node's."""
        end = name.rfind("_")
        while end > 0:
            if name[:end] in self._names or name[:end] in self._clones:
                return name[:end]
            end = name.rfind("_", 0, end)
        return ""

    def _pass_on(self, args: tuple[Any, ...], hidden: bool) -> None:
        if hidden:
            NDArray(ctypes.cast(args[-1], NDArrayHandle), writable=False)  # the callback owns the array: this frees it
        else:
            self._callback(*args)


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
