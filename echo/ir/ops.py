"""What echo knows about MXNet's operators: which may run twice, and which are too expensive to.

An operator is recomputed only when it is listed here, never because it is not forbidden: an operator that draws random
numbers, keeps state or writes into an input gives silently wrong gradients when it runs again. Each entry is checked by
``tests/ir/test_ops.py``: outputs, gradients and auxiliary states stay identical to the last bit.
"""

from __future__ import annotations

from typing import Mapping

from echo.ir.training_node import TrainingNode


def names_in(*lines: str) -> frozenset[str]:
    """The names in these lines, with spaces between them."""
    return frozenset(name for line in lines for name in line.split())


# Where a graph is partitioned (Echo, section 4): GEMM and convolution, whose time grows faster than their bytes.
HEAVY = names_in(
    "Convolution Deconvolution FullyConnected Correlation dot batch_dot _linalg_gemm _linalg_gemm2",
    "_np_dot _npi_matmul _npi_tensordot",
    "_contrib_interleaved_matmul_selfatt_qk _contrib_interleaved_matmul_selfatt_valatt",
    "_contrib_interleaved_matmul_encdec_qk _contrib_interleaved_matmul_encdec_valatt",
    "_echo_lstm_layer _echo_softmax_output _echo_attention",
)

LIGHT = names_in(
    # one element at a time
    "Activation LeakyReLU relu sigmoid hard_sigmoid tanh softsign exp expm1 log log1p log2 log10 sqrt rsqrt cbrt rcbrt",
    "square abs sign negative reciprocal erf sin cos arctan clip smooth_l1 Cast _copy BlockGrad Dropout",
    "elemwise_add elemwise_sub elemwise_mul elemwise_div add_n _maximum _minimum _hypot _power where",
    "_plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _rdiv_scalar _power_scalar _maximum_scalar",
    "_minimum_scalar _greater_scalar _lesser_scalar _equal_scalar _not_equal_scalar",
    "broadcast_add broadcast_sub broadcast_mul broadcast_div broadcast_maximum broadcast_minimum broadcast_power",
    "broadcast_equal broadcast_greater broadcast_lesser",
    # normalized or reduced along axes
    "softmax log_softmax softmin SoftmaxActivation LayerNorm BatchNorm InstanceNorm L2Normalization",
    "sum mean max min prod norm pick",
    # moved
    "Reshape Flatten transpose SwapAxis expand_dims squeeze Concat stack SliceChannel slice slice_axis slice_like",
    "broadcast_to broadcast_axis broadcast_like tile repeat Pad reverse SequenceMask SequenceLast SequenceReverse",
    "Embedding take one_hot UpSampling Pooling depth_to_space space_to_depth zeros_like ones_like _split_v2",
    # of the numpy interface; many of its operators are aliases of those above
    "_npx_relu _npx_sigmoid _npi_tanh _npi_exp _npi_expm1 _npi_log _npi_log1p _npi_log2 _npi_log10 _npi_sqrt _npi_cbrt",
    "_npi_square _npi_absolute _npi_sign _npi_negative _npi_reciprocal _npi_sin _npi_cos _npi_arctan _np_copy",
    "_npi_add _npi_subtract _npi_multiply _npi_true_divide _npi_power _npi_where _npi_where_lscalar",
    "_npi_where_rscalar _npi_add_scalar _npi_subtract_scalar _npi_rsubtract_scalar _npi_multiply_scalar",
    "_npi_true_divide_scalar _npi_rtrue_divide_scalar _npi_power_scalar _npi_rpower_scalar",
    "_npi_equal _npi_not_equal _npi_greater _npi_greater_equal _npi_less _npi_less_equal",
    "_npi_equal_scalar _npi_not_equal_scalar _npi_greater_scalar _npi_greater_equal_scalar _npi_less_scalar",
    "_npi_less_equal_scalar _np_sum _npi_mean _np_max _np_min _np_prod",
    "_np_transpose _np_moveaxis _np_reshape _npx_reshape _np_squeeze _npi_concatenate _npi_stack _npi_broadcast_to",
    "_npi_flip",
    # fused kernels
    "_echo_lstm_cell _echo_lstm_norm_cell _echo_gru_cell _echo_mlp_score _echo_layer_norm _echo_bias_act _echo_relu",
    "_echo_sequence_reverse _echo_weighted_sum _echo_apply_mask",
)

# Every output of these is a feature map. Of all other operators the first output is; what follows it (saved statistics,
# masks) is small or random, and stays stashed. (Pooling's second output says where its maxima are.)
ALL_OUTPUTS = frozenset(
    {"SliceChannel", "_split_v2", "Pooling", "_echo_lstm_cell", "_echo_lstm_norm_cell", "_echo_lstm_layer"}
)

# MXNet's own mirroring runs a clone even where nobody reads its output. These then fail, or skip what their gradients
# read beside it (LayerNorm's statistics); a clone of Dropout would draw another mask. The native hook has none such.
_HOOK_ONLY = frozenset({"Dropout", "Embedding", "LayerNorm", "hard_sigmoid", "pick", "UpSampling", "_np_moveaxis"})

# They write their moving statistics when run forward on cuDNN, and draw masks in a layout of their own.
_CPU_ONLY = frozenset({"BatchNorm", "Dropout"})


def recomputable_outputs(node: TrainingNode, device: str, hook: bool) -> tuple[int, ...]:
    """The outputs of a forward node that may be recomputed, none where that is not safe.

    ``device`` is MXNet's device type ("cpu" or "gpu"), ``hook`` whether the native hook applies the plan.
    """
    return () if why_not(node, device, hook) else all_outputs(node, hook)


def all_outputs(node: TrainingNode, hook: bool) -> tuple[int, ...]:
    """The outputs that are recomputed with a node, where that is safe."""
    # MXNet's own mirroring replaces a node as a whole
    return tuple(range(len(node.outputs))) if node.op in ALL_OUTPUTS or not hook else (0,)


def why_not(node: TrainingNode, device: str, hook: bool) -> str:
    """The reason why this node must not run twice, empty where it may."""
    if node.op not in LIGHT and node.op not in HEAVY:
        return f"{node.op} is not known to be safe to run twice"
    if not hook and node.op in _HOOK_ONLY:
        return f"{node.op} needs the native hook"
    if device != "cpu" and node.op in _CPU_ONLY and node.attrs.get("cudnn_off") not in ("True", "1"):
        return f"{node.op} has side effects on cuDNN"
    if node.op == "Dropout":
        return why_not_dropout(node.attrs)
    if node.random or (node.op == "LeakyReLU" and node.attrs.get("act_type") == "rrelu"):
        return f"{node.op} draws random numbers here"
    if node.mutates and node.op != "BatchNorm":
        return f"{node.op} writes into its input"
    return ""


def depends_on_mode(op: str, attrs: Mapping[str, str]) -> bool:
    """Whether an operator has to run again in the mode, training or not, in which it ran before.

    BatchNorm computes something else outside of training, and Pooling does not say where its maxima are; oneDNN may
    compute heavy operators in another way.
    """
    if op == "Pooling":
        return attrs.get("pool_type", "max") == "max"
    return op in HEAVY or (op == "BatchNorm" and attrs.get("use_global_stats") not in ("True", "1"))


def draws_in_training_alone(op: str, attrs: Mapping[str, str]) -> bool:
    """Whether an operator that draws random numbers draws none in inference."""
    return op in ("RNN", "LeakyReLU") or (op == "Dropout" and attrs.get("mode", "training") != "always")


def why_not_dropout(attrs: Mapping[str, str]) -> str:
    """Why the output of a Dropout is no product of its input and a mask of its size; empty where it is."""
    if attrs.get("axes", "()") not in ("()", "[]", "None"):
        return "Dropout over axes has a mask of another shape"
    if float(attrs.get("p", "0.5")) == 0:
        return "Dropout with p=0 makes no mask"
    return ""
