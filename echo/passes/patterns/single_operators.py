"""Patterns of one or two operators: layer norms, reversals, biases with activations, and masks as bits."""

from __future__ import annotations

import numpy as np

from echo.ir.graph import Entry, Node, fused_node, walk
from echo.ir.op_spec import SIGNS_ATTRIBUTE, is_true
from echo.ir.ops import spec
from echo.ir.training_node import why_not_dropout
from echo.passes.patterns.graph_view import ACTIVATED, Fusion, Pattern, View, local

# A layer norm by itself: MXNet's own takes several times as long on CPUs.


def match_layer_norm(view: View, number: int) -> Fusion | str | None:
    """The layer norm over the last axis that this node is: a fusion, why there is none, or None."""
    node = view.graph.nodes[number]
    if node.op != "LayerNorm":
        return None
    if node.attrs.get("axis", "-1") != "-1":
        return f"a layer norm over axis {node.attrs['axis']}: expected the last one, -1"
    if is_true(node.attrs, "output_mean_var") or view.read_outside(frozenset({number}), (Entry(number),)):
        return "a layer norm whose mean and variance are read"
    attrs = {"eps": node.attrs.get("eps", "1e-05")}
    return Fusion(
        pattern=LAYER_NORM.name,
        anchor=number,
        nodes=(fused_node(LAYER_NORM.name, node.name, node.inputs, attrs),),
        outputs={Entry(number): local(0)},
        replaced=frozenset({number}),
        shapes={node.inputs[0]: "...H", node.inputs[1]: "H", node.inputs[2]: "H"},
        label="a layer norm",
        min_bytes=(node.inputs[0], 1 << 16),
    )


LAYER_NORM = Pattern("layer_norm", frozenset({"LayerNorm"}), match_layer_norm)


# A reversal of sequences by itself: MXNet's own runs on one thread, and takes several times as long.


def match_sequence_reverse(view: View, number: int) -> Fusion | str | None:
    """The reversal along the first axis that this node is: a fusion, or None."""
    node = view.graph.nodes[number]
    if node.op != "SequenceReverse" or node.attrs.get("axis", "0") != "0":
        return None
    data = node.inputs[0]
    lengths = node.inputs[1] if is_true(node.attrs, "use_sequence_length") else None
    shapes = {data: "T,B,R"}
    if lengths is not None:
        shapes[lengths] = "B"
    return Fusion(
        pattern=SEQUENCE_REVERSE.name,
        anchor=number,
        nodes=(fused_node(SEQUENCE_REVERSE.name, node.name, (data, lengths)),),
        outputs={Entry(number): local(0)},
        replaced=frozenset({number}),
        shapes=shapes,
        label="a reversal of sequences",
        min_bytes=(node.inputs[0], 1 << 16),
    )


SEQUENCE_REVERSE = Pattern("sequence_reverse", frozenset({"SequenceReverse"}), match_sequence_reverse)


# A BatchNorm and the ReLU after it, as MXNet's own operator in which oneDNN computes both, in one pass over memory.
#
# A step of ResNet-50 v2 takes 0.91 of the time. Most bits are the same: where MXNet brings arrays into another order
# first, sums are added up in another one. NaNs may come out as zeros, as they do of MXNet's Activation: its operator
# ``relu`` keeps them, so that an overflow is seen, and stays. The operator also writes an array of a quarter of its
# output's bytes, in which oneDNN keeps the signs until backward.


def match_batch_norm_relu(view: View, number: int) -> Fusion | str | None:
    """The ReLU of a BatchNorm that this node is: a fusion, why there is none, or None."""
    output = Entry(number)
    normalized = view.activated(output, "relu")
    if normalized is None or not view.setting.onednn_norm or view.node(normalized).op != "BatchNorm":
        return None
    norm = view.node(normalized)
    if view.graph.nodes[number].op != "Activation":
        return "the operator relu keeps NaNs: expected Activation"
    if norm.attrs.get("axis", "1") != "1":
        return f"a BatchNorm over axis {norm.attrs['axis']}: expected axis 1"
    replaced, x, gamma = frozenset({number, normalized.node}), *norm.inputs[:2]
    if not _keeps_order(view, x):
        return f"operators that are not oneDNN's compute or read the input of {norm.name!r}"
    if normalized.index or is_true(norm.attrs, "output_mean_var") or view.read_outside(replaced, (output,)):
        return f"{norm.name!r} is read by others than the ReLU"
    attrs = {**norm.attrs, SIGNS_ATTRIBUTE: "True"}
    return Fusion(
        pattern=BATCH_NORM_RELU.name,
        anchor=number,
        nodes=(Node("_contrib_BatchNormWithReLU", view.graph.nodes[number].name, norm.inputs, attrs=attrs),),
        outputs={output: local(0)},
        replaced=replaced,
        shapes={x: "N,C,Y,X", gamma: "C"},
        shape_source=x,
        label="a BatchNorm with its ReLU",
        dtypes=("float32",),
    )


def _keeps_order(view: View, entry: Entry) -> bool:
    """Whether an array comes in oneDNN's order from convolutions, and nothing that reads it brings it into another.

    A plain array would have the gradient in another order than MXNet's own, and so other last bits. A Reshape makes an
    array plain where it is.
    """
    nodes = view.graph.nodes

    def above(number: int) -> list[int]:
        facts = spec(nodes[number].op)
        inputs = nodes[number].inputs[:1] if facts.cost.has_parameters else nodes[number].inputs
        return [] if facts.layout.source else [each.node for each in inputs]

    numbers = [*view.readers[entry], *walk([entry.node], above)]
    layouts = (spec(nodes[number].op).layout for number in numbers)
    return min(numbers) >= 0 and all(layout.source or layout.propagates_layout for layout in layouts)


BATCH_NORM_RELU = Pattern(
    "batch_norm_relu", ACTIVATED, match_batch_norm_relu, reads=frozenset({"BatchNorm"}), is_quiet=True
)


# A bias and the activation after it, as one operator whose gradient reads the output alone.
#
# MXNet's broadcast_add and above all its gradient, a sum over rows, take some seven times as long. A FullyConnected
# adds its bias within the product: there it would save 0 to 8 % of the layer's time, and need a seventh more memory
# for it.

_ACTIVATIONS = ("relu", "sigmoid", "tanh", "softrelu")  # in the order of the kernel's numbers for them
_SUMS = ("broadcast_add", "_npi_add")


def match_bias_act(view: View, number: int) -> Fusion | str | None:
    """The activation of a sum with a bias that this node is: a fusion, why there is none, or None."""
    output = Entry(number)
    act = next((act for act in _ACTIVATIONS if view.activated(output, act) is not None), None)
    if act is None:
        return None
    total = view.graph.nodes[number].inputs[0]
    if view.inputs(total, ("FullyConnected",)) and not is_true(view.node(total).attrs, "no_bias"):
        return f"the bias of {view.node(total).name!r} is added within its product, where it costs next to nothing"
    operands = view.inputs(total, _SUMS)
    if operands is None or not any(_is_bias(view, operand) for operand in operands):
        return None
    x, bias = operands
    if not _is_bias(view, bias):
        return f"what may be a bias comes first in {view.node(total).name!r}: the order of arguments would change"
    replaced = frozenset({number, total.node})
    if view.read_outside(replaced, (output,)):
        return f"the sum {view.node(total).name!r} with a bias is read by others than the activation"
    return Fusion(
        pattern=BIAS_ACT.name,
        anchor=number,
        nodes=(
            fused_node(BIAS_ACT.name, view.graph.nodes[number].name, (x, bias), {"act": str(_ACTIVATIONS.index(act))}),
        ),
        outputs={output: local(0)},
        replaced=replaced,
        shapes={x: "...N,H", bias: "1?,H"},
        shape_source=x,
        label="a bias with its activation",
    )


def _is_bias(view: View, entry: Entry) -> bool:
    """Whether an entry is a variable, perhaps reshaped, and so may be a bias; its shape is checked later."""
    source = view.inputs(entry, ("Reshape", "_np_reshape", "_npx_reshape"))
    return view.node(source[0] if source else entry).is_variable


BIAS_ACT = Pattern("bias_act", ACTIVATED, match_bias_act, reads=frozenset({"FullyConnected", *_SUMS}), is_quiet=True)


# Dropout with its mask as bits: MXNet keeps a number for each element until backward.

LEAST_DROPPED = 1e-3  # what float16 can tell from nothing, where the first element says whether anything is dropped


def match_dropout(view: View, number: int) -> Fusion | str | None:
    """The Dropout that this node is: a fusion, why there is none, or None.

    The product of mask and input is the output of Dropout, to the last bit (on CUDA with cudnn_off: cuDNN may round
    float16 in another way, and drops infinities).
    """
    node = view.graph.nodes[number]
    if node.op != "Dropout":
        return None
    reason = why_not_dropout(node.attrs)
    if reason:
        return reason
    p = float(node.attrs.get("p", "0.5"))
    if p >= 1:
        return "a Dropout that keeps nothing"
    if view.read_outside(frozenset({number}), (Entry(number),)):
        return "a Dropout whose mask is read"
    x = node.inputs[0]
    nodes = _drawn(node, x) if view.setting.draws and p >= LEAST_DROPPED else _packed(node, x)
    last = len(nodes)
    return Fusion(
        pattern=DROPOUT.name,
        anchor=number,
        nodes=(*nodes, fused_node("apply_mask", node.name, (x, local(last - 1, 0), local(last - 1, 1)))),
        outputs={Entry(number): local(last)},
        replaced=frozenset({number}),
        shapes={x: "*n"},
        shape_source=x,
        label="a mask of Dropout as bits",
        min_bytes=(x, 1 << 15),
    )


def drawing(node: Node) -> dict[str, str]:
    """The parameters of ``draw_mask`` that draw what this Dropout would: the part that is kept is float32 in MXNet."""
    keep = float(np.float32(1) - np.float32(node.attrs.get("p", "0.5")))
    return {"keep": repr(keep), "seed": "0", "offset": "0"}


def _packed(node: Node, x: Entry) -> tuple[Node, ...]:
    """MXNet's own Dropout draws the same numbers in the same order, but its input is ones: its output is the mask."""
    return (
        Node("ones_like", f"{node.name}_echo_ones", (x,)),
        node._with(name=f"{node.name}_echo_mask", inputs=(local(0),)),
        fused_node("pack_mask", f"{node.name}_echo_bits", (local(1),)),
    )


def _drawn(node: Node, x: Entry) -> tuple[Node, ...]:
    """MXNet's own Dropout draws the first element alone, which tells whether anything is trained; the kernel the rest.

    It does so right after it, in the order in which MXNet's Dropout would, and in a tenth of the time.
    """
    prefix, one = f"{node.name}_echo_", local(2)
    return (
        Node("ones_like", prefix + "ones", (x,)),
        Node("Reshape", prefix + "flat", (local(0),), attrs={"shape": "(-1,)"}),
        Node("slice_axis", prefix + "one", (local(1),), attrs={"axis": "0", "begin": "0", "end": "1"}),
        node._with(name=prefix + "first", inputs=(one,)),
        fused_node("draw_mask", prefix + "bits", (local(3), local(1), one, one), drawing(node)),
    )


DROPOUT = Pattern("dropout", frozenset({"Dropout"}), match_dropout, is_mask=True)


# A ReLU with the sign of its output as bits, where no gradient but its own needs that output (Gist, ISCA 2018).

# Operators whose gradients do not read this input, and whose outputs are other arrays.
_ENDS = frozenset({
    "elemwise_add", "_npi_add", "broadcast_add", "elemwise_sub", "broadcast_sub", "_npi_subtract", "add_n", "sum",
    "_np_sum", "mean", "_npi_mean", "BlockGrad", "make_loss",
})  # fmt: skip
# Operators whose gradients do not read this input, but whose outputs are its elements: their readers count, too.
_FORMS = frozenset({
    "Reshape", "_np_reshape", "_npx_reshape", "Flatten", "expand_dims", "squeeze", "_np_squeeze", "transpose",
    "_np_transpose", "SwapAxis", "slice", "slice_axis", "SliceChannel", "_split_v2", "Concat", "_npi_concatenate",
    "stack", "_npi_stack", "Dropout", "_copy", "_np_copy", "_mul_scalar", "_plus_scalar", "_minus_scalar",
    "_div_scalar",
})  # fmt: skip


def match_relu(view: View, number: int) -> Fusion | str | None:
    """The ReLU that this node is: a fusion, why there is none, or None.

    Every bit stays, but for NaNs: they come out as NaNs, where MXNet's Activation puts out zeros.
    """
    output = Entry(number)
    x = view.activated(output, "relu")
    if x is None:
        return None
    if view.read_outside(frozenset({number}), (output,)):
        return "a ReLU with control dependencies"
    reader = _reader(view, number)
    if reader:
        return f"its output is stashed anyway: read by {reader}"
    return Fusion(
        pattern=RELU.name,
        anchor=number,
        nodes=(fused_node(RELU.name, view.graph.nodes[number].name, (x,)),),
        outputs={output: local(0)},
        replaced=frozenset({number}),
        shapes={x: "*n"},
        shape_source=x,
        label="the sign of a ReLU as bits",
        min_bytes=(x, 1 << 16),
    )


def _reader(view: View, number: int) -> str:
    """The reader that needs the output of a node until backward; empty where none does."""
    above, seen = [number], {number}
    while above:
        node = above.pop()
        for index in range(max(1, view.graph.num_outputs(node))):
            for reader in view.readers.get(Entry(node, index), ()):
                if reader < 0:
                    return "the user"
                op = view.graph.nodes[reader].op
                if op in _FORMS and reader not in seen:
                    seen.add(reader)
                    above.append(reader)
                elif op not in _ENDS and reader not in seen:
                    return f"the gradient of {view.graph.nodes[reader].name!r}"
    return ""


RELU = Pattern("relu", ACTIVATED, match_relu, is_mask=True, is_quiet=True)
