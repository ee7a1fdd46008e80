"""Gluon: the CachedOp behind a hybridized block, planned when it is first called for training.

A block creates its CachedOp as ``mxnet.ndarray.CachedOp(symbol, flags)`` and never looks inside. `PlannedCachedOp` stands
in for it: it starts with MXNet's own, plans at the first recorded call for the shapes at hand, and goes on with a CachedOp
of the rewritten symbol. The block's own graph stays the user's, and with it ``export``.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd
from mxnet.symbol import Symbol

from echo.errors import GraphError
from echo.frontend.cached import stateless
from echo.frontend.session import install_hook
from echo.frontend.symbols import Binding, graph_of, symbol_of
from echo.graph import Graph
from echo.passes.recompute import CLONE_SUFFIX
from echo.passes.rewrite import PLAN_ATTRIBUTE
from echo.plan import Plan
from echo.runtime import bind
from echo.training_graph import DYNAMIC, STATIC

StockCachedOp = mx.nd.CachedOp  # before anybody puts another in its place
Signature = Tuple[Any, ...]
Find = Callable[[Graph, Callable[[], Binding], mx.Context, str], Optional[Tuple[Plan, Graph]]]
_TRUE = ("True", "true", "1")
# These compute something else outside of training, and a recomputation runs in the mode of the backward pass.
_MODES = frozenset({"BatchNorm", "Dropout"})


@dataclass(frozen=True)
class _Choice:
    """What runs one signature: the graph of a plan, or None for the user's own; ``key`` is equal for equal plans."""

    graph: Graph | None = None
    key: tuple[Any, ...] = ()
    clones: frozenset[str] = field(default=frozenset(), compare=False)
    depends_on_mode: bool = False


_STOCK = _Choice()


class PlannedCachedOp:
    """A CachedOp that plans itself, for its callers the same. ``plans`` holds the plan of each signature so far.

    A signature is the shapes of the data inputs and the type of the first. ``find`` plans a graph, or returns None.
    """

    def __init__(self, symbol: Symbol, flags: Sequence[tuple[str, Any]], find: Find) -> None:
        self._find = find
        self.plans: dict[Signature, Plan] = {}
        self._symbol, self._flags = symbol, flags
        self._current = StockCachedOp(symbol, flags)
        self._choice = _STOCK
        self._choices: dict[Signature, _Choice] = {}
        self._ops = {_STOCK.key: self._current}
        given = {name: value for name, value in flags}
        self._static = str(given.get("static_alloc", False)) in _TRUE
        self._data = tuple(given.get("data_indices", ()))
        self._monitor: tuple[Any, bool] | None = None
        self._lock = threading.RLock()
        self._untouched = _why_untouched(symbol, given)

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
        if self._untouched or not autograd.is_recording():
            return self._current(*args, **kwargs)
        with self._lock:
            self._switch(self._choose(args))
            current = self._current
        return current(*args, **kwargs)

    def _register_op_hook(self, callback: Callable[..., None], monitor_all: bool = False) -> None:
        """As ``CachedOp._register_op_hook``; the user sees no clone."""
        self._monitor = (callback, monitor_all)
        self._current._register_op_hook(self._hidden(callback), monitor_all)

    def _hidden(self, callback: Callable[..., None]) -> Callable[..., None]:
        clones = self._choice.clones
        if not clones or not callback:
            return callback

        def without_clones(node: Any, *rest: Any) -> None:
            name = node.decode() if isinstance(node, bytes) else str(node)
            if name.rpartition("_")[0] not in clones:
                callback(node, *rest)

        return without_clones

    def _choose(self, args: Sequence[Any]) -> _Choice:
        places = self._data or range(len(args))
        signature = (*(args[index].shape for index in places), str(args[places[0]].dtype), args[0].context.device_type)
        choice = self._choices.get(signature)
        if choice is None:
            choice = self._choices[signature] = self._planned(signature, args)
        return choice if autograd.is_training() or not choice.depends_on_mode else _STOCK

    def _planned(self, signature: Signature, args: Sequence[Any]) -> _Choice:
        if any(array.stype != "default" for array in args):
            return _STOCK
        graph = stateless(graph_of(self._symbol))
        with bind.own_binds():
            runner = STATIC if self._static else DYNAMIC
            found = self._find(graph, lambda: _binding(self._symbol, args), args[0].context, runner)
        if found is None:
            return _STOCK
        plan, graph = found
        self.plans[signature] = plan
        if plan.changes_nothing:
            return _STOCK
        marked = {number: node for number, node in enumerate(graph.nodes) if PLAN_ATTRIBUTE in node.attrs}
        return _Choice(
            graph=graph,
            key=tuple((number, node.attrs[PLAN_ATTRIBUTE]) for number, node in marked.items()),
            clones=frozenset(node.name + CLONE_SUFFIX for node in marked.values()),
            depends_on_mode=any(node.op in _MODES for node in marked.values()),
        )

    def _switch(self, choice: _Choice) -> None:
        if choice.key == self._choice.key:
            return
        if choice.key not in self._ops:
            symbol = self._symbol if choice.graph is None else symbol_of(choice.graph)
            op = StockCachedOp(symbol, self._flags)
            op.is_np_sym = self.is_np_sym
            if self._static:
                self._ops.clear()  # each keeps its memory for as long as it lives
            self._ops[choice.key] = op
        self._choice, self._current = choice, self._ops[choice.key]
        if self._monitor is not None:
            self._current._register_op_hook(self._hidden(self._monitor[0]), self._monitor[1])


def _why_untouched(symbol: Symbol, flags: dict[str, Any]) -> str:
    hook = install_hook()
    if hook:
        return f"the native hook is not there: {hook}"
    static = str(flags.get("static_alloc", False)) in _TRUE
    operators = sum(not node.is_variable for node in graph_of(symbol).nodes)
    if not static and operators <= int(flags.get("inline_limit", 2)):
        return "MXNet runs so small a graph operator by operator"
    return ""


def _binding(symbol: Symbol, args: Sequence[Any]) -> Binding:
    """What MXNet assumes of a CachedOp: a gradient of every input that is no auxiliary state."""
    names = symbol.list_inputs()
    if len(set(names)) < len(names):
        raise GraphError(f"several inputs of the block have the name {Counter(names).most_common(1)[0][0]!r}")
    arrays = dict(zip(names, args))
    arguments = [arrays[name] for name in symbol.list_arguments()]
    states = [arrays[name] for name in symbol.list_auxiliary_states()]
    return Binding(
        tuple(array.shape for array in arguments),
        tuple(array.dtype for array in arguments),
        tuple(array.shape for array in states),
        tuple(array.dtype for array in states),
        ("write",) * len(arguments),
    )
