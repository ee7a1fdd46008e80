"""Monitors show the user's own nodes: values of clones are dropped on the way to the callback."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

from mxnet.base import NDArrayHandle
from mxnet.ndarray import NDArray

from echo.frontend.cached import as_stateful
from echo.ir.graph import Graph
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, MIRROR_ATTRIBUTE, PLAN_ATTRIBUTE, GradientRule
from echo.ir.schedule import CLONE_SUFFIX
from echo.plans.decisions import marked

_SUFFIX = {PLAN_ATTRIBUTE: CLONE_SUFFIX, MIRROR_ATTRIBUTE: "_mirror"}


class WithoutClones:
    """A monitor callback that drops the values of clones. Its first argument is a name, its last one an array.

    MXNet names a value ``NODE_OUTPUT`` or ``NODE_INPUT``. Before an input that is a variable it shows the variable
    itself, under its own name: that one waits here for the node. ``muted`` drops everything.
    """

    def __init__(self, user: Graph, bound: Graph, callback: Callable[..., None]) -> None:
        self.muted = False
        self._callback = callback
        self._names = {node.name for node in user.nodes}
        self._variables = {node.name for node in user.nodes if node.is_variable}
        clones = {bound.nodes[number].name + _SUFFIX[mark] for number, mark in marked(user, bound).items()}
        self._clones = clones - self._names
        pairs = zip(user.nodes, bound.nodes)
        self._sliced = {user_node.name for user_node, bound_node in pairs if user_node.op != bound_node.op}
        texts = {node.name: node.attrs.get(GRADIENT_ATTRIBUTE) for node in bound.nodes}
        self._rules = {name: GradientRule.parse(text) for name, text in texts.items() if text}
        self._waiting: tuple[Any, ...] | None = None

    def __call__(self, *args: Any) -> None:
        """MXNet calls this with each value that a node reads or writes."""
        name = _text(args[0])
        node = self._node_of(name)
        hidden = self.muted or node in self._clones
        if node in self._sliced and len(args) == 3:
            args = (*(text.encode() for text in as_stateful(node, name, _text(args[1]))), args[2])
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
