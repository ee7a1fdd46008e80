"""The type of a row in the table of operators (`echo.ir.ops`): what planning has to know of one operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Callable, Mapping, NamedTuple, Sequence

from echo.ir.attributes import means_true

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
    """The condition that a flag is set."""
    return When(flag, default, means_true)


def unless_set(flag: str, default: str = "False") -> When:
    """The condition that a flag is not set."""
    return When(flag, default, lambda text: not means_true(text))


NEVER, ALWAYS = When("", "", lambda _: False), When("", "", lambda _: True)


class GradientReads(NamedTuple):
    """Which arrays a gradient reads, "1" or "0" for each: of the outputs' gradients, of the inputs, of the outputs."""

    gradients: str
    inputs: str
    outputs: str


class LighterGradient(Enum):
    """The rules by which a gradient may read less than MXNet hands it: `echo.ir.gradients` has them, a family each."""

    ACTIVATION = "activation"
    LEAKY = "leaky"
    MASKED_SOFTMAX = "masked softmax"
    CONCAT = "concat"
    SPLIT = "split"  # a convolution's, in two: `echo.ir.split_gradients`
    SUM = "sum"


@dataclass(frozen=True)
class Layout:
    """How an operator treats oneDNN's blocked layouts of arrays, on the CPU.

    Attributes:
        source: it makes blocked arrays of plain ones.
        keeps: its output has the layout of its input, in place or not.
        hands_on: it is faster on a blocked input, and hands that layout on: it is measured on such an input, too.
        onednn: oneDNN runs it (``TIsMKLDNN`` in MXNet's source), or it copies nothing for longer than it runs. Any
            other operator keeps plain copies of blocked inputs (`echo.estimators.kept`).
        plain: its outputs are plain all the same.
        identity: in place, it leaves its input in the layout that it has; views make it plain.
        indifferent: its gradient reads its own output, and computes the same in any layout of it.
        unsettled: the output of its clone may have another layout than its own: Dropout's clone is a product with the
            mask and has that one's layout, the clone of a copy has the layout of the copy's input.
        blocks_all: all of its outputs may be blocked, and not the first alone; the rest are statistics, workspaces and
            gradients of weights.
    """

    source: bool = False
    keeps: When = NEVER
    hands_on: bool = False
    onednn: When = NEVER
    plain: bool = False
    identity: bool = False
    indifferent: bool = False
    unsettled: bool = False
    blocks_all: bool = False


@dataclass(frozen=True)
class OpSpec:
    """One operator, MXNet's or ours. The defaults are those of an operator without a row, and safe.

    Attributes:
        recomputable: echo may run it a second time in a step, on CPU and on CUDA: it draws no random numbers, keeps no
            state and writes into no input. Where it does, ``clone_op``, ``draws`` and ``rewrites`` say how the second
            run is kept safe, or when there is none. ``tests/ir/test_ops.py`` holds each one to the last bit.
        heavy: graphs are partitioned at it, and it is kept unless a budget needs it: its time grows faster than its
            bytes (Echo, section 4).
        every_output: all of its outputs are feature maps. Of other operators the first is; what follows it (saved
            statistics, masks) is small or random, and stays stashed.
        needs_hook: only the native hook can run it again. MXNet's own mirroring, which runs a clone even where nobody
            reads its output, fails on it, or leaves out a further output that its gradient reads; its clone of Dropout
            would draw another mask.
        needs_cpu: it is recomputed on the CPU alone: cuDNN's mask has a layout that nothing but cuDNN reads.
        clone_op: the operator that computes its first output again, from its input and its second output, a mask.
        rewrites: it writes into its inputs, moving statistics: on CPUs in backward alone, on cuDNN in the forward pass,
            where the hook's clone leaves them as they are (``gradient.cc``).
        draws: it draws random numbers, and MXNet does not say so.
        undrawn: attributes with which it draws nothing, for as long a time: so it is measured.
        draws_in_training: if it draws random numbers, it draws them in training alone.
        of_mode: it has to run again in the mode, training or not, in which it ran before. BatchNorm computes something
            else outside of training, Pooling does not say where its maxima are, and oneDNN may compute heavy operators
            in another way.
        reads_plainly: in both passes it gets at an array only through the inputs of its node, never by a way of its own
            (`echo.ir.readers`).
        movable_inputs: the inputs that may be at another address in backward than in forward, as the outputs of nodes
            that ran again are; all where it is None.
        in_place: its gradient comes out as other numbers where it is computed over an array that it reads.
        looks_early: it looks at its arrays when work is handed out, not when it is done.
        adds_to_memory: its gradients are added to what memory holds.
        takes_attrs: its nodes may be given further attributes.
        unwatched: inputs whose values no result depends on, or that MXNet counts as written in every pass.
        outputs: how many outputs it has, or the attribute that says it.
        gradient: MXNet's name of the operator that computes its gradient, of operators whose gradient is exchanged.
        lighter: the family of rules by which its gradient may read less; None where there are none.
        stateless_as: the operator that computes the same and keeps no state.
        gradient_reads: of a fused operator, what the gradient reads; ``table.cc`` of the kernels says the same.
        flops: the floating-point operations that its time follows; None where it follows the bytes that it moves.
        gathers: it reads no more of its first input than it writes.
        is_free: no kernel runs for it: a variable; a sum that MXNet has the producer of the second term add up (its
            pass DetectInplaceAddTo). Of the 523 in an NMT step and the 272 in an LM step, the profiler saw none; what
            adding takes the producer, if it does, is in `echo.estimators.products`.
        adds_apart: oneDNN computes the gradient of its weight into another array first where that is added to a sum.
        measurable: it may run outside of the user's graph, on numbers without meaning.
        in_gradients: MXNet adds it to gradients, where it needs no attribute but the number of inputs.
        counts_inputs: its attribute ``num_args`` is the number of its inputs.
        has_parameters: the batch is the leading dimension of its first input alone; the others are parameters.
        packs_parameters: each call packs its parameters first, which takes time whatever the batch is.
        is_index: its first input holds numbers of rows of its second.
        layout: what it does with oneDNN's layouts.
    """

    recomputable: bool = False
    heavy: bool = False
    every_output: bool = False
    needs_hook: bool = False
    needs_cpu: bool = False
    clone_op: str = ""
    rewrites: bool = False
    draws: When = NEVER
    undrawn: Mapping[str, str] = field(default_factory=dict)
    draws_in_training: When = NEVER
    of_mode: When = NEVER
    reads_plainly: bool = False
    movable_inputs: frozenset[int] | None = None
    in_place: When = NEVER
    looks_early: bool = False
    adds_to_memory: bool = False
    takes_attrs: bool = True
    unwatched: Mapping[int, When] = field(default_factory=dict)
    outputs: int | str = 1
    gradient: str = ""
    lighter: LighterGradient | None = None
    stateless_as: str = ""
    gradient_reads: GradientReads | None = None
    flops: Formula | None = None
    gathers: bool = False
    is_free: bool = False
    adds_apart: bool = False
    measurable: bool = False
    in_gradients: bool = False
    counts_inputs: bool = False
    has_parameters: bool = False
    packs_parameters: bool = False
    is_index: bool = False
    layout: Layout = field(default_factory=Layout)
