"""A ReLU with the sign of its output as bits, where no gradient but its own needs that output (Gist, ISCA 2018)."""

from __future__ import annotations

from echo.ir.graph import Entry, fused_node
from echo.passes.patterns.graph_view import ACTIVATED, Fusion, Pattern, View, local

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
