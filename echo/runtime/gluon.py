"""`echo.optimize` and `echo.plan` for Gluon blocks."""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any, Callable, Iterator, Mapping

import mxnet as mx
from mxnet.gluon import Block, HybridBlock, SymbolBlock

from echo.errors import OptionError, UnsupportedError
from echo.frontend.cached import runner_of, stateless
from echo.frontend.hook import install_hook
from echo.frontend.session import MxnetSession
from echo.frontend.symbols import graph_of, infer_binding, without_marks
from echo.plans.options import Options
from echo.runtime.cached_ops import planned_by
from echo.runtime.find import session_of
from echo.runtime.on_error import RaiseUnmetRequests

logger = logging.getLogger("echo")


def optimize_block(block: Block, options: Options) -> Block:
    """Has the block, and every block in it, plan itself when it is hybridized and called for training.

    Raises:
        OptionError: no block in it can be hybridized.
        UnsupportedError: under ``strict``, no native hook.
    """
    hybrid = list(_hybrid_blocks(block))
    if not hybrid:
        raise OptionError(f"expected a HybridBlock, or a Block with some in it, got {type(block).__name__} without")
    if options.strict and install_hook():
        raise UnsupportedError(f"only the native hook can plan a Gluon block: {install_hook()}")
    for hybrid_block in hybrid:
        hybrid_block._clear_cached_op()
        hybrid_block._build_cache = _planned_build(hybrid_block, options)
    return block


def _hybrid_blocks(block: Block) -> Iterator[HybridBlock]:
    if isinstance(block, HybridBlock):
        yield block
    for child in block._children.values():
        yield from _hybrid_blocks(child)


def _planned_build(block: HybridBlock, options: Options) -> Callable[..., None]:
    original = functools.partial(type(block)._build_cache, block)

    def build(*args: Any) -> None:
        with planned_by(RaiseUnmetRequests(options)):
            original(*args)

    return build


def _in_order(block: HybridBlock, shapes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The shapes in the order of the block's inputs.

    Raises:
        OptionError: some have the names of inputs, and others do not.
    """
    names = _input_names(block)
    unknown = [name for name in shapes if name not in names]
    if len(unknown) == len(shapes):
        return shapes
    if unknown:
        raise OptionError(f"unknown input {unknown[0]!r} of {type(block).__name__}, expected {', '.join(names)}")
    return {name: shapes[name] for name in names if name in shapes}


def _input_names(block: HybridBlock) -> list[str]:
    if isinstance(block, SymbolBlock):
        return [symbol.name for symbol in block._cached_graph[0]]
    own_forward = type(block).forward is not HybridBlock.forward
    function, leading = (block.forward, 0) if own_forward else (block.hybrid_forward, 1)  # F comes first
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind in kinds]
    return [name for name in names[leading:] if name not in block._reg_params]


def session_of_block(block: HybridBlock, shapes: Mapping[str, Any], ctx: mx.Context) -> Callable[[], MxnetSession]:
    """The session of a block for inputs of these shapes.

    Where their names are those of the block's inputs they may come in any order, else they are taken as they come.

    Raises:
        OptionError: no shapes, some of another name than the others', or a block that cannot be hybridized.
        UnsupportedError: no native hook, without which a block is not planned.
    """
    if not isinstance(block, HybridBlock):
        raise OptionError(f"expected a HybridBlock, got {type(block).__name__}: it has no graph to plan")
    if not shapes:
        raise OptionError("expected the shape of each input, as echo.plan(net, data=(32, 3, 224, 224))")
    if install_hook():
        raise UnsupportedError(f"only the native hook can plan a Gluon block: {install_hook()}")
    shapes = _in_order(block, shapes)
    outputs = block.forward(*map(mx.sym.var, shapes))  # as MXNet traces it: hooks of the block see no symbols
    symbol = outputs if isinstance(outputs, mx.sym.Symbol) else mx.sym.Group(list(outputs))
    symbol, graph = without_marks(symbol, graph_of(symbol), cached=True)
    flags = dict(block._flags)
    runner = runner_of(*(bool(flags.get(name, False)) for name in ("static_alloc", "static_shape")))
    binding = infer_binding(symbol, shapes)
    return session_of(stateless(graph), lambda: binding, ctx, runner)
