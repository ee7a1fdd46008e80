"""Gluon programs of which echo sees little, and one line that says so: blocks that are not hybridized.

MXNet has a graph of a block only after ``hybridize()``, and of a block that is no HybridBlock only of those in it that
are. Nothing else tells users why nothing is saved.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable

from mxnet.gluon import Block, HybridBlock, nn

from echo.system.threads import ONCE

logger = logging.getLogger("echo")
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
