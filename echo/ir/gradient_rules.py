"""Rules by which gradients read less, or are split, with the same bits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import AbstractSet, Callable, Mapping, NamedTuple

from echo.ir.graph import PREFIX, READS, Entry
from echo.ir.op_spec import GradientRule, GradientRuleFamily, Read, Source, is_true, own_inputs
from echo.ir.ops import ops_with, spec
from echo.ir.training_graph import Runner, TrainingGraph
from echo.ir.training_node import TrainingNode

# Gradients of convolutions in two nodes: the weights' at once, the data's as late as it can be.
#
# Where several convolutions read the same feature map, its gradient is a sum. The feature map has to be in memory until
# the last convolution's gradient is computed, alongside all other terms: it is there that ResNets and Inception
# networks need the most. But only the gradients of weights read it. So one of these gradients becomes two nodes: that
# of the weights runs before the last of the others, and that of the data after it, when the feature map is gone. Each
# product is still computed once, by the same primitive of oneDNN, to the same bits. This costs the output's gradient of
# that convolution, which has to wait: it is taken where that is smaller than the feature map.
#
# Not in a CachedOp: what waits keeps the other gradient in the graph, also where layers are frozen and nothing needs
# it. BatchNorm's gradient, which MXNet leaves out then, would update the moving statistics. It saves 1.5 % there.
#
# In MXNet's source, ``MKLDNNConvolutionBackward`` computes both gradients, or one if the other's ``req`` is
# ``kNullOp``; of the data, the data's gradient reads shape and type alone, and where it is left out, its memory is
# never touched.

_CONVOLUTION = "_backward_Convolution"
SUM = "add_n"  # MXNet's sum of up to seven gradients
_CUDNN_LAYOUTS = ("None", "NCW", "NCHW", "NCDHW")
_AXES = (3, 4, 5)  # of feature maps that oneDNN's convolutions take, which have to be of float32


def split_rule(has_bias: bool) -> GradientRule:
    """The rule for a convolution's gradient in two nodes.

    The second node reads the output's gradient and the weight, and as data it is given the last other term.
    """
    gradient, *rest = own_inputs(0, 2, 3) if has_bias else own_inputs(0, 2)
    return GradientRule(_CONVOLUTION, _CONVOLUTION, (gradient, Read(Source.SUM), *rest))


def split_gradients(training: TrainingGraph, cudnn: bool = False) -> dict[int, GradientRule]:
    """The convolutions, by number, whose gradients are worth two nodes; of each sum of gradients at most one.

    With ``cudnn``, of those convolutions alone that cuDNN computes for sure: it, too, leaves out a gradient whose
    ``req`` is ``kNullOp``, MXNet's own CUDA code does not.
    """
    sums = [(node, terms) for _, node in training.operators() if len(terms := _terms(training, node.inputs, cudnn)) > 1
            and node.op == SUM and not node.forward]  # fmt: skip
    if not sums:
        return {}
    reads = Counter(Entry(entry.node, entry.index) for node in training.nodes for entry in node.inputs)
    reads.update(Entry(entry.node, entry.index) for entry in training.outputs)
    rules: dict[int, GradientRule] = {}
    for node, terms in sums:
        size = node.outputs[0].bytes
        kept = {term: training.type_of(training.nodes[term].inputs[0]).bytes for term in terms[:-1]}
        offered = [term for term in kept if kept[term] < size and reads[Entry(term)] == 1]
        if offered:
            gradient = training.nodes[min(offered, key=lambda term: kept[term])]
            rules[gradient.control_deps[0]] = split_rule(len(gradient.inputs) > 3)
    return rules


def _terms(training: TrainingGraph, inputs: tuple[Entry, ...], cudnn: bool) -> list[int]:
    """The gradients of convolutions, in the order in which they run, whose first outputs are among these entries."""
    return sorted(entry.node for entry in inputs if entry.index == 0 and _is_offered(training, entry.node, cudnn))


def _is_offered(training: TrainingGraph, number: int, cudnn: bool) -> bool:
    node = training.nodes[number]
    tensor = node.outputs[0]
    if node.op != _CONVOLUTION or tensor.dtype != "float32" or len(tensor.shape) not in _AXES:
        return False
    attrs = training.nodes[node.control_deps[0]].attrs
    return not cudnn or (attrs.get("layout", "None") in _CUDNN_LAYOUTS and not is_true(attrs, "cudnn_off"))


# Other implementations of MXNet's gradients, which read less: what stays in memory for them is a choice.
#
# Many gradient operators are handed more than they read: oneDNN's of tanh takes the input and the output of the forward
# pass, and computes from the input alone. Where MXNet's source says that an input is never read, it may be given
# another array of the same shape, and the bits stay as they are. They also stay where another formula comes to the same
# bits, as that of sigmoid from its output, with whatever instructions oneDNN uses; that of tanh from its output changes
# last bits, and is no rule. ``tests/ir/test_gradient_rules_gradients.py`` checks the rules one by one. (Implementations
# as choices: MONeT, Shah et al., ICLR 2021.)

_MOST_AXES = 5  # beyond which, and for other types than float32, MXNet does not ask oneDNN
_ONEDNN_ACTIVATIONS = frozenset({"tanh", "sigmoid", "softrelu"})


def _reading(gradient: str, *inputs: int) -> GradientRule:
    """The rule by which the same gradient reads these of its inputs, each instead of the input at its position."""
    return GradientRule(gradient, gradient, own_inputs(*inputs))


_ACTIVATION = _reading("_backward_Activation", 0, 2, 2)  # reads the input alone
_LEAKY_INPUT, _LEAKY_OUTPUT = (_reading("_backward_LeakyReLU", 0, read, read) for read in (1, 2))
_MASKED_SOFTMAX = _reading("_backward_softmax", 0, 3, 2, 3)  # reads the output and the lengths
_FROM_OUTPUT = GradientRule("_backward_Activation", "_backward_sigmoid", own_inputs(0, 1))
_GRADIENT, *_TERMS = own_inputs(0, 1, 2)  # what the gradient of a sum is handed: that of the total, and the terms
_TOTAL = Read(Source.FORWARD, 0)


@dataclass(frozen=True)
class _Case:
    """A forward node whose gradient may read less. ``onednn``: oneDNN computes gradients of activations.

    ``copied``: a gradient that is not oneDNN's would keep a plain copy of the node's output. ``in_place``: the gradient
    may write over the output's gradient, which it cannot if it reads that twice.
    """

    training: TrainingGraph
    number: int
    onednn: bool
    copied: bool
    in_place: bool

    @property
    def node(self) -> TrainingNode:
        return self.training.nodes[self.number]

    @property
    def act_type(self) -> str:
        return self.node.attrs.get("act_type", "leaky")

    @property
    def by_onednn(self) -> bool:
        tensor = self.node.outputs[0]
        return self.onednn and tensor.dtype == "float32" and 1 <= len(tensor.shape) <= _MOST_AXES

    @property
    def keeps_output(self) -> bool:
        """Whether the output stays in memory for another gradient anyway, or no other gradient reads the input."""
        return self.is_read(Entry(self.number)) or not self.is_read(self.node.inputs[0])

    def is_read(self, entry: Entry) -> bool:
        """Whether the gradient of another node reads an entry."""
        readers = self.training.backward_readers.get(Entry(entry.node, entry.index), ())
        return any(self.number not in self.training.nodes[reader].control_deps for reader in readers)


def _of_activation(case: _Case) -> GradientRule | None:
    from_output = case.keeps_output and not case.copied
    if case.act_type == "sigmoid" and case.by_onednn and from_output:
        return _FROM_OUTPUT  # which has the bits of oneDNN's
    reads_input = case.act_type == "softsign" or (case.act_type in _ONEDNN_ACTIVATIONS and case.by_onednn)
    return _ACTIVATION if reads_input else None


def _of_leaky(case: _Case) -> GradientRule | None:
    if case.act_type == "selu":
        return _LEAKY_OUTPUT
    if not spec(case.node.op).layout.onednn(case.node.attrs) or not case.by_onednn:
        return None
    # of a leaky ReLU that keeps the sign it reads no more than that
    signed = case.act_type == "leaky" and float(case.node.attrs.get("slope", "0.25")) >= 0
    return _LEAKY_OUTPUT if signed and case.keeps_output else _LEAKY_INPUT


def _of_softmax(case: _Case) -> GradientRule | None:
    same = case.training.type_of(case.node.inputs[0]) == case.node.outputs[0]  # the gradient has the input's type
    return _MASKED_SOFTMAX if same and is_true(case.node.attrs, "use_length") else None


def _of_concat(case: _Case) -> GradientRule | None:
    """The gradient of Concat reads the output's gradient alone; where a term is empty, it needs to see that."""
    if any(0 in case.training.type_of(entry).shape for entry in case.node.inputs):
        return None
    return _concat(len(case.node.inputs))


def _concat(terms: int) -> GradientRule:
    return _reading("_backward_Concat", *[0] * (terms + 1))


def _of_sum(case: _Case) -> GradientRule | None:
    """Terms of the sum's shape and type are not read: the sum, its gradient or one of them may stand for both."""
    types = [case.training.type_of(entry) for entry in case.node.inputs]
    total = case.node.outputs[0]
    unread = [term for tensor, term in zip(types, _TERMS) if tensor == total]
    if any(tensor.flag != total.flag for tensor in types) or not unread:
        return None
    if case.is_read(Entry(case.number)):
        read = _TOTAL
    elif not case.in_place:
        read = _GRADIENT
    else:
        kept = [term for term in unread if case.is_read(case.node.inputs[_TERMS.index(term)])]
        read = (kept or unread)[0]
    terms = [read if term in unread else term for term in _TERMS]
    return None if terms == _TERMS else _sum(case.node.op, *terms)


def _sum(op: str, left: Read, right: Read) -> GradientRule:
    return GradientRule(spec(op).gradient.gradient_op, spec(op).gradient.gradient_op, (_GRADIENT, left, right))


class _Rules(NamedTuple):
    """A family of rules: which is chosen where, and which there are for an operator with these attributes."""

    choose: Callable[[_Case], GradientRule | None]
    offered: Callable[[str, Mapping[str, str]], tuple[GradientRule, ...]]


def _sums(op: str, _: Mapping[str, str]) -> tuple[GradientRule, ...]:
    return tuple(_sum(op, *pair) for pair in product((_GRADIENT, _TOTAL, *_TERMS), repeat=2))


def _activations(_: str, attrs: Mapping[str, str]) -> tuple[GradientRule, ...]:
    return (_ACTIVATION, _FROM_OUTPUT) if attrs.get("act_type") == "sigmoid" else (_ACTIVATION,)


_FAMILIES: Mapping[GradientRuleFamily, _Rules] = {
    GradientRuleFamily.ACTIVATION: _Rules(_of_activation, _activations),
    GradientRuleFamily.LEAKY: _Rules(_of_leaky, lambda *_: (_LEAKY_INPUT, _LEAKY_OUTPUT)),
    GradientRuleFamily.MASKED_SOFTMAX: _Rules(_of_softmax, lambda *_: (_MASKED_SOFTMAX,)),
    GradientRuleFamily.CONCAT: _Rules(_of_concat, lambda _, attrs: (_concat(int(attrs["num_args"])),)),
    GradientRuleFamily.SPLIT: _Rules(
        lambda _: None, lambda *_: (split_rule(False), split_rule(True))
    ),  # chosen by sums
    GradientRuleFamily.SUM: _Rules(_of_sum, _sums),
}
_SUM_GRADIENTS = {
    spec(op).gradient.gradient_op for op in ops_with(lambda row: row.gradient.rule_family is GradientRuleFamily.SUM)
}
# The pairs of gradients that the native hook may exchange; fused operators bring their own.
EXCHANGES = frozenset(
    rule.exchange
    for rule in (
        _ACTIVATION, _LEAKY_INPUT, _MASKED_SOFTMAX, _FROM_OUTPUT, split_rule(True), _concat(1),
        *(_reading(gradient) for gradient in sorted(_SUM_GRADIENTS)),
        *(_reading(f"_backward_{PREFIX}{kernel}") for kernel in READS),
    )
)  # fmt: skip


def gradient_rules(
    training: TrainingGraph,
    onednn: bool,
    copied: AbstractSet[Entry] = frozenset(),
    cudnn: bool = False,
    in_place: AbstractSet[int] = frozenset(),
) -> dict[int, GradientRule]:
    """For some nodes of the user (by number): a rule by which their gradients read less.

    ``training`` is the graph as MXNet makes it; ``onednn`` says whether oneDNN computes gradients of activations and
    convolutions, ``cudnn`` whether cuDNN does those of convolutions, whose sums are written, not added to.
    The rules keep every bit. Entries in ``copied`` are not read by operators that would keep plain copies of them
    (`echo.estimators.layouts.copied`). Gradients in ``in_place`` may work in place over their first input
    (`echo.estimators.inplace.over_first_input`).
    """
    may_split = (onednn or cudnn) and training.runner == Runner.EXECUTOR
    rules: dict[int, GradientRule] = {}
    for gradient, node in training.operators():
        for number in () if node.forward else node.control_deps:
            forward = training.nodes[number]
            family = spec(forward.op).gradient.rule_family
            if forward.original is None or family is None:
                continue
            case = _Case(training, number, onednn, Entry(number) in copied, gradient in in_place)
            rule = _FAMILIES[family].choose(case)
            if rule is not None and rule.before == node.op:
                rules[forward.original] = rule
    for number, rule in split_gradients(training, cudnn).items() if may_split else ():
        original = training.nodes[number].original
        if original is not None:
            rules[original] = rule
    return rules


def known(op: str, attrs: Mapping[str, str]) -> frozenset[GradientRule]:
    """Every rule that the gradient of a node with this operator and these attributes may have."""
    family = spec(op).gradient.rule_family
    return frozenset() if family is None else frozenset(_FAMILIES[family].offered(op, attrs))
