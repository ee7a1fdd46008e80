"""Operators on one element at a time, and comparisons."""

from __future__ import annotations

from tests.operators.case import case, each

UNARY = [
    *each("abs sin cos tan sinh cosh tanh arctan arcsinh sign square negative exp expm1 erf sigmoid hard_sigmoid relu "
          "softsign degrees radians _copy BlockGrad make_loss rint round ceil floor trunc fix logical_not zeros_like "
          "ones_like MakeLoss _contrib_div_sqrt_dim _contrib_round_ste _contrib_sign_ste"),
    *each("arcsin arccos arctanh erfinv log1p", "u"),
    *each("log log2 log10 sqrt rsqrt cbrt rcbrt reciprocal gamma gammaln", "p"),
    *each("arccosh", "g"),
    *each("relu sigmoid abs square exp", "x:2xCx6x6"),
    case("_contrib_gradientmultiplier", scalar=0.3),
    case("_contrib_quadratic", a=0.5, b=-1.0, c=0.25),
    case("MakeLoss", "p", grad_scale=0.5, normalization="valid", valid_thresh=1.0),
    case("clip", a_min=-0.5, a_max=0.5),
    case("smooth_l1", scalar=1.0),
    case("Cast", dtype="float16"),
    case("Cast", dtype="float64"),
    case("Cast", dtype="int32"),
    case("amp_cast", dtype="float16"),
    case("amp_cast", "x:2xCx6x6", dtype="float16"),
    case("amp_multicast", "x x", num_outputs=2),
    case("IdentityAttachKLSparseReg", "p a:12"),
]  # fmt: skip

ACTIVATIONS = [
    *(case("Activation", shape, act_type=kind) for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")
      for shape in ("x", "x:2xCx6x6", "x:2x3x4x2x3")),
    *(case("LeakyReLU", shape, act_type=kind) for kind in ("leaky", "elu", "selu", "gelu")
      for shape in ("x", "x:2xCx6x6")),
    case("LeakyReLU", "x w:12", act_type="prelu"),
    case("LeakyReLU", "x:2xCx6x6 w:C", act_type="prelu"),
    case("LeakyReLU", "x:2xCx6x6 w:1", act_type="prelu"),
]  # fmt: skip

SCALAR = [
    *each("_plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _maximum_scalar _minimum_scalar "
          "_hypot_scalar _mod_scalar _rpower_scalar _scatter_plus_scalar _scatter_minus_scalar "
          "_equal_scalar _not_equal_scalar _greater_scalar _greater_equal_scalar _lesser_scalar _lesser_equal_scalar "
          "_logical_and_scalar _logical_or_scalar _logical_xor_scalar", "x", scalar=0.7),
    *each("_rdiv_scalar _power_scalar _rmod_scalar", "p", scalar=1.7),
    *each("_mul_scalar _plus_scalar", "x:2xCx6x6", scalar=0.7),
]  # fmt: skip

BINARY = [
    *each("elemwise_add elemwise_sub elemwise_mul _maximum _minimum _hypot _scatter_elemwise_div "
          "_equal _not_equal _greater _greater_equal _lesser _lesser_equal _logical_and _logical_or _logical_xor",
          "x x"),
    *each("elemwise_add elemwise_sub elemwise_mul", "x:2xCx6x6 x:2xCx6x6"),
    *each("elemwise_div _mod", "x p"),
    *each("_power", "p x"),
    *each("elemwise_add", "x:2xCx6x6 x:2xCx6x6"),
    case("add_n", "x x x", num_args=3),
    case("add_n", "x:2xCx6x6 x:2xCx6x6 x:2xCx6x6", num_args=3),
    *each("_identity_with_attr_like_rhs reshape_like _grad_add", "x x"),
    *each("broadcast_add broadcast_sub broadcast_mul broadcast_maximum broadcast_minimum broadcast_hypot "
          "broadcast_equal broadcast_not_equal broadcast_greater broadcast_greater_equal broadcast_lesser "
          "broadcast_lesser_equal broadcast_logical_and broadcast_logical_or broadcast_logical_xor", "x x:4x1"),
    *each("broadcast_add broadcast_sub broadcast_mul", "x x"),
    *each("broadcast_add broadcast_mul", "x:2xCx6x6 x:1xCx1x1"),
    *each("broadcast_div broadcast_mod", "x p:1x12"),
    *each("broadcast_power", "p x:4x1"),
    case("where", "b x x"),
    case("where", "b:4 x x"),
]  # fmt: skip

NUMPY_UNARY = [
    *each("_npi_absolute _npi_sin _npi_cos _npi_tan _npi_sinh _npi_cosh _npi_tanh _npi_arctan _npi_arcsinh _npi_sign "
          "_npi_square _npi_negative _npi_exp _npi_expm1 _npx_relu _npx_sigmoid _npi_degrees _npi_radians _np_copy "
          "_npi_rint _npi_ceil _npi_floor _npi_trunc _npi_fix _npi_logical_not _npi_isnan _npi_isinf _npi_isfinite "
          "_npi_isposinf _npi_isneginf _npi_nan_to_num"),
    *each("_npi_arcsin _npi_arccos _npi_arctanh _npi_log1p", "u"),
    *each("_npi_log _npi_log2 _npi_log10 _npi_sqrt _npi_cbrt _npi_reciprocal", "p"),
    *each("_npi_arccosh", "g"),
    case("_npi_around", decimals=1),
    case("_npi_full_like", fill_value=0.5),
    case("_npi_bitwise_not", "j9"),
]  # fmt: skip

NUMPY_SCALAR = [
    *each("_npi_add_scalar _npi_subtract_scalar _npi_rsubtract_scalar _npi_multiply_scalar _npi_true_divide_scalar "
          "_npi_mod_scalar _npi_rpower_scalar _npi_arctan2_scalar "
          "_npi_rarctan2_scalar _npi_ldexp_scalar _npi_rldexp_scalar _npi_equal_scalar _npi_not_equal_scalar "
          "_npi_greater_scalar _npi_greater_equal_scalar _npi_less_scalar _npi_less_equal_scalar", "x", scalar=0.7),
    *each("_npi_rtrue_divide_scalar _npi_power_scalar _npi_rmod_scalar", "p", scalar=1.7),
    *each("_npi_bitwise_and_scalar _npi_bitwise_or_scalar _npi_bitwise_xor_scalar _npi_lcm_scalar", "j9", scalar=6,
          is_int=True),
]  # fmt: skip

NUMPY_BINARY = [
    *each(
        "_npi_add _npi_subtract _npi_multiply _npi_hypot _npi_copysign _npi_arctan2 _npi_ldexp _npi_equal "
        "_npi_not_equal _npi_greater _npi_greater_equal _npi_less _npi_less_equal",
        "x x:4x1",
    ),
    *each("_npi_add _npi_subtract _npi_multiply _npi_arctan2 _npi_copysign", "x x"),
    *each("_npi_true_divide _npi_mod", "x p:4x1"),
    *each("_npi_true_divide", "x p"),
    *each("_npi_power", "p x:1x12"),
    *each("_npi_bitwise_and _npi_bitwise_or _npi_bitwise_xor _npi_lcm", "j9 j7"),
    case("_npi_where", "b x x:4x1"),
    case("_npi_where_lscalar", "b x", scalar=0.5),
    case("_npi_where_rscalar", "b x", scalar=0.5),
    case("_npi_where_scalar2", "b", x=0.5, y=-0.5),
]

CASES = [*UNARY, *ACTIVATIONS, *SCALAR, *BINARY, *NUMPY_UNARY, *NUMPY_SCALAR, *NUMPY_BINARY]
