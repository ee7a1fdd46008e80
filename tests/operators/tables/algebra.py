"""Products, decompositions, and operators of the contrib, image and probability packages."""

from __future__ import annotations

from tests.operators.case import case, each, fixed

SQUARE, SPD, TRI = "x:2x4x4", "spd:2x4x4", "tri:2x4x4"
BOXES = fixed(((0.1, 0.1, 0.4, 0.5), (0.3, 0.2, 0.8, 0.9), (0.5, 0.5, 0.9, 0.8)))

PRODUCTS = [
    case("dot", "x x:12x5"), case("dot", "x x", transpose_b=True), case("dot", "x x", transpose_a=True),
    case("batch_dot", "x:3x4x6 x:3x6x5"), case("batch_dot", "x:3x4x6 x:3x5x6", transpose_b=True),
    case("batch_dot", "x:3x6x4 x:3x6x5", transpose_a=True),
    case("_np_dot", "x x:12x5"), case("_npi_matmul", "x:3x4x6 x:3x6x5"), case("_npi_matmul", "x:3x4x6 x:6x5"),
    case("_npi_tensordot", "x x:12x5", a_axes_summed=(1,), b_axes_summed=(0,)),
    case("_npi_tensordot_int_axes", "x x:12x5", axes=1),
    case("_npi_einsum", "x x:12x5", num_args=2, subscripts="ij,jk->ik", optimize=0),
    case("_contrib_interleaved_matmul_selfatt_qk", "x:5x3x24", heads=2),
    case("_contrib_interleaved_matmul_selfatt_valatt", "x:5x3x24 x:6x5x5", heads=2),
    case("_contrib_interleaved_matmul_encdec_qk", "x:5x3x12 x:4x3x24", heads=2),
    case("_contrib_interleaved_matmul_encdec_valatt", "x:4x3x24 x:6x5x4", heads=2),
]  # fmt: skip

LINEAR = [
    case("_linalg_gemm", f"{SQUARE} {SQUARE} {SQUARE}", alpha=0.5, beta=2.0),
    case("_linalg_gemm2", f"{SQUARE} {SQUARE}", transpose_b=True),
    *each("_linalg_potrf _linalg_det _linalg_slogdet _linalg_inverse _npi_cholesky", SPD),
    *each("_linalg_potri _linalg_sumlogdiag", TRI),
    *each("_linalg_extractdiag _linalg_extracttrian", SQUARE), case("_linalg_makediag", "x"),
    case("_linalg_maketrian", "x:2x10"), case("_linalg_syrk", SQUARE), case("_linalg_syevd", SPD),
    case("_linalg_gelqf", "x:2x3x4"), *each("_linalg_trmm _linalg_trsm", f"{TRI} {SQUARE}"),
    case("_npi_eigh", SPD, UPLO="L"), case("_npi_eigvalsh", SPD, UPLO="L"), case("_npi_eig", SPD),
    case("_npi_eigvals", SPD), case("_npi_svd", "x:2x3x4"), case("_npi_solve", f"{SPD} {SQUARE}"),
    case("_npi_tensorinv", "spd:4x4", ind=1), case("_npi_tensorsolve", "spd:4x4 x:4", a_axes="()"),
    case("_npi_pinv", "spd:1x4x4 u:1", hermitian=False),
    case("_npi_pinv_scalar_rcond", "spd:4x4", rcond=1e-15, hermitian=False),
]  # fmt: skip

CONTRIB = [
    case("_contrib_DeformableConvolution", "x:2xCx6x6 x:2x18x6x6 w:8xCx3x3 w:8", kernel=(3, 3), pad=(1, 1),
         num_filter=8),
    case("_contrib_ROIAlign", "x:2xCx6x6 =", fixed(((0.0, 0.0, 0.0, 4.0, 4.0), (1.0, 1.0, 1.0, 5.0, 5.0))),
         pooled_size=(2, 2), spatial_scale=1.0),
    case("_contrib_RROIAlign", "x:2xCx6x6 =", fixed(((0.0, 2.0, 2.0, 3.0, 3.0, 30.0), (1.0, 3.0, 3.0, 2.0, 4.0, 10.0))),
         pooled_size=(2, 2), spatial_scale=1.0),
    case("_contrib_MultiBoxPrior", "x:2xCx6x6", sizes=(0.5, 0.25), ratios=(1, 2)),
    case("_contrib_MultiBoxTarget", "p:1x6x4 = x:2x3x6", fixed((((0.0, 0.1, 0.1, 0.6, 0.6),), ((1.0, 0.2, 0.2, 0.8,
         0.9),)))),
    case("_contrib_MultiBoxDetection", "p:2x3x6 x:2x24 p:1x6x4"),
    case("_contrib_box_iou", "p:3x4 p:5x4"), case("_contrib_box_nms", "x:4x6"),
    case("_contrib_box_encode", "b:1x3 i2:1x3 p:1x3x4 p:1x2x4 w:4 g:4"),
    case("_contrib_box_decode", "x:1x3x4 =", fixed(BOXES.values and (BOXES.values,)), format="corner"),
    case("_contrib_bipartite_matching", "p:3x4", threshold=0.1),
    case("_contrib_Proposal", "p:1x6x4x4 x:1x12x4x4 =", fixed(((64.0, 64.0, 1.0),)), rpn_pre_nms_top_n=20,
         rpn_post_nms_top_n=6, scales=(2,), ratios=(0.5, 1, 2), rpn_min_size=1),
    case("_contrib_MultiProposal", "p:1x6x4x4 x:1x12x4x4 =", fixed(((64.0, 64.0, 1.0),)), rpn_pre_nms_top_n=20,
         rpn_post_nms_top_n=6, scales=(2,), ratios=(0.5, 1, 2), rpn_min_size=1),
    case("_contrib_hawkesll", "p:2x3 p:3 p:3 p:2x3 = = = =",
         fixed(((0.5, 0.6, 0.7, 0.8), (0.5, 0.6, 0.7, 0.8))), fixed(((0, 1, 2, 1), (1, 0, 2, 2)), "int32"),
         fixed((4.0, 3.0)), fixed((5.0, 5.0))),
    case("_contrib_quantize_v2", "x", out_type="int8", min_calib_range=-1.0, max_calib_range=1.0),
]  # fmt: skip

IMAGE = [
    case("_image_crop", "x:6x6x3", x=1, y=1, width=3, height=3),
    case("_image_normalize", "x:3x6x6", mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5)),
    *each("_image_flip_left_right _image_flip_top_bottom", "x:6x6x3"),
    case("_image_adjust_lighting", "x:6x6x3", alpha=(0.1, 0.2, 0.3)),
]  # fmt: skip

PROBABILITY = [
    case("_random_pdf_uniform", "u:3x5 u:3 g:3"), case("_random_pdf_normal", "x:3x5 x:3 p:3"),
    case("_random_pdf_gamma", "p:3x5 p:3 p:3"), case("_random_pdf_exponential", "p:3x5 p:3"),
    case("_random_pdf_poisson", "i5:3x5 p:3"), case("_random_pdf_negative_binomial", "i5:3x5 g:3 u:3"),
    case("_random_pdf_generalized_negative_binomial", "i5:3x5 p:3 p:3"), case("_random_pdf_dirichlet", "p:3x2x4 p:3x4"),
]  # fmt: skip

CASES = [*PRODUCTS, *LINEAR, *CONTRIB, *IMAGE, *PROBABILITY]
