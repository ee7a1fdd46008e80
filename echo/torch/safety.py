"""Which operators of a torch graph may run again, and why others must not.

An operator runs again only if a second run gives the same bits and changes nothing else. torch's own partitioner drops
that rule at low budgets: dropout then runs again with other random numbers, and gradients are wrong without a warning
(pytorch #190758). Here no budget and no option allows it. The lists below are data; ``tests/torch/test_safety.py`` has
a test for each.
"""

from __future__ import annotations

import operator
from typing import Any, Iterable, NamedTuple

import torch
from torch import fx

# Namespaces whose operators are functions of their arguments, except for those below. An operator of any other one, a
# user's custom operator or a collective, never runs again unless the user names it.
KNOWN_NAMESPACES = frozenset({"aten", "prims"})

# Tags of torch's operators that forbid a second run. Older versions lack some of them.
FORBIDDEN_TAGS = {
    "nondeterministic_seeded": "draws random numbers",
    "nondeterministic_bitwise": "may give other bits in another run",
    "data_dependent_output": "reads a number out of a tensor",
    "dynamic_output_shape": "has an output whose shape depends on values",
    "maybe_aliasing_or_mutating": "may write into its inputs",
}

# Names that some versions of torch leave without a tag.
RANDOM = frozenset({
    "_fused_dropout", "alpha_dropout", "bernoulli", "binomial", "dropout", "exponential", "feature_alpha_dropout",
    "feature_dropout", "geometric", "inductor_rand_eager_offset", "inductor_rand_eager_offsets", "inductor_seed",
    "inductor_seeds", "log_normal", "multinomial", "native_dropout", "normal", "normal_functional", "philox_rand",
    "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "rrelu",
    "rrelu_with_noise", "rrelu_with_noise_functional", "uniform",
})  # fmt: skip

# Their outputs hold whatever was in memory.
UNINITIALIZED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})

# On a GPU these add in an order that differs from run to run.
UNORDERED_ON_GPUS = frozenset({
    "_embedding_bag", "_unsafe_index_put", "bincount", "cumsum", "histc", "index_add", "index_put", "index_reduce",
    "put", "scatter_add", "scatter_reduce",
})  # fmt: skip

# Attention draws numbers only with dropout, which ``dropout_p`` is: in another place in some versions.
ATTENTION = frozenset({
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
})  # fmt: skip


class SecondRun(NamedTuple):
    """What computes the outputs of a node once more, where that is not the node's own call.

    It has the first ``outputs`` of the node's outputs, with the same bits.
    """

    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    outputs: int


def second_run(node: fx.Node) -> SecondRun | None:
    """A BatchNorm in training reads its running statistics only to update them: a second run does without."""
    if operator_name(node) != "_native_batch_norm_legit_functional" or len(node.args) != 8 or node.args[5] is not True:
        return None
    data, weight, bias, _, _, training, momentum, eps = node.args
    target = torch.ops.aten._native_batch_norm_legit.no_stats
    return SecondRun(target, (data, weight, bias, training, momentum, eps), 3)


def is_made_once(node: fx.Node) -> bool:
    """Whether a node is an output of another one that a second run of it does not have."""
    if node.target is not operator.getitem:
        return False
    run = second_run(node.all_input_nodes[0])
    return run is not None and int(node.args[1]) >= run.outputs


def operator_name(node: fx.Node) -> str:
    """The name of a node's operator without namespace and overload: ``mm`` for ``aten.mm.default``."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target._schema.name).rpartition("::")[2]
    return str(getattr(node.target, "__name__", node.target))


def values_of(node: fx.Node) -> list[Any]:
    """The traced outputs of a node."""
    value = node.meta.get("val")
    return list(value) if isinstance(value, (tuple, list)) else [value]


def is_mutable(node: fx.Node) -> bool:
    """Whether an operator writes into one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def why_not_again(node: fx.Node, allowed: Iterable[str] = ()) -> str:
    """The reason why a node must not run again, empty where it may.

    ``allowed`` are custom operators, such as ``"mylib::gelu"``, of which the user says that they are functions of their
    arguments. They cannot allow what is known to draw random numbers or to write into its arguments.
    """
    if node.op != "call_function":
        return f"{node.op} is no operator"
    target = node.target
    if target is operator.getitem:
        return ""
    if not isinstance(target, torch._ops.OpOverload):
        return f"{operator_name(node)} is no operator with a schema"
    name = operator_name(node)
    if is_mutable(node):
        return f"{name} writes into its input"
    if name in ATTENTION:
        return "" if _dropout(node) == 0 else f"{name} draws random numbers for its dropout"
    if name in RANDOM:
        return f"{name} draws random numbers"
    if name in UNINITIALIZED:
        return f"{name} returns memory that nothing has written"
    if name in UNORDERED_ON_GPUS and _is_on_gpu(node):
        return f"{name} may give other bits in another run"
    return _forbidden_tag(target, name) or _unknown_namespace(target, name, allowed) or _no_plain_output(node, name)


def dropout_position(target: torch._ops.OpOverload) -> int:
    """The place of ``dropout_p`` among the arguments of an attention."""
    return [argument.name for argument in target._schema.arguments].index("dropout_p")


def _dropout(node: fx.Node) -> object:
    position = dropout_position(node.target)
    return node.args[position] if len(node.args) > position else node.kwargs.get("dropout_p", 0.0)


def _forbidden_tag(target: torch._ops.OpOverload, name: str) -> str:
    for tag in target.tags:
        reason = FORBIDDEN_TAGS.get(str(tag).rpartition(".")[2])
        if reason is not None:
            return f"{name} {reason}"
    return ""


def _unknown_namespace(target: torch._ops.OpOverload, name: str, allowed: Iterable[str]) -> str:
    if target.namespace in KNOWN_NAMESPACES or f"{target.namespace}::{name}" in allowed:
        return ""
    return f"{target.namespace}::{name} is not known to be safe to run twice"


def _no_plain_output(node: fx.Node, name: str) -> str:
    if node.meta.get("val") is None or not all(isinstance(one, torch.Tensor) or one is None for one in values_of(node)):
        return f"{name} has an output that is no tensor"
    return ""


def _is_on_gpu(node: fx.Node) -> bool:
    return any(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in values_of(node))
