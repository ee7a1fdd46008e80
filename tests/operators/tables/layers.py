"""Layers of neural networks and their losses."""

from __future__ import annotations

from echo.ir.op_spec import SIGNS_ATTRIBUTE
from tests.operators.case import case, each, fixed

IMAGES = "x:2xCx6x6"
STATES = "w:C w:C a:C a:C"


def rnn(mode: str, gates: int, layers: int = 1, both: bool = False, states: str = "", **attrs: object):  # type: ignore[no-untyped-def]
    """Six features, eight states, five steps, a batch of four."""
    directions = 2 if both else 1
    size = directions * gates * 8 * (6 + 8 + 2) + (layers - 1) * directions * gates * 8 * (8 * directions + 8 + 2)
    rows = f"x:{layers * directions}x4x8"
    return case("RNN", f"x:5x4x6 w:{size} {rows} {rows if mode == 'lstm' else ''}", mode=mode, state_size=8,
                num_layers=layers, bidirectional=both, **attrs)  # fmt: skip


LAYERS = [
    case("FullyConnected", "x w:7x12 w:7", num_hidden=7),
    case("FullyConnected", "x w:7x12", num_hidden=7, no_bias=True),
    case("FullyConnected", "x:3x4x6 w:7x6 w:7", num_hidden=7, flatten=False),
    case("FullyConnected", "x:2x8x6x6 w:7x288 w:7", num_hidden=7),
    case("Convolution", IMAGES + " w:16xCx3x3 w:16", kernel=(3, 3), num_filter=16),
    case("Convolution", IMAGES + " w:8xCx3x3", kernel=(3, 3), num_filter=8, pad=(1, 1), stride=(2, 2), no_bias=True),
    case("Convolution", "x:2x8x6x6 w:8x4x3x3 w:8", kernel=(3, 3), num_filter=8, num_group=2, dilate=(2, 2)),
    case("Convolution", "x:2x8x6x6 w:8x1x3x3", kernel=(3, 3), num_filter=8, num_group=8, no_bias=True),
    case("Convolution", "x:2x8x9 w:16x8x3 w:16", kernel=(3,), num_filter=16),
    case("Convolution", "x:2x3x4x5x5 w:8x3x2x2x2 w:8", kernel=(2, 2, 2), num_filter=8),
    case("Convolution_v1", IMAGES + " w:8xCx3x3 w:8", kernel=(3, 3), num_filter=8),
    case("Deconvolution", IMAGES + " v:Cx8x3x3 v:8", kernel=(3, 3), num_filter=8, no_bias=False),
    case("Deconvolution", IMAGES + " v:Cx16x4x4", kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=16),
    *(case("Pooling", IMAGES, kernel=(2, 2), stride=(2, 2), pool_type=kind) for kind in ("max", "avg", "sum")),
    case("Pooling", "p:2xCx6x6", kernel=(2, 2), pool_type="lp", p_value=2),
    case("Pooling", IMAGES, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max"),
    case("Pooling", IMAGES, kernel=(3, 3), stride=(1, 1), pad=(1, 1), pool_type="avg", count_include_pad=False),
    *(case("Pooling", IMAGES, kernel=(1, 1), global_pool=True, pool_type=kind) for kind in ("max", "avg")),
    case("Pooling", "x:2x8x9", kernel=(2,), stride=(2,), pool_type="max"),
    case("Pooling", "x:2x3x4x4x4", kernel=(2, 2, 2), stride=(2, 2, 2), pool_type="max"),
    case("Pooling_v1", IMAGES, kernel=(2, 2), stride=(2, 2), pool_type="max"),
    case("Pooling_v1", IMAGES, kernel=(2, 2), stride=(2, 2), pool_type="avg"),
    case("_contrib_AdaptiveAvgPooling2D", IMAGES, output_size=(3, 3)),
    case("_contrib_BilinearResize2D", IMAGES, height=9, width=9),
    case("_contrib_BilinearResize2D", IMAGES + " x:2xCx9x9", mode="like"),
    case("UpSampling", IMAGES, scale=2, sample_type="nearest", num_args=1),
    case("UpSampling", IMAGES + " " + IMAGES, scale=2, sample_type="nearest", num_args=2),
    case("UpSampling", "x:2x8x6x6 w:8x1x4x4", scale=2, sample_type="bilinear", num_filter=8, num_args=1),
    *(case("BatchNorm", f"{IMAGES} {STATES}", fix_gamma=fixed_) for fixed_ in (True, False)),
    case("BatchNorm", f"{IMAGES} {STATES}", fix_gamma=False, use_global_stats=True),
    case("BatchNorm", f"{IMAGES} {STATES}", fix_gamma=False, output_mean_var=True),
    case("BatchNorm", "x w:12 w:12 a:12 a:12", fix_gamma=False),
    case("BatchNorm", "x:3x4x6 w:4 w:4 a:4 a:4", fix_gamma=False),
    case("BatchNorm_v1", f"{IMAGES} {STATES}", fix_gamma=False),
    case("_contrib_BatchNormWithReLU", f"{IMAGES} {STATES}", fix_gamma=False, **{SIGNS_ATTRIBUTE: True}),
    case("_contrib_SyncBatchNorm", "x:2x8x6x6 w:8 w:8 a:8 a:8", fix_gamma=False, key="audit", ndev=1),
    case("LayerNorm", "x w:12 w:12"), case("LayerNorm", "x:3x4x6 w:4 w:4", axis=1),
    case("LayerNorm", "x w:12 w:12", output_mean_var=True),
    case("GroupNorm", "x:2x8x6x6 w:4 w:4", num_groups=4), case("InstanceNorm", IMAGES + " w:C w:C"),
    case("InstanceNorm", "x:3x4x6 w:4 w:4"),
    *(case("L2Normalization", IMAGES, mode=mode) for mode in ("instance", "channel", "spatial")),
    case("LRN", IMAGES, nsize=3), case("Dropout", p=0.4), case("Dropout", IMAGES, p=0.4),
    case("Dropout", p=0.4, axes=(1,)),
    case("Correlation", IMAGES + " " + IMAGES, kernel_size=1, max_displacement=1, pad_size=1),
    case("GridGenerator", "x:2x6", transform_type="affine", target_shape=(5, 5)),
    case("GridGenerator", "x:2x2x5x5", transform_type="warp"),
    case("BilinearSampler", IMAGES + " u:2x2x5x5"),
    case("SpatialTransformer", IMAGES + " x:2x6", transform_type="affine", sampler_type="bilinear", target_shape=(5,
         5)),
    case("ROIPooling", IMAGES + " =", fixed(((0.0, 0.0, 0.0, 4.0, 4.0), (1.0, 1.0, 1.0, 5.0, 5.0))), pooled_size=(2, 2),
         spatial_scale=1.0),
]  # fmt: skip

RECURRENT = [
    rnn("rnn_tanh", 1), rnn("rnn_relu", 1), rnn("gru", 3), rnn("lstm", 4), rnn("lstm", 4, state_outputs=True),
    rnn("gru", 3, layers=2), rnn("lstm", 4, both=True), rnn("gru", 3, state_outputs=True, both=True),
    case("RNN", "x:5x4x6 w:512 x:1x4x8 x:1x4x8 =", fixed((5, 3, 2, 5), "int32"), mode="lstm", state_size=8,
         num_layers=1, use_sequence_length=True),
]  # fmt: skip

LOSSES = [
    case("SoftmaxOutput", "x l12:4"), case("SoftmaxOutput", "x l12:4", normalization="batch", grad_scale=0.5),
    case("SoftmaxOutput", "x l12:4", use_ignore=True, ignore_label=3, normalization="valid"),
    case("SoftmaxOutput", "x l12:4", out_grad=True), case("SoftmaxOutput", "x l12:4", smooth_alpha=0.1),
    case("SoftmaxOutput", "x:2xCx6x6 l3:2x6x6", multi_output=True),
    case("SoftmaxOutput", "x:3x4x6 l6:3x4", preserve_shape=True), case("SoftmaxOutput", "x i12:4"),
    # labels that are maps, of which MXNet computes no gradient and leaves what is there
    *each("LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput", "x b"),
    *each("LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput", "x l2:4x12"),
    case("SVMOutput", "x l12:4"), case("SVMOutput", "x l12:4", use_linear=True),
    case("softmax_cross_entropy", "x l12:4"),
    case("CTCLoss", "x:6x4x5 =", fixed(((1.0, 2.0), (3.0, 1.0), (2.0, 2.0), (1.0, 0.0)))),
]  # fmt: skip

CASES = [*LAYERS, *RECURRENT, *LOSSES]
