"""The types of what is known about an operator: its attributes, rules for its gradient, and `OpSpec`."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Callable, Mapping, NamedTuple, Sequence

# Attributes of nodes by which a plan is written into a graph, and how MXNet writes flags.

# Read by the native hook: the recomputed outputs, as "0" or "0,2"; where a node is recomputed more than once, or not
# for all backward nodes, then the backward nodes at which that begins, counted from 0, as "0@17,230".
PLAN_ATTRIBUTE = "__echo_recompute__"
# Read by the native hook: the match range of MXNet's memory planner, -1 for echo's own assignment, -1s for that of a
# CachedOp with static_alloc, in which MXNet computes sums of gradients in place.
RANGE_ATTRIBUTE = "__echo_match_range__"
GRADIENT_ATTRIBUTE = "__echo_gradient__"  # read by the native hook: another implementation of the gradient
# Read by the native hook (``inplace.cc``): "OPERATOR:INPUT>OUTPUT,...;OPERATOR:..." must not be computed in place.
NO_INPLACE_ATTRIBUTE = "__echo_apart__"
COPY_ATTRIBUTE = "__echo_copies__"  # read by the native hook: which gradients of this operator are copied
SIGNS_ATTRIBUTE = "__echo_signs__"  # read by the native hook (``batch_norm.cc``): the signs of this node are checked
MIRROR_ATTRIBUTE = "__force_mirroring__"  # read by MXNet itself
OF_PLANS = (PLAN_ATTRIBUTE, RANGE_ATTRIBUTE, MIRROR_ATTRIBUTE, GRADIENT_ATTRIBUTE, NO_INPLACE_ATTRIBUTE)
HOOK_ATTRIBUTES = (PLAN_ATTRIBUTE, RANGE_ATTRIBUTE, GRADIENT_ATTRIBUTE, NO_INPLACE_ATTRIBUTE, COPY_ATTRIBUTE)


def is_true(attrs: Mapping[str, str], name: str, default: str = "False") -> bool:
    """Whether an MXNet flag is set, which is ``default`` where the attributes do not say."""
    return means_true(attrs.get(name, default))


def means_true(text: str) -> bool:
    """Whether MXNet reads a flag of this text as set: upper and lower case are the same to it."""
    return text.lower() in ("true", "1")


# A gradient rule: the operator that takes the place of an MXNet gradient, and the arrays that it reads.


class Source(Enum):
    """The place where a gradient finds an input; its value is the letter for it in texts for the native hook."""

    GRADIENT = ""  # among the inputs of the gradient that it takes the place of
    FORWARD = "f"  # among the outputs of the forward node
    SUM = "s"  # the last other term of the sum that the gradient is a term of (`echo.ir.gradient_rules`)


class Read(NamedTuple):
    """One input of a gradient: where it is found, and at which position; a term of a sum has none."""

    source: Source
    position: int = 0

    @property
    def text(self) -> str:
        """The text that the native hook reads."""
        return self.source.value if self.source is Source.SUM else f"{self.source.value}{self.position}"

    @staticmethod
    def parse(text: str) -> Read:
        """The inverse of `text`."""
        if text == Source.SUM.value:
            return Read(Source.SUM)
        source = Source.FORWARD if text.startswith(Source.FORWARD.value) else Source.GRADIENT
        return Read(source, int(text[len(source.value) :]))


@dataclass(frozen=True)
class GradientRule:
    """The gradient ``before`` becomes ``after``, which reads these ``inputs``.

    As a text, for the native hook and in files: ``BEFORE>AFTER:0,2,f0`` reads the inputs 0 and 2 of BEFORE and output 0
    of the forward node. With an ``s`` among the inputs, AFTER is a second node alongside BEFORE.
    """

    before: str
    after: str
    inputs: tuple[Read, ...]

    @property
    def splits(self) -> bool:
        """Whether ``after`` is a second node alongside ``before``."""
        return any(read.source is Source.SUM for read in self.inputs)

    @property
    def exchange(self) -> str:
        """The pair of gradients as a text, by which the native hook is told that it may exchange them."""
        return f"{self.before}>{self.after}"

    @property
    def text(self) -> str:
        """The text that the native hook reads."""
        return f"{self.exchange}:{','.join(read.text for read in self.inputs)}"

    @staticmethod
    def parse(text: str) -> GradientRule:
        """The inverse of `text`.

        Raises:
            ValueError: it is no such text.
        """
        return _parsed(text)


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> GradientRule:
    before, _, rest = text.partition(">")
    after, _, inputs = rest.partition(":")
    return GradientRule(before, after, tuple(map(Read.parse, inputs.split(","))))


def own_inputs(*positions: int) -> tuple[Read, ...]:
    """The inputs of the gradient itself at these positions."""
    return tuple(Read(Source.GRADIENT, position) for position in positions)


# The type of a row in the table of operators (`echo.ir.ops`): what planning has to know of one operator.

Shape = Sequence[int]
# From the shapes of the inputs and that of the first output: the floating-point operations of one run.
Formula = Callable[[Sequence[Shape], Shape], float]


@dataclass(frozen=True)
class When:
    """A condition on a node: for which texts of one attribute, with its default, something holds."""

    attribute: str
    default: str
    holds: Callable[[str], bool]

    def __call__(self, attrs: Mapping[str, str]) -> bool:
        return self.holds(attrs.get(self.attribute, self.default))

    def shown(self, attrs: Mapping[str, str]) -> str:
        """The attribute with its text, for the user's eyes."""
        return f"{self.attribute}={attrs.get(self.attribute, self.default)}"


def when(attribute: str, default: str, *values: str) -> When:
    """The condition that an attribute has one of these values."""
    return When(attribute, default, frozenset(values).__contains__)


def unless(attribute: str, default: str, *values: str) -> When:
    """The condition that an attribute has none of these values."""
    return When(attribute, default, lambda text: text not in values)


def when_set(flag: str, default: str = "False") -> When:
    return When(flag, default, means_true)


def unless_set(flag: str, default: str = "False") -> When:
    return When(flag, default, lambda text: not means_true(text))


NEVER, ALWAYS = When("", "", lambda _: False), When("", "", lambda _: True)


class GradientReads(NamedTuple):
    """Which arrays a gradient reads, "1" or "0" for each: of the outputs' gradients, of the inputs, of the outputs."""

    gradients: str
    inputs: str
    outputs: str


class GradientRuleFamily(Enum):
    """Families of rules by which a gradient reads less than MXNet hands it (`echo.ir.gradient_rules`)."""

    ACTIVATION = "activation"
    LEAKY = "leaky"
    MASKED_SOFTMAX = "masked softmax"
    CONCAT = "concat"
    SPLIT = "split"  # a convolution's, in two: `echo.ir.gradient_rules`
    SUM = "sum"


@dataclass(frozen=True)
class Layout:
    """How an operator treats oneDNN's blocked layouts of arrays, on the CPU.

    Attributes:
        source: it makes blocked arrays of plain ones.
        keeps: its output has the layout of its input, in place or not.
        propagates_layout: it is faster on a blocked input and hands that layout on, so it is measured on such an input,
            too.
        onednn: oneDNN runs it (``TIsMKLDNN`` in MXNet's source), or it copies nothing for longer than it runs. Any
            other operator keeps plain copies of blocked inputs (`echo.estimators.layouts`).
        plain: its outputs are plain all the same.
        identity: in place, it leaves its input in the layout that it has; views make it plain.
        layout_invariant_grad: its gradient reads its own output, and computes the same in any layout of it.
        clone_layout_may_differ: the output of its clone may have another layout than its own: Dropout's clone is a
            product with the mask and has that one's layout, the clone of a copy has the layout of the copy's input.
        blocks_all: all of its outputs may be blocked, and not the first alone; the rest are statistics, workspaces and
            gradients of weights.
    """

    source: bool = False
    keeps: When = NEVER
    propagates_layout: bool = False
    onednn: When = NEVER
    plain: bool = False
    identity: bool = False
    layout_invariant_grad: bool = False
    clone_layout_may_differ: bool = False
    blocks_all: bool = False


@dataclass(frozen=True)
class Safety:
    """Whether an operator may be recomputed in a step, and whether the arrays that it reads may move.

    Attributes:
        recomputable: echo may run it a second time in a step, on CPU and on CUDA: it draws no random numbers, keeps no
            state and writes into no input. Where it does, ``clone_op``, ``draws`` and ``rewrites`` say how the second
            run is kept safe, or when there is none. ``tests/ir/test_ops.py`` holds each one to the last bit.
        every_output: all of its outputs are feature maps. Of other operators the first is; the others (saved
            statistics, masks) are small or random, and stay stashed.
        needs_hook: only the native hook can recompute it. MXNet's own mirroring, which runs a clone even where nothing
            reads its output, fails on it, or leaves out a further output that its gradient reads; its clone of Dropout
            would draw another mask.
        needs_cpu: it is recomputed only on the CPU: cuDNN's mask has a layout that nothing but cuDNN reads.
        clone_op: the operator that recomputes its first output, from its input and its second output, a mask.
        rewrites: it writes into its inputs, moving statistics: on CPUs only in backward, on cuDNN in the forward pass,
            where the hook's clone leaves them as they are (``gradient.cc``).
        train_mode_sensitive: it has to be recomputed in the mode, training or not, in which it ran before. BatchNorm
            computes something else outside of training, Pooling does not say where its maxima are, and oneDNN may
            compute heavy operators in another way.
        training_outputs: its gradient reads an output that it writes in training alone, whatever else it computes
            outside of it: the signs of what oneDNN normalizes.
        address_stable_reads: in both passes it gets at an array only through the inputs of its node, never by a way of
            its own (`echo.ir.training_node`).
        movable_inputs: the inputs that may be at another address in backward than in forward, as the outputs of
            recomputed nodes are; all where it is None.
        reads_at_dispatch: it looks at its arrays when work is handed out, not when it is done.
        takes_attrs: its nodes may be given further attributes.
        exempt_from_write_check: inputs whose values no result depends on, or that MXNet counts as written in every
            pass.
    """

    recomputable: bool = False
    every_output: bool = False
    needs_hook: bool = False
    needs_cpu: bool = False
    clone_op: str = ""
    rewrites: bool = False
    train_mode_sensitive: When = NEVER
    training_outputs: bool = False
    address_stable_reads: bool = False
    movable_inputs: frozenset[int] | None = None
    reads_at_dispatch: bool = False
    takes_attrs: bool = True
    exempt_from_write_check: Mapping[int, When] = field(default_factory=dict)


@dataclass(frozen=True)
class RandomNumbers:
    """Which random numbers an operator draws.

    Attributes:
        draws: it draws random numbers, and MXNet does not say so.
        draws_in_training: if it draws random numbers, it draws them only in training.
        attrs_without_rng: attributes with which it draws nothing, for as long a time: so it is measured.
    """

    draws: When = NEVER
    draws_in_training: When = NEVER
    attrs_without_rng: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GradientFacts:
    """How the gradient of an operator is computed, and what the operator does in gradients.

    Attributes:
        gradient_op: MXNet's name of the operator that computes its gradient, of operators whose gradient is exchanged.
        rule_family: the family of rules by which its gradient may read less; None where there are none.
        gradient_reads: of a fused operator, what the gradient reads; ``table.cc`` of the kernels says the same.
        in_place: its gradient comes out as other numbers where it is computed over an array that it reads.
        adds_to_memory: its gradients are added to what memory holds.
        unfused_weight_grad: oneDNN computes the gradient of its weight into another array first where that is added to
            a sum.
        in_gradients: MXNet adds it to gradients, where it needs no attribute but the number of inputs.
    """

    gradient_op: str = ""
    rule_family: GradientRuleFamily | None = None
    gradient_reads: GradientReads | None = None
    in_place: When = NEVER
    adds_to_memory: bool = False
    unfused_weight_grad: bool = False
    in_gradients: bool = False


@dataclass(frozen=True)
class CostFacts:
    """What the time of an operator depends on, and how it is measured.

    Attributes:
        heavy: graphs are partitioned at it, and it runs twice only where that saves enough: its time grows faster than
            its bytes (Echo, section 4).
        flops: the floating-point operations that its time follows; None where it follows the bytes that it moves.
        gathers: it reads no more of its first input than it writes.
        is_free: no kernel runs for it: a variable; a sum that MXNet has the producer of the second term add up (its
            pass DetectInplaceAddTo). Of the 523 in an NMT step and the 272 in an LM step, the profiler saw none; what
            adding takes the producer, if it does, is in `echo.estimators.operator_groups`.
        measurable: it may run outside of the original graph, on numbers without meaning.
        has_parameters: the batch is the leading dimension of its first input alone; the others are parameters.
        packs_parameters: each call packs its parameters first, which takes time whatever the batch is.
        is_index: its first input holds numbers of rows of its second.
    """

    heavy: bool = False
    flops: Formula | None = None
    gathers: bool = False
    is_free: bool = False
    measurable: bool = False
    has_parameters: bool = False
    packs_parameters: bool = False
    is_index: bool = False


@dataclass(frozen=True)
class OpSpec:
    """The facts about one operator, MXNet's or ours. The defaults are those of an operator without a row, and safe.

    Attributes:
        outputs: how many outputs it has, or the attribute that says it.
        counts_inputs: its attribute ``num_args`` is the number of its inputs.
    """

    outputs: int | str = 1
    counts_inputs: bool = False
    safety: Safety = Safety()
    random: RandomNumbers = RandomNumbers()
    gradient: GradientFacts = GradientFacts()
    cost: CostFacts = CostFacts()
    layout: Layout = Layout()

    def having(self, **facts: Any) -> OpSpec:
        """Returns a copy with other facts, each given by its own name, whichever group it belongs to.

        Raises:
            TypeError: no fact has this name.
        """
        own = {name: facts.pop(name) for name in ("outputs", "counts_inputs", "layout") if name in facts}
        groups = {}
        for name in ("safety", "random", "gradient", "cost"):
            group = getattr(self, name)
            of_group = {fact: facts.pop(fact) for fact in list(facts) if fact in group.__dataclass_fields__}
            groups[name] = replace(group, **of_group) if of_group else group
        if facts:
            raise TypeError(f"unknown facts about an operator: {', '.join(facts)}")
        return replace(self, **own, **groups)
