"""A bias and the activation after it, as one operator whose gradient reads the output alone.

MXNet's broadcast_add and above all its gradient, a sum over rows, take some seven times as long. A FullyConnected adds
its bias within the product: there it would save 0 to 8 % of the layer's time, and need a seventh more memory for it.
"""

from __future__ import annotations

from echo.ir.graph import Entry, fused_node
from echo.ir.op_spec import is_true
from echo.passes.patterns.graph_view import ACTIVATED, Fusion, Pattern, View, local

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
