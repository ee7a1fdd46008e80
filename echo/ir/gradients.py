"""Other implementations of MXNet's gradients, which read less: what stays in memory for them is a choice.

Many gradient operators are handed more than they read: oneDNN's of tanh takes the input and the output of the forward
pass, and computes from the input alone. Where MXNet's source says that an input is never read, it may be given another
array of the same shape, and the bits stay as they are. They also stay where another formula comes to the same bits, as
that of sigmoid from its output, with whatever instructions oneDNN uses. Such *exact* implementations are checked one by
one by ``tests/ir/test_gradients.py``. That of tanh from its output changes the last bits of some gradients: it
is taken only under ``exact=False``. (Implementations as choices: MONeT, Shah et al., ICLR 2021.)

An implementation is a text, as the native hook reads it: ``OLD>NEW:0,2,f0`` has the gradient's node OLD become NEW,
with the inputs 0 and 2 of OLD and output 0 of the forward node. With an ``s`` among the inputs, NEW is a second node
beside OLD (`echo.ir.split_gradients`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import AbstractSet, Callable, Mapping, NamedTuple

from echo.ir.fused_operators import PREFIX, READS
from echo.ir.graph import Entry
from echo.ir.split_gradients import late_gradients, late_implementation
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TrainingNode

_MOST_AXES = 5  # beyond which, and for other types than float32, MXNet does not ask oneDNN
_ONEDNN_ACTIVATIONS = frozenset({"tanh", "sigmoid", "softrelu"})
_ONEDNN_LEAKY = frozenset({"elu", "gelu", "leaky"})
_ACTIVATION = "_backward_Activation>_backward_Activation:0,2,2"  # reads the input alone
_LEAKY_INPUT, _LEAKY_OUTPUT = (f"_backward_LeakyReLU>_backward_LeakyReLU:0,{read},{read}" for read in "12")
_MASKED_SOFTMAX = "_backward_softmax>_backward_softmax:0,3,2,3"  # reads the output and the lengths
_FROM_OUTPUT = {name: f"_backward_Activation>_backward_{name}:0,1" for name in ("tanh", "sigmoid")}
_SUMS = {"_npi_add": "_backward_npi_broadcast_add", "_npi_subtract": "_backward_npi_broadcast_sub"}
# What may stand in the place of what, as the native hook is told; fused operators bring their own.
_OF_OTHERS = (_ACTIVATION, _LEAKY_INPUT, _MASKED_SOFTMAX, *_FROM_OUTPUT.values(), late_implementation(True))
_OF_THEMSELVES = ("_backward_Concat", *_SUMS.values(), *(f"_backward_{PREFIX}{kernel}" for kernel in READS))
EXCHANGES = frozenset({text.partition(":")[0] for text in _OF_OTHERS} | {f"{op}>{op}" for op in _OF_THEMSELVES})
INEXACT = frozenset({_FROM_OUTPUT["tanh"]})


OF_GRADIENT, OF_FORWARD, OF_SUM = "", "f", "s"


class Parsed(NamedTuple):
    """An implementation in parts.

    An input is a position of the gradient's inputs, one of the forward node's outputs, or, without a position, the last
    other term of the sum that the gradient is a term of (`echo.ir.split_gradients`).
    """

    before: str
    after: str
    inputs: tuple[tuple[str, int], ...]

    @property
    def is_late(self) -> bool:
        """Whether ``after`` is a second node beside ``before``."""
        return any(kind == OF_SUM for kind, _ in self.inputs)


@functools.lru_cache(maxsize=1024)
def parsed(text: str) -> Parsed:
    """The parts of an implementation."""
    before, _, rest = text.partition(">")
    after, _, inputs = rest.partition(":")
    return Parsed(before, after, tuple(map(_input, inputs.split(","))))


def _input(text: str) -> tuple[str, int]:
    if text == OF_SUM:
        return (OF_SUM, 0)
    return (OF_FORWARD, int(text[1:])) if text[0] == OF_FORWARD else (OF_GRADIENT, int(text))


@dataclass(frozen=True)
class _Case:
    """A forward node whose gradient may read less. ``onednn``: oneDNN computes gradients of activations.

    ``copied``: of its output, another gradient than oneDNN's would keep a plain copy.
    """

    training: TrainingGraph
    number: int
    onednn: bool
    exact: bool
    copied: bool

    @property
    def node(self) -> TrainingNode:
        return self.training.nodes[self.number]

    @property
    def act_type(self) -> str:
        return self.node.attrs.get("act_type", "leaky")

    @property
    def by_onednn(self) -> bool:
        kind = self.node.outputs[0]
        return self.onednn and kind.dtype == "float32" and 1 <= len(kind.shape) <= _MOST_AXES

    @property
    def keeps_output(self) -> bool:
        """Whether another gradient reads the output all the same, or none the input."""
        return self.is_read(Entry(self.number)) or not self.is_read(self.node.inputs[0])

    def is_read(self, entry: Entry) -> bool:
        """Whether the gradient of another node reads an entry."""
        readers = self.training.backward_readers.get(Entry(entry.node, entry.index), ())
        return any(self.number not in self.training.nodes[reader].control_deps for reader in readers)


def _of_activation(case: _Case) -> str:
    from_output = case.keeps_output and not case.copied
    if case.act_type == "sigmoid" and case.by_onednn and from_output:
        return _FROM_OUTPUT["sigmoid"]  # which has the bits of oneDNN's, tanh's has not
    if case.act_type == "tanh" and not case.exact and from_output:
        return _FROM_OUTPUT["tanh"]
    reads_input = case.act_type == "softsign" or (case.act_type in _ONEDNN_ACTIVATIONS and case.by_onednn)
    return _ACTIVATION if reads_input else ""


def _of_leaky(case: _Case) -> str:
    if case.act_type == "selu":
        return _LEAKY_OUTPUT
    if case.act_type not in _ONEDNN_LEAKY or not case.by_onednn:
        return ""
    # of a leaky ReLU that keeps the sign it reads no more than that
    signed = case.act_type == "leaky" and float(case.node.attrs.get("slope", "0.25")) >= 0
    return _LEAKY_OUTPUT if signed and case.keeps_output else _LEAKY_INPUT


def _of_softmax(case: _Case) -> str:
    same = case.training.type_of(case.node.inputs[0]) == case.node.outputs[0]  # the gradient has the input's type
    return _MASKED_SOFTMAX if same and case.node.attrs.get("use_length") in ("True", "1") else ""


def _of_concat(case: _Case) -> str:
    """It reads the gradient alone; of empty arrays it has to know."""
    if any(0 in case.training.type_of(entry).shape for entry in case.node.inputs):
        return ""
    return _concat(len(case.node.inputs))


def _concat(terms: int) -> str:
    return f"_backward_Concat>_backward_Concat:0{',0' * terms}"


def _of_sum(case: _Case) -> str:
    """Terms of the sum's own shape and type are not read; another such array is the sum, or its gradient."""
    types = [case.training.type_of(entry) for entry in case.node.inputs]
    own = case.node.outputs[0]
    if any(kind.flag != own.flag for kind in types) or all(kind != own for kind in types):
        return ""
    other = "f0" if case.is_read(Entry(case.number)) else "0"
    reads = [other if kind == own else str(position + 1) for position, kind in enumerate(types)]
    return _sum(case.node.op, *reads)


def _sum(op: str, left: str, right: str) -> str:
    return f"{_SUMS[op]}>{_SUMS[op]}:0,{left},{right}"


_CHOICES: Mapping[str, Callable[[_Case], str]] = {
    "Activation": _of_activation, "LeakyReLU": _of_leaky, "softmax": _of_softmax, "Concat": _of_concat,
    **dict.fromkeys(_SUMS, _of_sum),
}  # fmt: skip


def implementations(
    training: TrainingGraph, exact: bool, onednn: bool, copied: AbstractSet[Entry] = frozenset()
) -> dict[int, str]:
    """For some nodes of the user (by number), on a CPU: an implementation of their gradients that reads less.

    ``training`` is the graph as MXNet makes it; ``onednn`` says whether oneDNN computes gradients of activations.
    Without ``exact`` the implementations may change the last bits. Entries in ``copied`` are not read by operators that
    would keep plain copies of them (`echo.estimators.kept.copied`).
    """
    found: dict[int, str] = {}
    for _, node in training.operators():
        for number in () if node.forward else node.control_deps:
            forward = training.nodes[number]
            if forward.user is None or forward.op not in _CHOICES:
                continue
            text = _CHOICES[forward.op](_Case(training, number, onednn, exact, Entry(number) in copied))
            if text.startswith(f"{node.op}>"):
                found[forward.user] = text
    for number, text in late_gradients(training).items() if onednn else ():
        user = training.nodes[number].user
        if user is not None:
            found[user] = text
    return found


def known(op: str, attrs: Mapping[str, str]) -> frozenset[str]:
    """Every implementation that the gradient of such a node may have."""
    if op == "Activation":
        from_output = _FROM_OUTPUT.get(attrs.get("act_type", ""))
        return frozenset({_ACTIVATION, *([from_output] if from_output else [])})
    if op == "LeakyReLU":
        return frozenset({_LEAKY_INPUT, _LEAKY_OUTPUT})
    if op == "softmax":
        return frozenset({_MASKED_SOFTMAX})
    if op == "Concat":
        return frozenset({_concat(int(attrs["num_args"]))})
    if op == "Convolution":
        return frozenset({late_implementation(False), late_implementation(True)})
    if op not in _SUMS:
        return frozenset()
    return frozenset(_sum(op, left, right) for left in ("0", "f0", "1") for right in ("0", "f0", "2"))
