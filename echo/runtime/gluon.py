"""Gluon's hybridized blocks: CachedOps with plans."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import mxnet as mx
from mxnet.gluon import Block, HybridBlock, SymbolBlock, nn
from mxnet.symbol import Symbol

from echo.errors import OptionError, UnsupportedError
from echo.frontend.framework import MxnetFramework
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, infer_binding, without_marks
from echo.ir.training_graph import Runner
from echo.plans.decisions import Note
from echo.plans.options import Options
from echo.runtime.bind_plan import framework_of
from echo.runtime.cached_op import PlannedCachedOp, StockCachedOp
from echo.runtime.error_policy import ErrorPolicy, RaiseUnmetRequests
from echo.runtime.patches import PATCHES
from echo.system.threads import ONCE, PerThread, are_own

logger = logging.getLogger("echo")

# Which CachedOps of the process are planned: those of blocks that the user named, or with ``ECHO=1`` all of them.

_HERE: PerThread[ErrorPolicy | None] = PerThread(None)


@functools.wraps(StockCachedOp, assigned=(), updated=())
def cached_op(symbol: Symbol, flags: Sequence[tuple[str, Any]] = ()) -> Any:
    """Takes the place of ``mxnet.ndarray.CachedOp``: makes a planned one, or MXNet's own where none is asked for."""
    UNPLANNED.graph()
    is_named = _HERE.value is not None  # the program may read the plans of a block that it named
    on_error = _HERE.value or PATCHES.policy
    if on_error is None or are_own():
        return StockCachedOp(symbol, flags)
    return on_error(lambda _: PlannedCachedOp(symbol, flags, on_error, is_named), lambda: StockCachedOp(symbol, flags))


@contextlib.contextmanager
def planned_by(on_error: ErrorPolicy) -> Iterator[None]:
    """CachedOps that this thread makes meanwhile are planned."""
    PATCHES.put(mx.nd, "CachedOp", lambda _: cached_op)
    with _HERE.set_to(on_error):
        yield


# `echo.optimize` and `echo.plan` for Gluon blocks.


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
    say_if_parts(block)
    for hybrid_block in hybrid:
        hybrid_block._clear_cached_op()
        hybrid_block._echo_planned_by = PlannedBy(options)
    return block


def _hybrid_blocks(block: Block) -> Iterator[HybridBlock]:
    if isinstance(block, HybridBlock):
        yield block
    for child in block._children.values():
        yield from _hybrid_blocks(child)


class PlannedBy:
    """The mark on a block that plans itself, with these options. Copies and pickles of the block have it, too."""

    def __init__(self, options: Options) -> None:
        self.options = options
        PATCHES.put_for_good(HybridBlock, "_build_cache", _planned_build)

    def __copy__(self) -> PlannedBy:
        return self  # which nothing changes

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedBy:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return PlannedBy, (self.options,)


def _planned_build(original: Callable[..., None]) -> Callable[..., None]:
    """Stands in for ``HybridBlock._build_cache``, which makes the CachedOp of a block."""

    @functools.wraps(original)
    def build(block: HybridBlock, *args: Any) -> None:
        mark = vars(block).get("_echo_planned_by")
        with contextlib.nullcontext() if mark is None else planned_by(RaiseUnmetRequests(mark.options)):
            original(block, *args)

    return build


class _Inputs(NamedTuple):
    """The names of a block's inputs, how many have no default, and whether it takes more than these."""

    names: list[str]
    required: int
    more: bool

    @staticmethod
    def of(block: HybridBlock) -> _Inputs:
        """Returns the inputs of a block, without its parameters."""
        if isinstance(block, SymbolBlock):
            names = [symbol.name for symbol in block._cached_graph[0]]
            return _Inputs(names, len(names), False)
        own_forward = type(block).forward is not HybridBlock.forward
        function, leading = (block.forward, 0) if own_forward else (block.hybrid_forward, 1)  # F comes first
        parameters = inspect.signature(function).parameters.values()
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        taken = [each for each in parameters if each.kind in kinds][leading:]
        inputs = [each for each in taken if each.name not in block._reg_params]
        required = sum(each.default is inspect.Parameter.empty for each in inputs)
        more = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)
        return _Inputs([each.name for each in inputs], required, more)

    def missing(self, given: Mapping[str, Any]) -> list[str]:
        """Returns the names of inputs that these lack: required ones, and others before one that is given."""
        last = max((place for place, name in enumerate(self.names) if name in given), default=-1)
        return [name for name in self.names[: max(self.required, last + 1)] if name not in given]


def _in_order(block: HybridBlock, shapes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The shapes in the order of the block's inputs.

    Raises:
        OptionError: some have the names of inputs and others do not, or there are too few or too many.
    """
    inputs = _Inputs.of(block)
    names, unknown = inputs.names, [name for name in shapes if name not in inputs.names]
    expected = f"of {type(block).__name__}, expected {', '.join(names)}, got {', '.join(shapes)}"
    fits = len(shapes) >= inputs.required and (inputs.more or len(shapes) <= len(names))
    if unknown and (len(unknown) < len(shapes) or not fits):
        raise OptionError(f"unknown input {unknown[0]!r} {expected}")
    if unknown:
        return shapes
    if missing := inputs.missing(shapes):
        raise OptionError(f"no shape for the input {missing[0]!r} {expected}")
    return {name: shapes[name] for name in names if name in shapes}


def _traced(block: HybridBlock, names: Iterable[str]) -> mx.sym.Symbol:
    """The graph of a block whose inputs have these names, as MXNet traces it: hooks of the block see no symbols."""
    is_np = mx.util.is_np_array()
    outputs = block.forward(*[mx.sym.var(name).as_np_ndarray() if is_np else mx.sym.var(name) for name in names])
    symbol = outputs if isinstance(outputs, mx.sym.Symbol) else mx.sym.Group(list(outputs))
    return symbol.as_nd_ndarray() if isinstance(symbol, mx.sym.np._Symbol) else symbol


def framework_of_block(block: HybridBlock, shapes: Mapping[str, Any], ctx: mx.Context) -> Callable[[], MxnetFramework]:
    """Returns what makes the framework of a block for inputs of these shapes.

    Where their names are those of the block's inputs they may come in any order, else they are taken as they come.

    Raises:
        OptionError: no shapes, others than the inputs have, or a block that cannot be hybridized.
        UnsupportedError: no native hook, without which a block is not planned.
    """
    if not isinstance(block, HybridBlock):
        raise OptionError(f"expected a HybridBlock, got {type(block).__name__}: it has no graph to plan")
    if not shapes:
        raise OptionError("expected the shape of each input, as echo.plan(net, data=(32, 3, 224, 224))")
    if install_hook():
        raise UnsupportedError(f"only the native hook can plan a Gluon block: {install_hook()}")
    shapes = _in_order(block, shapes)
    symbol = _traced(block, shapes)
    symbol, graph = without_marks(symbol, graph_of(symbol), cached=True)
    flags = dict(block._flags)
    runner = Runner.of_flags(*(bool(flags.get(name, False)) for name in ("static_alloc", "static_shape")))
    binding = infer_binding(symbol, shapes)
    return framework_of(graph, lambda: binding, ctx, runner)


def unhybridized_note(block: Block) -> tuple[Note, ...]:
    """Returns what `echo.plan` says of a block that trains without a graph as it is, for which no plan can hold."""
    if block._active or isinstance(block, SymbolBlock):
        return ()
    return (Note("planned for hybridize() without arguments: call it before the first step, or no plan is used"),)


# Programs of which echo sees little, and one line that logs it: blocks that are not hybridized.
#
# MXNet has a graph of a block only after ``hybridize()``; of a Block that is no HybridBlock it has graphs of the
# HybridBlocks inside. Nothing else tells users why nothing is saved.

_WHY = "Gluon trains a block that is not hybridized, and so has no graph: call hybridize() before the first step"
_SMALL = "the blocks that are hybridized are so small that MXNet runs them by operators: hybridize the whole network"


class Unplanned:
    """What was seen in this process: graphs of Gluon blocks, and steps of Gluon's Trainer."""

    def __init__(self) -> None:
        self._graphs = self._steps = False

    def graph(self) -> None:
        """A block was hybridized and called."""
        self._graphs = True

    def step(self) -> None:
        """Gluon's Trainer updates weights; the first time, one line says if no block was hybridized until then."""
        if not self._steps:
            self._steps = True
            if not self._graphs:
                logger.info("echo: nothing is planned: %s", _WHY)

    def why(self) -> str:
        """Returns why nothing of Gluon was planned, in a process that planned nothing; empty if it trains none."""
        if not self._steps:
            return ""
        return _SMALL if self._graphs else _WHY


UNPLANNED = Unplanned()  # of the process


def watched_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for ``gluon.Trainer.step``."""

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        UNPLANNED.step()
        return original(self, *args, **kwargs)

    return step


def watched_hybridize(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for ``gluon.Block.hybridize``, which HybridBlocks call, too."""

    @functools.wraps(original)
    def hybridize(self: Any, active: bool = True, **kwargs: Any) -> Any:
        if active:
            say_if_parts(self)
        return original(self, active, **kwargs)

    return hybridize


def say_if_parts(block: Block) -> None:
    """Logs that of a block only parts are graphs, once for each kind of block."""
    parts = [child for child in block._children.values() if isinstance(child, HybridBlock)]
    if isinstance(block, HybridBlock) or not parts:
        return
    name, better = type(block).__name__, "HybridSequential" if isinstance(block, nn.Sequential) else "HybridBlock"
    text = (
        f"{name} is no HybridBlock: each of the {len(parts)} blocks in it is planned by itself, and what passes "
        f"between them is kept; a {better} is planned as a whole"
    )
    if ONCE.first(text):
        logger.info("echo: %s", text)
