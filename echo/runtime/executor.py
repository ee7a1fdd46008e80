"""The executor of a symbol that was bound with a plan: in every respect as MXNet's own.

Monitors see no clones. ``reshape`` plans again for shapes that outgrow those of the plan. And where backward runs in
another mode than forward did, as after an inference forward pass, the user's own graph takes the backward pass.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Callable, Mapping, Protocol, Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.symbol import Symbol

from echo.errors import EchoError, UnsupportedError, one_line
from echo.frontend.symbols import Binding, grad_reqs, graph_of, symbol_of
from echo.ir.graph import Graph
from echo.ir.ops import depends_on_mode, draws_in_training_alone
from echo.ir.training_graph import TrainingGraph, TrainingNode
from echo.plans.marks import implements, marked, unmarked
from echo.runtime.monitor import WithoutClones
from echo.runtime.watch import InputWatch, refuse_changed, watch_of, watch_of_all

if TYPE_CHECKING:
    from echo.native.watch import Record
    from echo.runtime.pool import Example, Pool
    from echo.runtime.rehearsal import Verifier

logger = logging.getLogger("echo")
Shapes = Mapping[str, Sequence[int]]


class Road(Protocol):
    """How an executor is bound again: what it asks of `echo.runtime.bind`."""

    def replan(self, binding: Binding) -> tuple[Graph, Graph] | None:
        """The graph with fused operators for these shapes, and the one to bind, None where planning fails."""

    def confirms(self, base: Graph, graph: Graph, binding: Binding) -> bool:
        """Whether the marks that a graph has on top of the base also hold for these shapes: fewer bytes, equal bits."""

    def bind(self, bound: Graph | Symbol, *args: Any, **more: Any) -> mx.executor.Executor:
        """MXNet's own ``Symbol.bind``."""

    def differentiate(self, graph: Graph, binding: Binding) -> TrainingGraph:
        """The training graph of a bind like this."""


@dataclass(frozen=True)
class Applied:
    """What an executor was bound with.

    ``base`` is the user's graph with fused operators, ``graph`` that with the marks of a plan, where there are any.

    ``shapes`` are those of the arguments that it was planned for; ``held`` remembers for which others it holds.
    """

    user: Graph
    base: Graph
    graph: Graph
    shapes: Shapes
    strict: bool
    road: Road
    verifier: Verifier | None = field(default=None, compare=False)
    held: dict[Any, bool] = field(default_factory=dict, compare=False)

    @cached_property
    def marked(self) -> frozenset[str]:
        """The operators of the nodes that run again."""
        return frozenset(self.graph.nodes[number].op for number in marked(self.base, self.graph))

    @cached_property
    def fuses(self) -> bool:
        """Whether there are fused operators, which may be MXNet's own: one product in the place of many."""
        return self.base != self.user

    @cached_property
    def implements(self) -> bool:
        """Whether gradients read less than the user's own."""
        return implements(self.graph)

    @cached_property
    def watch(self) -> InputWatch | None:
        """The arguments that are read again."""
        return watch_of(self.graph, self._arguments)

    @cached_property
    def watches_of_all(self) -> tuple[InputWatch | None, InputWatch | None]:
        """All arguments, by the mode of a forward pass that backward may have to repeat."""
        may_repeat = self.mode_dependent or "Dropout" in self.marked
        inference, training = (watch_of_all(self._arguments, mode) if may_repeat else None for mode in (False, True))
        return inference, training

    @cached_property
    def _arguments(self) -> list[str]:
        names: list[str] = symbol_of(self.user).list_arguments()
        return names

    @cached_property
    def mode_dependent(self) -> frozenset[str]:
        """Those of them that have to run again in the mode of the forward pass."""
        again = (self.graph.nodes[number] for number in marked(self.base, self.graph))
        return frozenset(node.op for node in again if depends_on_mode(node.op, node.attrs))


class PlannedExecutor(mx.executor.Executor):  # type: ignore[misc]
    """An executor with a plan. It is made of a bound one, by `planned_executor`."""

    _applied: Applied
    _pool: Pool | None = None  # once somebody shares it
    _example: Example | None = None  # once somebody follows it
    _forward_mode: bool | None = None  # of the last forward pass
    _monitor: tuple[Callable[..., None], bool] | None = None
    _own: mx.executor.Executor | None = None  # the user's graph on the same arrays, made when it is first needed
    _own_monitor: WithoutClones | None = None
    _runs_own = False
    _random: list[TrainingNode] | None = None
    _is_verified = False  # where that is wanted
    _is_wrong = False  # so it was found to be: the user's graph runs
    _shown: WithoutClones | None = None
    _seen: tuple[Record | None, Record | None] = (None, None)  # by the last forward pass: in what is read again, in all

    def set_monitor_callback(self, callback: Callable[..., None], monitor_all: bool = False) -> None:
        """As ``Executor.set_monitor_callback``; the callback sees no clone."""
        self._monitor = (callback, monitor_all)
        self._shown = WithoutClones(self._applied.base, self._applied.graph, callback)
        super().set_monitor_callback(self._shown, monitor_all)
        if self._own is not None:
            self._watch(self._own)

    def get_optimized_symbol(self) -> Symbol:
        """As ``Executor.get_optimized_symbol``, without the marks of the plan."""
        applied = self._applied
        if applied.fuses:
            return self._users_own().get_optimized_symbol()
        symbol = super().get_optimized_symbol()
        return symbol_of(unmarked(applied.user, graph_of(symbol))) if applied.graph != applied.user else symbol

    # Modes --------------------------------------------------------------------------------------------------------

    def forward(self, is_train: bool = False, **kwargs: Any) -> Any:
        """As ``Executor.forward``."""
        mode = bool(is_train)
        if mode and not self._is_verified:
            self._verify(kwargs)
        # backward would have to repeat this pass, which it cannot with other random numbers: so it runs there at once
        self._runs_own = (not mode and self._is_at_odds(mode, not mode) and self._draws(mode)) or self._shows_all()
        self._runs_own |= self._is_wrong
        if self._runs_own:
            own = self._users_own()
            self._muted(False)
            self.outputs, self._output_dict = own.forward(is_train, **kwargs), None
        else:
            if self._forward_mode is not None and self._own is not None:
                self._output_dict = None
            super().forward(is_train, **kwargs)
        self._forward_mode = mode
        self._seen = (None, None) if self._runs_own else self._see(mode)
        return self.outputs

    def _verify(self, inputs: Mapping[str, Any]) -> None:
        self._is_verified = True
        verifier = self._applied.verifier
        if verifier is not None and self._applied.graph != self._applied.user:
            if self._shown is not None:
                self._shown.muted = True
            self._is_wrong = not verifier.is_right(self, inputs)
            if self._shown is not None:
                self._shown.muted = False

    @property
    def requests(self) -> dict[str, str]:
        """What happens to the gradient of each argument: write, add or null."""
        return dict(zip(self._symbol.list_arguments(), _requests(self)))

    def _see(self, mode: bool) -> tuple[Record | None, Record | None]:
        again, everything = (
            None if watch is None else watch.record(self.arg_arrays)
            for watch in (self._applied.watch, self._applied.watches_of_all[mode])
        )
        return again, everything

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """As ``Executor.backward``.

        Raises:
            ChangedInputError: an argument that is read again was written since the forward pass.
            UnsupportedError: an inference backward pass behind a training forward pass with random numbers.
        """
        if self._runs_own:
            self._users_own().backward(out_grads, is_train)
        elif self._forward_mode is not None and self._is_at_odds(self._forward_mode, bool(is_train)):
            refuse_changed(self._seen[1])
            self._repeat_forward(self._forward_mode)
            self._users_own().backward(out_grads, is_train)
        else:
            refuse_changed(self._seen[0])
            super().backward(out_grads, is_train)

    def _repeat_forward(self, mode: bool) -> None:
        if self._draws(mode):
            ops = tuple(sorted(self._applied.mode_dependent))
            raise UnsupportedError(
                f"backward(is_train={not mode}) after forward(is_train={mode}) in a graph with random numbers, "
                f"on a plan that recomputes {', '.join(ops)}: optimize with keep={ops} to have both"
            )
        own = self._users_own()
        self._muted(True)
        own.forward(mode)
        self._muted(False)

    def _shows_all(self) -> bool:
        """Whether a monitor wants what there is not: nodes that are fused, inputs that gradients no longer read."""
        applied = self._applied
        return self._monitor is not None and (applied.fuses or (self._monitor[1] and applied.implements))

    def _is_at_odds(self, forward: bool, backward: bool) -> bool:
        """Whether clones that run in the mode of backward are not what forward computed in its mode."""
        without_mask = not forward and "Dropout" in self._applied.marked
        return without_mask or (forward != backward and bool(self._applied.mode_dependent))

    def _draws(self, mode: bool) -> bool:
        """Whether a forward pass in this mode draws random numbers."""
        if self._random is None:
            try:
                training = self._applied.road.differentiate(self._applied.user, binding_of(self))
            except EchoError:  # no native hook, which is who knows
                return True
            self._random = [node for _, node in training.operators() if node.random and node.forward]
        return any(mode or not draws_in_training_alone(node.op, node.attrs) for node in self._random)

    def _users_own(self) -> mx.executor.Executor:
        if self._own is None:
            logger.info("echo: a monitor, or backward in another mode: bound without a plan, too")
            self._own = self._bound(self._symbol, self.arg_arrays, self.grad_arrays, self.aux_arrays)
            self._watch(self._own)
        return self._own

    def _watch(self, own: mx.executor.Executor) -> None:
        if self._monitor is not None:
            self._own_monitor = WithoutClones(self._applied.user, self._applied.user, self._monitor[0])
            own.set_monitor_callback(self._own_monitor, self._monitor[1])

    def _muted(self, muted: bool) -> None:
        if self._own_monitor is not None:
            self._own_monitor.muted = muted

    # Reshape ------------------------------------------------------------------------------------------------------

    def reshape(
        self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Any
    ) -> mx.executor.Executor:
        """As ``Executor.reshape``.

        The plan is kept while no argument is longer, in any dimension, than in the shapes of the plan, since all then
        fits into the memory that is there already, and MXNet confirms it. Otherwise the new shapes get their own.

        Raises:
            EchoError: the new shapes cannot be planned, under ``strict``; otherwise they go without a plan.
        """
        applied = self._for_shapes(kwargs)
        try:
            executor = self._reshaped(applied, partial_shaping, allow_up_sizing, kwargs)
        except Exception as error:
            if applied.strict or applied.graph == applied.user:
                raise
            own = replace(applied, base=applied.user, graph=applied.user, held={})
            executor = self._reshaped(own, partial_shaping, allow_up_sizing, kwargs)
            logger.warning("echo: %s; reshaped without a plan", one_line(error))
            applied = own
        executor = planned_executor(executor, applied)
        if self._monitor is not None:
            executor.set_monitor_callback(*self._monitor)
        return executor

    def _reshaped(
        self, applied: Applied, partial: bool, up_sizing: bool, given: Mapping[str, Any]
    ) -> mx.executor.Executor:
        if applied.graph == self._applied.graph and not applied.fuses:
            return super().reshape(partial, up_sizing, **given)
        return self._rebound(applied, partial, up_sizing, given)

    def _for_shapes(self, given: Mapping[str, Any]) -> Applied:
        applied = self._applied
        try:
            shapes, aux_shapes = _inferred(self._symbol, given)
        except (mx.MXNetError, EchoError):
            return applied  # MXNet's own reshape says what is wrong
        binding = replace(binding_of(self), arg_shapes=tuple(shapes.values()), aux_shapes=aux_shapes)
        verifier = applied.verifier and replace(applied.verifier, plan=None, thread=threading.get_ident())
        own = replace(applied, base=applied.user, graph=applied.user, shapes=shapes, verifier=verifier, held={})
        try:
            if not _outgrow(shapes, applied.shapes) and self._holds(binding):
                return replace(applied, verifier=verifier)
            found = applied.road.replan(binding)
        except Exception as error:
            if applied.strict and isinstance(error, EchoError):
                raise
            logger.warning("echo: %s; reshaped without a plan", one_line(error))
            return own
        return own if found is None else replace(own, base=found[0], graph=found[1])

    def _holds(self, binding: Binding) -> bool:
        applied = self._applied
        if applied.graph == applied.user:
            return True
        if binding.key not in applied.held:
            applied.held[binding.key] = applied.road.confirms(applied.base, applied.graph, binding)
        return applied.held[binding.key]

    def _rebound(
        self, applied: Applied, partial: bool, up_sizing: bool, given: Mapping[str, Any]
    ) -> mx.executor.Executor:
        """What ``reshape`` does, with another graph: arrays are shared where they are long enough, the pool too."""
        shapes, aux_shapes = _inferred(self._symbol, given)
        wanted = [*shapes.values(), *aux_shapes]
        named = [name in given for name in shapes] + [False] * len(aux_shapes)
        for shape, is_given, array in zip(wanted, named, [*self.arg_arrays, *self.aux_arrays]):
            changes, grows = array.shape != shape, _size(shape) > array.size
            if (changes and not partial and not is_given) or (grows and not up_sizing):
                return super().reshape(partial, up_sizing, **given)  # which fails, and says why
        with autograd.pause():
            args = [_fitted(array, shape) for array, shape in zip(self.arg_arrays, shapes.values())]
            gradients = [_fitted(array, shape) for array, shape in zip(self.grad_arrays, shapes.values())]
            aux = [_fitted(array, shape) for array, shape in zip(self.aux_arrays, aux_shapes)]
        executor = self._bound(applied.graph, args, gradients, aux, shared_exec=self)
        executor._symbol = self._symbol
        return executor

    def _bound(
        self, bound: Graph | Symbol, args: list[Any], gradients: list[Any], aux: list[Any], **more: Any
    ) -> mx.executor.Executor:
        names, requests = self._symbol.list_arguments(), self.requests
        given = {name: array for name, array in zip(names, gradients) if array is not None}
        executor = self._applied.road.bind(bound, self._ctx, args, given, requests, aux, **more)
        executor._grad_req = self._grad_req
        return executor


def planned_executor(executor: mx.executor.Executor, applied: Applied) -> mx.executor.Executor:
    """Turns a bound executor into a `PlannedExecutor`, unless it is of a class of somebody else's already."""
    if type(executor) is not mx.executor.Executor:
        return executor
    executor.__class__ = PlannedExecutor
    planned: PlannedExecutor = executor
    planned._applied = applied
    return planned


def shapes_of(executor: mx.executor.Executor) -> dict[str, tuple[int, ...]]:
    """The shapes of an executor's arguments."""
    return {name: array.shape for name, array in zip(executor._symbol.list_arguments(), executor.arg_arrays)}


def _requests(executor: mx.executor.Executor) -> list[str]:
    asked = grad_reqs(executor._symbol.list_arguments(), executor._grad_req)
    return [request if array is not None else "null" for request, array in zip(asked, executor.grad_arrays)]


def binding_of(executor: mx.executor.Executor) -> Binding:
    """How an executor was bound."""
    gradients = enumerate(executor.grad_arrays)
    sparse = [place for place, array in gradients if array is not None and array.stype != "default"]
    return Binding.of_arrays(executor.arg_arrays, executor.aux_arrays, _requests(executor), sparse)


def _inferred(
    symbol: Symbol, given: Mapping[str, Any]
) -> tuple[dict[str, tuple[int, ...]], tuple[tuple[int, ...], ...]]:
    """The shapes of the arguments and of the auxiliary states, from those that ``reshape`` was given.

    Raises:
        MXNetError: they contradict each other.
        EchoError: some stay unknown.
    """
    names = symbol.list_arguments()
    shapes = {name: shape for name, shape in given.items() if name in names and isinstance(shape, tuple)}
    found, _, aux = symbol._infer_shape_impl(False, **shapes)
    if found is None:
        raise EchoError(f"MXNet does not infer every shape from {shapes}")
    return dict(zip(names, map(tuple, found))), tuple(map(tuple, aux))


def _outgrow(shapes: Shapes, planned: Shapes) -> bool:
    return any(
        len(shape) != len(planned[name]) or any(new > old for new, old in zip(shape, planned[name]))
        for name, shape in shapes.items()
    )


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _fitted(array: Any, shape: tuple[int, ...]) -> Any:
    """The array in another shape, in the same memory if it is large enough."""
    if array is None or array.shape == shape:
        return array
    if _size(shape) > array.size:
        return mx.nd.empty(shape, array.context, array.dtype)
    return array.reshape((-1,))[: _size(shape)].reshape(shape)
