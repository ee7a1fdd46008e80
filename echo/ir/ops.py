"""The table of operators, MXNet's and ours: all that echo knows of each (`echo.ir.op_spec.OpSpec` explains the facts).

An operator runs twice only where its row says so, never because it is not forbidden: one that draws random numbers,
keeps state or writes into an input gives silently wrong gradients when it is recomputed. ``tests/ir/test_ops.py``
checks each: outputs, gradients and auxiliary states stay identical to the last bit. ``tests/operators`` does the same
for what is said of readers. Operators with equal facts share a row; of an operator without a row nothing is known.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import replace
from typing import Callable, Mapping, Sequence

from echo.ir.op_spec import (
    ALWAYS,
    GradientReads,
    GradientRuleFamily,
    Layout,
    OpSpec,
    Shape,
    When,
    unless,
    unless_set,
    when,
    when_set,
)

# Attributes that say how large something is, and some that say what an operator does whatever its size.
SIZE_ATTRIBUTES = frozenset({
    "num_filter", "num_hidden", "num_outputs", "num_args", "input_dim", "output_dim", "shape", "begin", "end",
    "state_size", "workspace",
})  # fmt: skip
KIND_ATTRIBUTES = frozenset(
    {"act_type", "pool_type", "mode", "p", "scalar", "axis", "kernel", "stride", "transpose_a", "transpose_b"}
)
# Heavy operators of data graphs, by the names that torch gives them, with and without "_" around.
_HEAVY_IN_TORCH = frozenset({
    "convolution", "conv", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "linear", "addmm", "mm", "bmm", "baddbmm",
    "matmul", "einsum", "scaled_dot_product_attention",
})  # fmt: skip

# In the names of operators that draw random numbers, or run code that may (Custom).
_DRAWS = re.compile(
    r"""dropout | random | sample(?!r) | shuffle | custom | ^normal$ | ^uniform$ | ^_npi_(bernoulli | choice |
    exponential | gamma | gumbel | logistic | multinomial | normal | pareto | powerd | rayleigh | uniform | weibull)""",
    re.IGNORECASE | re.VERBOSE,
)

# Floating-point operations of operators, from the shapes of their inputs and of their first output.


def _convolution(inputs: Sequence[Shape], output: Shape) -> float:
    """FLOPs of a convolution: each element of the output is a product with one filter."""
    weight = inputs[1]
    return 2.0 * math.prod(output) * math.prod(weight) / max(1, weight[0])


def _deconvolution(inputs: Sequence[Shape], _: Shape) -> float:
    """FLOPs of a deconvolution: those of a convolution whose output is this input."""
    weight = inputs[1]
    return 2.0 * math.prod(inputs[0]) * math.prod(weight) / max(1, weight[0])


def _dense(inputs: Sequence[Shape], output: Shape) -> float:
    """FLOPs of a fully connected layer: each element of the output is a product with one row of the weight."""
    return 2.0 * math.prod(output) * inputs[1][-1]


def _scores(inputs: Sequence[Shape], _: Shape) -> float:
    """FLOPs of products of each row of the input with each row of the weight, which need not be outputs."""
    return 2.0 * math.prod(inputs[0]) * inputs[1][0]


def _attention(inputs: Sequence[Shape], _: Shape) -> float:
    """FLOPs of attention: each query times all keys, and its weights times all values."""
    queries, keys, values = inputs[:3]
    return 2.0 * queries[1] * (math.prod(keys) + math.prod(values))


def _recurrent_layer(inputs: Sequence[Shape], _: Shape) -> float:
    """FLOPs of a recurrent layer: in each step, the input and the state times their weights."""
    x, wi, wh = inputs[0], inputs[1], inputs[3]
    return 2.0 * (math.prod(wi) + math.prod(wh)) * math.prod(x) / x[-1]


def _rnn(inputs: Sequence[Shape], _: Shape) -> float:
    """FLOPs of MXNet's RNN: in each step, a product with all weights."""
    return 2.0 * math.prod(inputs[1]) * math.prod(inputs[0]) / max(1, inputs[0][-1])


def _product(inputs: Sequence[Shape], output: Shape) -> float:
    """(batch, m, k) times (batch, k, n): the product of the inputs over the output is batch * k * k."""
    first, second = inputs[:2]
    batch = first[0] if len(first) > 2 else 1
    inner = math.sqrt(math.prod(first) * math.prod(second) / max(1, math.prod(output) * batch))
    return 2.0 * math.prod(output) * inner


# Facts that several rows share.

_UNKNOWN = OpSpec()
_READER = _UNKNOWN.having(address_stable_reads=True)
_LIGHT = _READER.having(recomputable=True, measurable=True)
_HEAVY = _LIGHT.having(heavy=True, train_mode_sensitive=ALWAYS, flops=_product)
_LAYER = _HEAVY.having(flops=_recurrent_layer, has_parameters=True, packs_parameters=True, every_output=True)

_NOISE = when("act_type", "leaky", "rrelu")
_WITH_LENGTHS = when_set("use_length")
_FIXED_GAMMA = when_set("fix_gamma", "True")
_OUTSIDE_SOFTSIGN = unless("act_type", "", "softsign")
_BY_ONEDNN = Layout(onednn=ALWAYS)
_PLAIN = Layout(onednn=ALWAYS, plain=True)
_HANDS_ON = Layout(propagates_layout=True, onednn=ALWAYS)
_SOURCE = Layout(source=True, onednn=ALWAYS)
_SUM = _LIGHT.having(rule_family=GradientRuleFamily.SUM)
_SOFTMAX = _LIGHT.having(in_place=_WITH_LENGTHS, layout=Layout(onednn=unless_set("use_length")))


def _fused(like: OpSpec, gradients: str, inputs: str, outputs: str) -> OpSpec:
    return like.having(gradient_reads=GradientReads(gradients, inputs, outputs), outputs=len(gradients))


_ROWS: tuple[tuple[OpSpec, str], ...] = (
    # Products and convolutions
    (_HEAVY.having(flops=_convolution, has_parameters=True, unfused_weight_grad=True, layout=_SOURCE,
             rule_family=GradientRuleFamily.SPLIT), "Convolution"),
    (_HEAVY.having(flops=_deconvolution, has_parameters=True, unfused_weight_grad=True, layout=_SOURCE,
             movable_inputs=frozenset({0})), "Deconvolution"),  # others must not move: a CachedOp dies
    (_HEAVY.having(flops=_dense, has_parameters=True, unfused_weight_grad=True,
             layout=_PLAIN), "FullyConnected"),
    (_HEAVY.having(flops=None, measurable=False), "Correlation"),
    (_HEAVY, """
    dot batch_dot _linalg_gemm _linalg_gemm2 _np_dot _npi_matmul _npi_tensordot
    _contrib_interleaved_matmul_selfatt_qk _contrib_interleaved_matmul_selfatt_valatt
    _contrib_interleaved_matmul_encdec_qk _contrib_interleaved_matmul_encdec_valatt"""),
    (_UNKNOWN.having(flops=_rnn, has_parameters=True, packs_parameters=True, measurable=True, layout=_PLAIN,
            draws_in_training=ALWAYS, draws=When("p", "0", lambda text: float(text) > 0),
            attrs_without_rng={"p": "0"}), "RNN"),

    # Activations and layers
    (_LIGHT.having(layout=Layout(keeps=_OUTSIDE_SOFTSIGN, onednn=_OUTSIDE_SOFTSIGN, propagates_layout=True,
                                   layout_invariant_grad=True),
             rule_family=GradientRuleFamily.ACTIVATION), "Activation"),
    (_LIGHT.having(draws=_NOISE, draws_in_training=ALWAYS, in_place=when("act_type", "leaky", "prelu"),
             has_parameters=True, layout=Layout(onednn=when("act_type", "leaky", "leaky", "elu", "gelu")),
             rule_family=GradientRuleFamily.LEAKY),
     "LeakyReLU"),
    (_LIGHT.having(needs_hook=True), "hard_sigmoid UpSampling _np_moveaxis"),
    (_LIGHT.having(needs_hook=True, needs_cpu=True, clone_op="elemwise_mul", outputs=2,
             draws_in_training=unless("mode", "training", "always"),
             layout=Layout(clone_layout_may_differ=True)), "Dropout"),
    (_LIGHT.having(rewrites=True, train_mode_sensitive=unless_set("use_global_stats"),
             exempt_from_write_check={1: _FIXED_GAMMA, 3: ALWAYS, 4: ALWAYS}, has_parameters=True,
             layout=_HANDS_ON), "BatchNorm"),
    (_LIGHT.having(rewrites=True, train_mode_sensitive=ALWAYS, training_outputs=True, every_output=True,
             outputs=4, exempt_from_write_check={1: _FIXED_GAMMA, 3: ALWAYS, 4: ALWAYS}, has_parameters=True,
             layout=_HANDS_ON), "_contrib_BatchNormWithReLU"),
    (_READER.having(layout=_BY_ONEDNN), "amp_cast amp_multicast"),
    (_LIGHT.having(needs_hook=True, has_parameters=True), "LayerNorm"),
    (_LIGHT.having(has_parameters=True), "InstanceNorm"),
    (_READER.having(measurable=True, has_parameters=True), "GroupNorm"),
    (_READER.having(measurable=True, layout=_HANDS_ON), "LRN"),
    (_READER.having(measurable=True), "_rnn_param_concat"),  # 9 ns a float: ten times a Concat of two axes
    (_LIGHT.having(every_output=True, train_mode_sensitive=when("pool_type", "max", "max"),
             layout=Layout(propagates_layout=True, onednn=when("pool_type", "max", "max", "avg"),
                           layout_invariant_grad=True)), "Pooling"),
    (_SOFTMAX.having(rule_family=GradientRuleFamily.MASKED_SOFTMAX), "softmax"),
    (_SOFTMAX, "log_softmax"),
    (_LIGHT.having(in_place=_WITH_LENGTHS), "softmin"),
    (_READER.having(measurable=True, in_place=when_set("out_grad"), layout=_PLAIN),
     "SoftmaxOutput"),
    (_READER.having(measurable=True), "LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput MakeLoss"),

    # Arrays put together, taken apart, seen in another shape, copied, chosen from
    (_LIGHT.having(layout=_HANDS_ON, rule_family=GradientRuleFamily.CONCAT), "Concat"),
    (_LIGHT.having(layout=_HANDS_ON), "elemwise_add"),
    (_LIGHT.having(layout=_HANDS_ON, in_gradients=True, counts_inputs=True), "add_n"),
    (_UNKNOWN.having(layout=Layout(propagates_layout=True)), "_plus ElementWiseSum"),
    (_UNKNOWN.having(layout=Layout(blocks_all=True)), "_backward_Concat"),
    (_LIGHT.having(every_output=True, outputs="num_outputs", gradient_op="_backward_SliceChannel"), "SliceChannel"),
    (_LIGHT.having(every_output=True, gradient_op="_split_v2_backward"), "_split_v2"),
    (_LIGHT.having(layout=_BY_ONEDNN), "slice"),
    (_LIGHT.having(layout=_PLAIN), "Reshape Flatten transpose expand_dims"),
    (_LIGHT.having(in_gradients=True, layout=replace(_HANDS_ON, identity=True,
                                                        clone_layout_may_differ=True)), "_copy"),
    (_LIGHT.having(layout=Layout(identity=True, clone_layout_may_differ=True)), "_np_copy"),
    (_LIGHT.having(layout=Layout(identity=True)), "BlockGrad"),
    (_READER.having(layout=Layout(identity=True)), "make_loss"),
    (_LIGHT.having(in_gradients=True, exempt_from_write_check={0: ALWAYS}), "zeros_like"),
    (_LIGHT.having(exempt_from_write_check={0: ALWAYS}), "ones_like"),
    (_READER.having(exempt_from_write_check={0: ALWAYS}), "_contrib_arange_like"),
    (_READER.having(in_gradients=True), "_identity_with_attr_like_rhs"),
    (_READER.having(is_free=True, in_gradients=True), "_grad_add"),
    (_UNKNOWN.having(is_free=True), "null"),
    (_LIGHT.having(needs_hook=True, gathers=True, has_parameters=True, is_index=True), "Embedding"),
    (_LIGHT.having(gathers=True), "take"),
    (_LIGHT.having(needs_hook=True, gathers=True, measurable=False), "pick"),
    (_READER.having(gathers=True), "gather_nd"),
    (_LIGHT.having(measurable=False), "SequenceMask SequenceLast SequenceReverse"),
    (_UNKNOWN.having(adds_to_memory=True), "_cond"),
    (_UNKNOWN.having(reads_at_dispatch=True, takes_attrs=False), "Custom"),  # it hands attributes to the user's code

    # Fused kernels
    (_fused(_HEAVY.having(flops=_attention), "10", "1111111", "11"), "_echo_attention"),
    (_fused(_LAYER, "1110", "1111111", "1001"), "_echo_lstm_layer"),
    (_fused(_LAYER, "110", "111101", "101"), "_echo_gru_layer"),
    (_fused(_LAYER, "11", "110101", "10"), "_echo_rnn_layer"),
    (_fused(_HEAVY.having(flops=_dense), "0", "1101", "1"), "_echo_softmax_output"),
    (_fused(_HEAVY.having(flops=_scores, every_output=True), "110", "1101", "001"),
     "_echo_linear_cross_entropy"),
    (_fused(_LIGHT.having(every_output=True), "1100", "11", "0011"), "_echo_cross_entropy"),
    (_fused(_LIGHT.having(every_output=True), "11", "11", "00"), "_echo_lstm_cell"),
    (_fused(_LIGHT.having(every_output=True), "11", "1111", "00"), "_echo_lstm_norm_cell"),
    (_fused(_LIGHT, "1", "111", "0"), "_echo_gru_cell"),
    (_fused(_LIGHT.having(every_output=True), "11", "11", "00"), "_echo_gru_reset"),
    (_fused(_LIGHT, "1", "111", "0"), "_echo_gru_mix"),
    (_fused(_LIGHT, "1", "11111", "0"), "_echo_mlp_score"),
    (_fused(_LIGHT, "1", "110", "0"), "_echo_layer_norm"),
    (_fused(_LIGHT, "1", "00", "1"), "_echo_bias_act"),
    (_fused(_LIGHT, "10", "0", "01"), "_echo_relu"),
    (_fused(_LIGHT, "1", "01", "0"), "_echo_sequence_reverse"),
    (_fused(_LIGHT, "1", "11", "0"), "_echo_weighted_sum"),
    (_fused(_LIGHT, "1", "011", "0"), "_echo_apply_mask"),
    # Of these no more is known than that they draw nothing
    (_UNKNOWN, "_zeros _ones _full _arange _eye _zeros_without_dtype"),
    (_UNKNOWN, "_npi_zeros _npi_ones _npi_full _npi_arange _npi_eye"),
    # whose draws hang on when it runs
    (_fused(_UNKNOWN.having(measurable=True), "00", "0000", "00"), "_echo_draw_mask"),
    (_fused(_READER, "00", "0", "00"), "_echo_pack_mask"),  # whose result is what is kept

    (_SUM.having(gradient_op="_backward_npi_broadcast_add"), "_npi_add"),
    (_SUM.having(gradient_op="_backward_npi_broadcast_sub"), "_npi_subtract"),
    (_LIGHT, """
    relu sigmoid tanh softsign exp expm1 log log1p log2 log10 sqrt rsqrt cbrt rcbrt square abs sign negative
    reciprocal erf sin cos arctan clip smooth_l1 Cast elemwise_sub elemwise_mul elemwise_div _maximum _minimum
    _hypot _power where _plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _rdiv_scalar
    _power_scalar _maximum_scalar _minimum_scalar _greater_scalar _lesser_scalar _equal_scalar _not_equal_scalar
    broadcast_add broadcast_sub broadcast_mul broadcast_div broadcast_maximum broadcast_minimum broadcast_power
    broadcast_equal broadcast_greater broadcast_lesser SoftmaxActivation L2Normalization sum mean max min prod
    norm SwapAxis squeeze stack slice_axis slice_like broadcast_to broadcast_axis broadcast_like tile repeat Pad
    reverse one_hot depth_to_space space_to_depth _npx_relu _npx_sigmoid _npi_tanh _npi_exp _npi_expm1
    _npi_log _npi_log1p _npi_log2 _npi_log10 _npi_sqrt _npi_cbrt _npi_square _npi_absolute _npi_sign _npi_negative
    _npi_reciprocal _npi_sin _npi_cos _npi_arctan _npi_multiply _npi_true_divide _npi_power
    _npi_where _npi_where_lscalar _npi_where_rscalar _npi_add_scalar _npi_subtract_scalar _npi_rsubtract_scalar
    _npi_multiply_scalar _npi_true_divide_scalar _npi_rtrue_divide_scalar _npi_power_scalar _npi_rpower_scalar
    _npi_equal _npi_not_equal _npi_greater _npi_greater_equal _npi_less _npi_less_equal _npi_equal_scalar
    _npi_not_equal_scalar _npi_greater_scalar _npi_greater_equal_scalar _npi_less_scalar _npi_less_equal_scalar
    _np_sum _npi_mean _np_max _np_min _np_prod _np_transpose _np_reshape _npx_reshape _np_squeeze _npi_concatenate
    _npi_stack _npi_broadcast_to _npi_flip"""),
    (_READER, """
    BatchNorm_v1 BilinearSampler CTCLoss Convolution_v1 Crop GridGenerator IdentityAttachKLSparseReg Pooling_v1
    ROIPooling SVMOutput SpatialTransformer all_finite arccos arccosh arcsin arcsinh arctanh argmax argmax_channel
    argmin argsort batch_take broadcast_greater_equal broadcast_hypot broadcast_lesser_equal broadcast_logical_and
    broadcast_logical_or broadcast_logical_xor broadcast_mod broadcast_not_equal cast_storage ceil col2im cosh
    degrees diag erfinv fix floor gamma gammaln im2col khatri_rao logical_not moments multi_all_finite
    multi_sum_sq nanprod nansum radians reshape_like rint round scatter_nd shape_array sinh size_array
    softmax_cross_entropy sort tan topk trunc _equal _greater _greater_equal _greater_equal_scalar _histogram
    _hypot_scalar _lesser _lesser_equal _lesser_equal_scalar _logical_and _logical_and_scalar _logical_or
    _logical_or_scalar _logical_xor _logical_xor_scalar _mod _mod_scalar _not_equal _ravel_multi_index
    _rmod_scalar _rpower_scalar _scatter_elemwise_div _scatter_minus_scalar _scatter_plus_scalar
    _shuffle _slice_assign _slice_assign_scalar _unravel_index _linalg_det _linalg_extractdiag
    _linalg_extracttrian _linalg_gelqf _linalg_inverse _linalg_makediag _linalg_maketrian _linalg_potrf
    _linalg_potri _linalg_slogdet _linalg_sumlogdiag _linalg_syevd _linalg_syrk _linalg_trmm _linalg_trsm _np_all
    _np_any _np_atleast_1d _np_atleast_2d _np_atleast_3d _np_cumsum _np_diag _np_diagflat _np_diagonal _np_roll
    _np_trace _npi_arccos _npi_arccosh _npi_arcsin _npi_arcsinh _npi_arctan2 _npi_arctan2_scalar _npi_arctanh
    _npi_argmax _npi_argmin _npi_around _npi_average _npi_bernoulli _npi_bitwise_and _npi_bitwise_and_scalar
    _npi_bitwise_not _npi_bitwise_or _npi_bitwise_or_scalar _npi_bitwise_xor _npi_bitwise_xor_scalar _npi_ceil
    _npi_cholesky _npi_column_stack _npi_copysign _npi_cosh _npi_degrees _npi_diag_indices_from _npi_diff
    _npi_dsplit _npi_ediff1d _npi_eig _npi_eigh _npi_eigvals _npi_eigvalsh _npi_einsum _npi_fix _npi_floor
    _npi_full_like _npi_gamma _npi_gumbel _npi_hsplit _npi_hypot _npi_insert_scalar _npi_insert_slice
    _npi_insert_tensor _npi_isfinite _npi_isinf _npi_isnan _npi_isneginf _npi_isposinf _npi_lcm _npi_lcm_scalar
    _npi_ldexp _npi_ldexp_scalar _npi_logical_not _npi_logistic _npi_mod _npi_mod_scalar _npi_multinomial
    _npi_nan_to_num _npi_normal _npi_normal_n _npi_pad _npi_pareto _npi_percentile _npi_pinv
    _npi_pinv_scalar_rcond _npi_polyval _npi_radians _npi_rarctan2_scalar _npi_rint _npi_rldexp_scalar
    _npi_rmod_scalar _npi_rot90 _npi_sinh _npi_solve _npi_std _npi_svd _npi_tan _npi_tensordot_int_axes
    _npi_tensorinv _npi_tril _npi_trunc _npi_uniform _npi_uniform_n _npi_var _npi_vstack _npi_weibull
    _npi_where_scalar2 _contrib_AdaptiveAvgPooling2D _contrib_BilinearResize2D _contrib_DeformableConvolution
    _contrib_DeformablePSROIPooling _contrib_MultiBoxDetection _contrib_MultiBoxPrior _contrib_MultiProposal
    _contrib_PSROIPooling _contrib_Proposal _contrib_ROIAlign _contrib_RROIAlign _contrib_SyncBatchNorm
    _contrib_bipartite_matching _contrib_box_decode _contrib_box_encode _contrib_box_iou
    _contrib_box_nms _contrib_div_sqrt_dim _contrib_gradientmultiplier _contrib_index_array _contrib_index_copy
    _contrib_quadratic _contrib_quantize_v2 _contrib_round_ste _contrib_sign_ste _image_adjust_lighting
    _image_crop _image_flip_left_right _image_flip_top_bottom _image_normalize _random_pdf_dirichlet
    _random_pdf_exponential _random_pdf_gamma _random_pdf_generalized_negative_binomial
    _random_pdf_negative_binomial _random_pdf_normal _random_pdf_poisson _random_pdf_uniform _sample_exponential
    _sample_gamma _sample_generalized_negative_binomial _sample_multinomial _sample_negative_binomial
    _sample_normal _sample_poisson _sample_uniform"""),
)  # fmt: skip


def _table(rows: tuple[tuple[OpSpec, str], ...]) -> dict[str, OpSpec]:
    pairs = [(name, row) for row, names in rows for name in names.split()]
    if len(table := dict(pairs)) < len(pairs):
        raise ValueError("an operator has two rows")
    return table


_TABLE = _table(_ROWS)


def spec(op: str) -> OpSpec:
    """The facts about an operator; the safe defaults for one without a row."""
    return _TABLE.get(op, _UNKNOWN)


def ops_with(has: Callable[[OpSpec], bool]) -> frozenset[str]:
    """The operators whose facts fulfil this condition."""
    return frozenset(op for op, row in _TABLE.items() if has(row))


def may_draw(op: str, attrs: Mapping[str, str]) -> bool:
    """Whether an operator may draw random numbers; of one without a row it is not known."""
    if op == "RNN":  # between its layers
        return int(attrs.get("num_layers", "1")) > 1 and float(attrs.get("p", "0")) > 0
    if op == "Dropout":
        return float(attrs.get("p", "0.5")) > 0
    return op not in _TABLE or spec(op).random.draws(attrs) or _is_named_as_drawing(op)


@functools.lru_cache(maxsize=None)
def _is_named_as_drawing(op: str) -> bool:
    return _DRAWS.search(op) is not None


def is_heavy_in_torch(op: str) -> bool:
    """Whether an operator of a data graph, named as torch names it, is heavy."""
    return op.strip("_") in _HEAVY_IN_TORCH
