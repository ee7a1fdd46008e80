"""A symbol that plans itself when it is bound, since only then its shapes are known."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet.symbol import Symbol

from echo.frontend.symbols import graph_from, text_of
from echo.ir.graph import Graph
from echo.plans.options import Options
from echo.plans.plan import Plan
from echo.runtime import bind, bind_call
from echo.runtime.on_error import RaiseUnmetRequests


class OptimizedSymbol(Symbol):  # type: ignore[misc]
    """The user's symbol with another ``bind`` and ``simple_bind``, which apply a plan.

    Arguments, auxiliary states, outputs, their order, JSON and checkpoints are the user's own. ``plans`` holds the
    plan of each bind so far, the latest last.
    """

    def __init__(self, handle: Any, options: Options, graph: Graph | None = None) -> None:
        super().__init__(handle)
        self.options = options
        self.plans: list[Plan] = []
        self._read = ("", graph) if graph is None else (text_of(self), graph)

    def graph(self) -> Graph:
        """The symbol's graph, read once and again where the program has changed the symbol since."""
        text, graph = text_of(self), self._read[1]
        if graph is None or text != self._read[0]:
            graph = graph_from(text)
            self._read = text, graph
        return graph

    def __deepcopy__(self, _: Any = None) -> OptimizedSymbol:
        return optimize_symbol(self, self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (text_of(self), self.options)

    def simple_bind(self, *args: Any, **kwargs: Any) -> mx.executor.Executor:
        """As ``Symbol.simple_bind``, with a plan applied."""
        return self._bound(bind_call.simple_bind(self, Symbol.simple_bind, *args, **kwargs))

    def bind(self, *args: Any, **kwargs: Any) -> mx.executor.Executor:
        """As ``Symbol.bind``, with a plan applied."""
        return self._bound(bind_call.bind(self, Symbol.bind, *args, **kwargs))

    def _bound(self, request: bind_call.Bind) -> mx.executor.Executor:
        on_error = RaiseUnmetRequests(self.options)
        return on_error(
            lambda options: bind.with_plan(request, options, on_error, self.graph, self.plans.append),
            lambda: bind.as_it_is(request),
        )


def optimize_symbol(symbol: Symbol, options: Options, graph: Graph | None = None) -> OptimizedSymbol:
    """A copy of the symbol that plans itself when it is bound; ``graph`` is the symbol's, where it was read already."""
    copy = bind.plain(symbol)
    handle, copy.handle = copy.handle, None  # the copy is dropped here, and would free it
    return OptimizedSymbol(handle, options, graph)


def _unpickled(json: str, options: Options) -> OptimizedSymbol:
    return optimize_symbol(mx.sym.load_json(json), options)
