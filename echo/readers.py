"""Which operators read their inputs through their inputs alone, in both passes.

A map may be recomputed, moved, unpacked from bits or freed early only if every operator that reads it is listed here.
Others may keep an address or a state between the passes: oneDNN's RNN reads the layer's input at the address that the
forward pass was given, control flow (``_foreach``) reads the arrays that its forward pass was handed, and so may an
operator of the user's (``Custom``). What they read stays as MXNet has it.
"""

from __future__ import annotations

from echo.ops import HEAVY, LIGHT
from echo.training_graph import TrainingNode

_LOSSES = frozenset(
    [
        "SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput", "SVMOutput",
        "MakeLoss", "make_loss", "CTCLoss", "softmax_cross_entropy",
    ]
)  # fmt: skip
_ADDED = frozenset(["_grad_add", "_identity_with_attr_like_rhs", "_zeros", "_ones", "_copyto"])  # between gradients
READERS = LIGHT | HEAVY | _LOSSES | _ADDED


def is_reader(node: TrainingNode) -> bool:
    """Whether this forward node reads its inputs through its inputs alone, whoever shares their memory."""
    return node.op in READERS and not (node.op == "LeakyReLU" and node.attrs.get("act_type") == "prelu")
