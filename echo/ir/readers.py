"""Operators that read their inputs through their inputs alone, in the forward pass and in their gradients.

A map may run again, move, come out of bits or be given up early only if every operator that reads it is listed here.
Others keep an address or a state between the passes: what they read has to stay where it was. The table is no matter of
opinion: ``tests/operators`` holds every operator that MXNet registers against stock MXNet, with its inputs and outputs
recomputed, moved and unpacked by force, and its memory taken over by others.

The table stands on one condition: what stock MXNet does not compute in place must not be computed in place now. A map
that runs again has one reader less, and MXNet then works in place where it did not before. An array that is computed
over one in a layout of oneDNN takes on that layout, and max Pooling's gradient, which reads where its maxima are by
the layout of the forward pass, finds others; the gradients in `IN_PLACE` come out as other numbers.
"""

from __future__ import annotations

from typing import Mapping

from echo.ir.ops import names_in

READERS = names_in(
    # one element at a time, moved, reduced, chosen; layers and losses
    "Activation BatchNorm BatchNorm_v1 BilinearSampler BlockGrad CTCLoss Cast Concat Convolution Convolution_v1",
    "Correlation Crop Deconvolution Dropout Embedding Flatten FullyConnected GridGenerator GroupNorm",
    "IdentityAttachKLSparseReg InstanceNorm L2Normalization LRN LayerNorm LeakyReLU LinearRegressionOutput",
    "LogisticRegressionOutput MAERegressionOutput MakeLoss Pad Pooling Pooling_v1 ROIPooling Reshape SVMOutput",
    "SequenceLast SequenceMask SequenceReverse SliceChannel SoftmaxActivation SoftmaxOutput SpatialTransformer",
    "SwapAxis UpSampling abs add_n all_finite amp_cast amp_multicast arccos arccosh arcsin arcsinh arctan arctanh",
    "argmax argmax_channel argmin argsort batch_dot batch_take broadcast_add broadcast_axis broadcast_div",
    "broadcast_equal broadcast_greater broadcast_greater_equal broadcast_hypot broadcast_lesser",
    "broadcast_lesser_equal broadcast_like broadcast_logical_and broadcast_logical_or broadcast_logical_xor",
    "broadcast_maximum broadcast_minimum broadcast_mod broadcast_mul broadcast_not_equal broadcast_power",
    "broadcast_sub broadcast_to cast_storage cbrt ceil clip col2im cos cosh degrees depth_to_space diag dot",
    "elemwise_add elemwise_div elemwise_mul elemwise_sub erf erfinv exp expand_dims expm1 fix floor gamma gammaln",
    "gather_nd hard_sigmoid im2col khatri_rao log log10 log1p log2 log_softmax logical_not make_loss max mean min",
    "moments multi_all_finite multi_sum_sq nanprod nansum negative norm one_hot ones_like pick prod radians rcbrt",
    "reciprocal relu repeat reshape_like reverse rint round rsqrt scatter_nd shape_array sigmoid sign sin sinh",
    "size_array slice slice_axis slice_like smooth_l1 softmax softmax_cross_entropy softmin softsign sort",
    "space_to_depth sqrt square squeeze stack sum take tan tanh tile topk transpose trunc where zeros_like",
    # internal names
    "_copy _div_scalar _equal _equal_scalar _grad_add _greater _greater_equal _greater_equal_scalar",
    "_greater_scalar _histogram _hypot _hypot_scalar _identity_with_attr_like_rhs _lesser _lesser_equal",
    "_lesser_equal_scalar _lesser_scalar _logical_and _logical_and_scalar _logical_or _logical_or_scalar",
    "_logical_xor _logical_xor_scalar _maximum _maximum_scalar _minimum _minimum_scalar _minus_scalar _mod",
    "_mod_scalar _mul_scalar _not_equal _not_equal_scalar _plus_scalar _power _power_scalar _ravel_multi_index",
    "_rdiv_scalar _rminus_scalar _rmod_scalar _rnn_param_concat _rpower_scalar _scatter_elemwise_div",
    "_scatter_minus_scalar _scatter_plus_scalar _shuffle _slice_assign _slice_assign_scalar _split_v2",
    "_unravel_index",
    # of linear algebra
    "_linalg_det _linalg_extractdiag _linalg_extracttrian _linalg_gelqf _linalg_gemm _linalg_gemm2",
    "_linalg_inverse _linalg_makediag _linalg_maketrian _linalg_potrf _linalg_potri _linalg_slogdet",
    "_linalg_sumlogdiag _linalg_syevd _linalg_syrk _linalg_trmm _linalg_trsm",
    # of the numpy interface
    "_np_all _np_any _np_atleast_1d _np_atleast_2d _np_atleast_3d _np_copy _np_cumsum _np_diag _np_diagflat",
    "_np_diagonal _np_dot _np_max _np_min _np_moveaxis _np_prod _np_reshape _np_roll _np_squeeze _np_sum",
    "_np_trace _np_transpose _npi_absolute _npi_add _npi_add_scalar _npi_arccos _npi_arccosh _npi_arcsin",
    "_npi_arcsinh _npi_arctan _npi_arctan2 _npi_arctan2_scalar _npi_arctanh _npi_argmax _npi_argmin _npi_around",
    "_npi_average _npi_bernoulli _npi_bitwise_and _npi_bitwise_and_scalar _npi_bitwise_not _npi_bitwise_or",
    "_npi_bitwise_or_scalar _npi_bitwise_xor _npi_bitwise_xor_scalar _npi_broadcast_to _npi_cbrt _npi_ceil",
    "_npi_cholesky _npi_column_stack _npi_concatenate _npi_copysign _npi_cos _npi_cosh _npi_degrees",
    "_npi_diag_indices_from _npi_diff _npi_dsplit _npi_ediff1d _npi_eig _npi_eigh _npi_eigvals _npi_eigvalsh",
    "_npi_einsum _npi_equal _npi_equal_scalar _npi_exp _npi_expm1 _npi_fix _npi_flip _npi_floor _npi_full_like",
    "_npi_gamma _npi_greater _npi_greater_equal _npi_greater_equal_scalar _npi_greater_scalar _npi_gumbel",
    "_npi_hsplit _npi_hypot _npi_insert_scalar _npi_insert_slice _npi_insert_tensor _npi_isfinite _npi_isinf",
    "_npi_isnan _npi_isneginf _npi_isposinf _npi_lcm _npi_lcm_scalar _npi_ldexp _npi_ldexp_scalar _npi_less",
    "_npi_less_equal _npi_less_equal_scalar _npi_less_scalar _npi_log _npi_log10 _npi_log1p _npi_log2",
    "_npi_logical_not _npi_logistic _npi_matmul _npi_mean _npi_mod _npi_mod_scalar _npi_multinomial _npi_multiply",
    "_npi_multiply_scalar _npi_nan_to_num _npi_negative _npi_normal _npi_normal_n _npi_not_equal",
    "_npi_not_equal_scalar _npi_pad _npi_pareto _npi_percentile _npi_pinv _npi_pinv_scalar_rcond _npi_polyval",
    "_npi_power _npi_power_scalar _npi_radians _npi_rarctan2_scalar _npi_reciprocal _npi_rint _npi_rldexp_scalar",
    "_npi_rmod_scalar _npi_rot90 _npi_rpower_scalar _npi_rsubtract_scalar _npi_rtrue_divide_scalar _npi_sign",
    "_npi_sin _npi_sinh _npi_solve _npi_sqrt _npi_square _npi_stack _npi_std _npi_subtract _npi_subtract_scalar",
    "_npi_svd _npi_tan _npi_tanh _npi_tensordot _npi_tensordot_int_axes _npi_tensorinv _npi_tril _npi_true_divide",
    "_npi_true_divide_scalar _npi_trunc _npi_uniform _npi_uniform_n _npi_var _npi_vstack _npi_weibull _npi_where",
    "_npi_where_lscalar _npi_where_rscalar _npi_where_scalar2 _npx_relu _npx_reshape _npx_sigmoid",
    # of contrib and images
    "_contrib_AdaptiveAvgPooling2D _contrib_BatchNormWithReLU _contrib_BilinearResize2D",
    "_contrib_DeformableConvolution _contrib_DeformablePSROIPooling _contrib_MultiBoxDetection",
    "_contrib_MultiBoxPrior _contrib_MultiProposal _contrib_PSROIPooling _contrib_Proposal _contrib_ROIAlign",
    "_contrib_RROIAlign _contrib_SyncBatchNorm _contrib_arange_like _contrib_bipartite_matching",
    "_contrib_box_decode _contrib_box_encode _contrib_box_iou _contrib_box_nms _contrib_div_sqrt_dim",
    "_contrib_gradientmultiplier _contrib_index_array _contrib_index_copy _contrib_interleaved_matmul_encdec_qk",
    "_contrib_interleaved_matmul_encdec_valatt _contrib_interleaved_matmul_selfatt_qk",
    "_contrib_interleaved_matmul_selfatt_valatt _contrib_quadratic _contrib_quantize_v2 _contrib_round_ste",
    "_contrib_sign_ste _image_adjust_lighting _image_crop _image_flip_left_right _image_flip_top_bottom",
    "_image_normalize",
    # random numbers from parameters, and densities
    "_random_pdf_dirichlet _random_pdf_exponential _random_pdf_gamma",
    "_random_pdf_generalized_negative_binomial _random_pdf_negative_binomial _random_pdf_normal",
    "_random_pdf_poisson _random_pdf_uniform _sample_exponential _sample_gamma",
    "_sample_generalized_negative_binomial _sample_multinomial _sample_negative_binomial _sample_normal",
    "_sample_poisson _sample_uniform",
    # fused kernels
    "_echo_apply_mask _echo_attention _echo_bias_act _echo_gru_cell _echo_layer_norm _echo_lstm_cell",
    "_echo_lstm_layer _echo_lstm_norm_cell _echo_mlp_score _echo_pack_mask _echo_relu _echo_sequence_reverse",
    "_echo_softmax_output _echo_weighted_sum",
)

_ON = frozenset({"True", "true", "1"})
# Whose gradients come out as other numbers where they are computed over an array that they read, and not beside it: the
# operator, and the attribute with the values that make it so. (A masked softmax sets the lengths' gradient to zero
# before it reads the lengths: in place, all its gradients are zero.)
IN_PLACE: Mapping[str, tuple[str, frozenset[str]]] = {
    "LeakyReLU": ("act_type", frozenset({"prelu"})),
    "SoftmaxOutput": ("out_grad", _ON),
    **dict.fromkeys(("softmax", "log_softmax", "softmin"), ("use_length", _ON)),
}
# Random, but MXNet does not say so, and it crashes: it was never held against anything.
_UNTRIED = ("LeakyReLU", "act_type", "rrelu")
# All other inputs of these have to be variables: a CachedOp dies when they are maps that move.
_POSITIONS: Mapping[str, frozenset[int]] = {"Deconvolution": frozenset({0})}


def why_not_reader(op: str, attrs: Mapping[str, str], position: int = 0) -> str:
    """Why what an operator reads at this input has to stay where it is; empty where it may run again, or move."""
    if op not in READERS:
        return f"{op} is not known to read its inputs through its inputs alone"
    if position not in _POSITIONS.get(op, frozenset({position})):
        return f"input {position} of {op} must not move"
    name, values = IN_PLACE.get(op, ("", frozenset()))
    if attrs.get(name) in values:
        return f"the gradient of {op} with {name}={attrs[name]} hangs on working in place"
    if op == _UNTRIED[0] and attrs.get(_UNTRIED[1]) == _UNTRIED[2]:
        return f"{op} with {_UNTRIED[1]}={_UNTRIED[2]} was never tried"
    return ""
