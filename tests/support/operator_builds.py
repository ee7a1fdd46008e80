"""Operators under test, each built from the maps x and y of a small symbol, and recomputed there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx

from echo.ir.op_spec import SIGNS_ATTRIBUTE
from echo.ir.training_node import TrainingNode
from tests.support.cases import case_of, recomputable_outputs
from tests.support.numpy_builds import NUMPY_BUILDS, NUMPY_HEAVY_BUILDS
from tests.support.training import assert_alive, assert_same, bind, random_arrays, recomputing, train

Symbol = mx.sym.Symbol


# From the maps x and y, and with the given name, the operator under test.
Build = Callable[[Symbol, Symbol, str], Symbol]


intern, contrib, linalg = mx.sym._internal, mx.sym.contrib, mx.sym.linalg


def unary(op: Callable[..., Symbol], **attrs: Any) -> Build:
    return lambda x, y, name: op(x, name=name, **attrs)


def positive(op: Callable[..., Symbol], **attrs: Any) -> Build:
    """On x squared plus a half, for operators that real numbers do not all have."""
    return lambda x, y, name: op(mx.sym.square(x) + 0.5, name=name, **attrs)


def binary(op: Callable[..., Symbol], **attrs: Any) -> Build:
    return lambda x, y, name: op(x, y, name=name, **attrs)


def image(op: Callable[..., Symbol], **attrs: Any) -> Build:
    """On x as a batch of images."""
    return lambda x, y, name: op(as_images(x), name=name, **attrs)


def as_images(x: Symbol) -> Symbol:
    return mx.sym.reshape(x, shape=(2, 8, 6, 6))


def as_batch(x: Symbol) -> Symbol:
    return mx.sym.reshape(x, shape=(8, 12, 6))


def column(x: Symbol) -> Symbol:
    return mx.sym.slice_axis(x, axis=1, begin=0, end=1)


def indices(x: Symbol, limit: int) -> Symbol:
    """Integers from 0 below the limit that depend on x."""
    return mx.sym.BlockGrad(mx.sym.floor(mx.sym.sigmoid(x) * limit))


def with_column(op: Callable[..., Symbol]) -> Build:
    return lambda x, y, name: op(x, column(y) * column(y) + 0.5, name=name)


def whole(op: Callable[..., Symbol]) -> Build:
    """On small whole numbers, so that equal ones occur."""
    return lambda x, y, name: op(mx.sym.round(x), mx.sym.round(column(y)), name=name)


def whole_scalar(op: Callable[..., Symbol]) -> Build:
    return lambda x, y, name: op(mx.sym.round(x), scalar=1.0, name=name)


def many(op: Callable[..., Symbol], **attrs: Any) -> Build:
    return lambda x, y, name: op(x, y, x, name=name, **attrs)


def on_sequence(op: Callable[..., Symbol], **attrs: Any) -> Build:
    """On (time, batch, features) with a length for each item of the batch."""

    # of no input: stock MXNet writes anywhere for a length that is no number
    def build(x: Symbol, y: Symbol, name: str) -> Symbol:
        lengths = 1 + mx.sym.arange(12) % 7
        return op(as_batch(x), lengths, use_sequence_length=True, name=name, **attrs)

    return build


LIGHT_BUILDS: dict[str, Build] = {
    # elementwise
    "Activation": unary(mx.sym.Activation, act_type="tanh"),
    "LeakyReLU": unary(mx.sym.LeakyReLU, act_type="elu"),
    "relu": unary(mx.sym.relu),
    "sigmoid": unary(mx.sym.sigmoid),
    "hard_sigmoid": unary(mx.sym.hard_sigmoid),
    "tanh": unary(mx.sym.tanh),
    "softsign": unary(mx.sym.softsign),
    "exp": unary(mx.sym.exp),
    "expm1": unary(mx.sym.expm1),
    "log": positive(mx.sym.log),
    "log1p": positive(mx.sym.log1p),
    "log2": positive(mx.sym.log2),
    "log10": positive(mx.sym.log10),
    "sqrt": positive(mx.sym.sqrt),
    "rsqrt": positive(mx.sym.rsqrt),
    "cbrt": positive(mx.sym.cbrt),
    "rcbrt": positive(mx.sym.rcbrt),
    "square": unary(mx.sym.square),
    "abs": unary(mx.sym.abs),
    "sign": unary(mx.sym.sign),
    "negative": unary(mx.sym.negative),
    "reciprocal": positive(mx.sym.reciprocal),
    "erf": unary(mx.sym.erf),
    "sin": unary(mx.sym.sin),
    "cos": unary(mx.sym.cos),
    "arctan": unary(mx.sym.arctan),
    "clip": unary(mx.sym.clip, a_min=-0.5, a_max=0.5),
    "smooth_l1": unary(mx.sym.smooth_l1, scalar=1.0),
    "Cast": unary(mx.sym.Cast, dtype="float32"),
    "_copy": unary(mx.sym.identity),
    "BlockGrad": unary(mx.sym.BlockGrad),
    "elemwise_add": binary(mx.sym.elemwise_add),
    "elemwise_sub": binary(mx.sym.elemwise_sub),
    "elemwise_mul": binary(mx.sym.elemwise_mul),
    "elemwise_div": lambda x, y, name: mx.sym.elemwise_div(x, mx.sym.square(y) + 0.5, name=name),
    "add_n": many(mx.sym.add_n),
    "_maximum": binary(intern._maximum),
    "_minimum": binary(intern._minimum),
    "_hypot": binary(intern._hypot),
    "_power": lambda x, y, name: intern._power(mx.sym.square(x) + 0.5, y, name=name),
    "where": lambda x, y, name: mx.sym.where(x > y, x, y, name=name),
    "_plus_scalar": unary(intern._plus_scalar, scalar=0.3),
    "_minus_scalar": unary(intern._minus_scalar, scalar=0.3),
    "_rminus_scalar": unary(intern._rminus_scalar, scalar=0.3),
    "_mul_scalar": unary(intern._mul_scalar, scalar=0.3),
    "_div_scalar": unary(intern._div_scalar, scalar=0.3),
    "_rdiv_scalar": positive(intern._rdiv_scalar, scalar=0.3),
    "_power_scalar": positive(intern._power_scalar, scalar=1.3),
    "_maximum_scalar": unary(intern._maximum_scalar, scalar=0.3),
    "_minimum_scalar": unary(intern._minimum_scalar, scalar=0.3),
    "_greater_scalar": whole_scalar(intern._greater_scalar),
    "_lesser_scalar": whole_scalar(intern._lesser_scalar),
    "_equal_scalar": whole_scalar(intern._equal_scalar),
    "_not_equal_scalar": whole_scalar(intern._not_equal_scalar),
    "broadcast_add": with_column(mx.sym.broadcast_add),
    "broadcast_sub": with_column(mx.sym.broadcast_sub),
    "broadcast_mul": with_column(mx.sym.broadcast_mul),
    "broadcast_div": with_column(mx.sym.broadcast_div),
    "broadcast_maximum": with_column(mx.sym.broadcast_maximum),
    "broadcast_minimum": with_column(mx.sym.broadcast_minimum),
    "broadcast_power": lambda x, y, name: mx.sym.broadcast_power(mx.sym.square(x) + 0.5, column(y), name=name),
    "broadcast_equal": whole(mx.sym.broadcast_equal),
    "broadcast_greater": whole(mx.sym.broadcast_greater),
    "broadcast_lesser": whole(mx.sym.broadcast_lesser),
    # normalization and reduction
    "softmax": unary(mx.sym.softmax, axis=-1),
    "log_softmax": unary(mx.sym.log_softmax, axis=-1),
    "softmin": unary(mx.sym.softmin, axis=-1),
    "SoftmaxActivation": unary(mx.sym.SoftmaxActivation),
    "LayerNorm": unary(mx.sym.LayerNorm),
    "BatchNorm": image(mx.sym.BatchNorm, fix_gamma=False),
    "_contrib_BatchNormWithReLU": image(
        mx.sym.contrib.BatchNormWithReLU, fix_gamma=False, attr={SIGNS_ATTRIBUTE: "True"}
    ),
    "InstanceNorm": image(mx.sym.InstanceNorm),
    "L2Normalization": unary(mx.sym.L2Normalization),
    "sum": unary(mx.sym.sum, axis=1, keepdims=True),
    "mean": unary(mx.sym.mean, axis=0),
    "max": unary(mx.sym.max, axis=1),
    "min": unary(mx.sym.min, axis=1),
    "prod": unary(mx.sym.prod, axis=0),
    "norm": unary(mx.sym.norm, axis=1),
    "pick": lambda x, y, name: mx.sym.pick(x, mx.sym.reshape(indices(column(y), 72), shape=(-1,)), name=name),
    # moving data
    "Reshape": unary(mx.sym.Reshape, shape=(4, -1)),
    "Flatten": image(mx.sym.Flatten),
    "transpose": unary(mx.sym.transpose),
    "SwapAxis": lambda x, y, name: mx.sym.SwapAxis(as_batch(x), dim1=0, dim2=2, name=name),
    "expand_dims": unary(mx.sym.expand_dims, axis=1),
    "squeeze": lambda x, y, name: mx.sym.squeeze(mx.sym.expand_dims(x, axis=1), name=name),
    "Concat": many(mx.sym.Concat, dim=1),
    "stack": many(mx.sym.stack, axis=1),
    "SliceChannel": unary(mx.sym.SliceChannel, num_outputs=3, axis=1),
    "slice": unary(mx.sym.slice, begin=(1, 3), end=(7, 60)),
    "slice_axis": unary(mx.sym.slice_axis, axis=1, begin=3, end=60),
    "slice_like": lambda x, y, name: mx.sym.slice_like(x, mx.sym.slice(y, begin=(0, 0), end=(4, 30)), name=name),
    "broadcast_to": lambda x, y, name: mx.sym.broadcast_to(column(x), shape=(8, 40), name=name),
    "broadcast_axis": lambda x, y, name: mx.sym.broadcast_axis(column(x), axis=1, size=40, name=name),
    "broadcast_like": lambda x, y, name: mx.sym.broadcast_like(column(x), y, name=name),
    "tile": unary(mx.sym.tile, reps=(2, 3)),
    "repeat": unary(mx.sym.repeat, repeats=3, axis=1),
    "Pad": image(mx.sym.Pad, mode="constant", pad_width=(0, 0, 0, 0, 1, 2, 2, 1), constant_value=0.5),
    "reverse": unary(mx.sym.reverse, axis=1),
    "SequenceMask": on_sequence(mx.sym.SequenceMask, value=0.25),
    "SequenceLast": on_sequence(mx.sym.SequenceLast),
    "SequenceReverse": on_sequence(mx.sym.SequenceReverse),
    "Embedding": lambda x, y, name: mx.sym.Embedding(indices(column(x), 20), input_dim=20, output_dim=16, name=name),
    "take": lambda x, y, name: mx.sym.take(x, indices(column(y), 8), name=name),
    "one_hot": lambda x, y, name: mx.sym.one_hot(indices(column(x), 12), depth=12, name=name),
    "UpSampling": image(mx.sym.UpSampling, scale=2, sample_type="nearest"),
    "Pooling": image(mx.sym.Pooling, kernel=(3, 3), stride=(2, 2), pool_type="max"),
    "depth_to_space": image(mx.sym.depth_to_space, block_size=2),
    "space_to_depth": image(mx.sym.space_to_depth, block_size=2),
    "zeros_like": unary(mx.sym.zeros_like),
    "ones_like": unary(mx.sym.ones_like),
    "Dropout": unary(mx.sym.Dropout, p=0.5),
    **NUMPY_BUILDS,
}


HEAVY_BUILDS: dict[str, Build] = {
    "Convolution": image(mx.sym.Convolution, kernel=(3, 3), num_filter=16),
    "Deconvolution": image(mx.sym.Deconvolution, kernel=(3, 3), num_filter=16),
    "FullyConnected": unary(mx.sym.FullyConnected, num_hidden=40),
    "dot": binary(mx.sym.dot, transpose_b=True),
    "batch_dot": lambda x, y, name: mx.sym.batch_dot(as_batch(x), as_batch(y), transpose_b=True, name=name),
    "_linalg_gemm": lambda x, y, name: linalg.gemm(
        x, y, mx.sym.var(f"{name}_added", shape=(8, 8)), transpose_b=True, name=name
    ),
    "_linalg_gemm2": binary(linalg.gemm2, transpose_b=True),
    "Correlation": lambda x, y, name: mx.sym.Correlation(
        as_images(x), as_images(y), kernel_size=1, max_displacement=1, pad_size=1, name=name
    ),
    "_contrib_interleaved_matmul_selfatt_qk": lambda x, y, name: contrib.interleaved_matmul_selfatt_qk(
        mx.sym.reshape(x, shape=(8, 3, 24)), heads=2, name=name
    ),
    "_contrib_interleaved_matmul_selfatt_valatt": lambda x, y, name: contrib.interleaved_matmul_selfatt_valatt(
        mx.sym.reshape(x, shape=(8, 3, 24)), mx.sym.reshape(mx.sym.slice_axis(y, axis=1, begin=0, end=48),
                                                            shape=(6, 8, 8)), heads=2, name=name
    ),
    "_contrib_interleaved_matmul_encdec_qk": lambda x, y, name: contrib.interleaved_matmul_encdec_qk(
        mx.sym.reshape(mx.sym.slice_axis(x, axis=1, begin=0, end=36), shape=(8, 3, 12)),
        mx.sym.reshape(y, shape=(8, 3, 24)), heads=2, name=name,
    ),
    "_contrib_interleaved_matmul_encdec_valatt": lambda x, y, name: contrib.interleaved_matmul_encdec_valatt(
        mx.sym.reshape(x, shape=(8, 3, 24)), mx.sym.reshape(mx.sym.slice_axis(y, axis=1, begin=0, end=48),
                                                            shape=(6, 8, 8)), heads=2, name=name
    ),
    **NUMPY_HEAVY_BUILDS,
}  # fmt: skip
BUILDS = {**LIGHT_BUILDS, **HEAVY_BUILDS}


def symbol_with(build: Build, dtype: str = "float32") -> Symbol:
    """Two maps, the operator "under" on them, and products of its outputs with arguments of their own.

    The gradient of such an argument reads the output, whatever operator made it.
    """
    with mx.name.NameManager(), mx.AttrScope():
        data = mx.sym.var("data", dtype=dtype)
        if dtype == "float16":  # which FullyConnected does not know on CPUs
            x, y = (mx.sym.elemwise_mul(data, mx.sym.var(f"{name}_weight"), name=name) for name in "xy")
        else:
            x, y = (mx.sym.FullyConnected(data, num_hidden=72, name=name) for name in "xy")
        under = build(x, y, "under")
        visible = [under[index] for index in range(len(under.list_outputs()))]
        products = [
            mx.sym.elemwise_mul(output, mx.sym.var(f"probe{index}"), name=f"product{index}")
            for index, output in enumerate(visible)
        ]
        # the gradient of x and y must not depend on the operator alone: that of zeros_like is zero
        products.append(mx.sym.square(x + 2 * y))
        return mx.sym.Group([mx.sym.sum(product, name=f"sum{index}") for index, product in enumerate(products)])


def run(symbol: Symbol, dtype: str = "float32") -> tuple[dict[str, Any], str]:
    executor = bind(symbol, random_arrays(symbol, {"data": (8, 72)}, dtype))
    return train(executor), executor.debug_str()


def node_under(symbol: Symbol, dtype: str = "float32") -> TrainingNode:
    """The operator under test as the planner sees it."""
    training = case_of(symbol, {"data": (8, 72)}, "write", {"data": dtype}).training
    (node,) = (node for _, node in training.operators() if node.name == "under" and node.forward)
    return node


def check(build: Build, dtype: str = "float32") -> None:
    """Recomputed by the native hook: the same bits."""
    symbol = symbol_with(build, dtype)
    outputs = recomputable_outputs(node_under(symbol, dtype), "cpu", hook=True)
    assert outputs
    expected, stock = run(symbol, dtype)
    got, graph = run(recomputing(symbol, {"under": list(outputs)}), dtype)
    assert "Name=under_echo\n" in graph
    assert "Name=under_echo" not in stock
    assert_alive(expected)
    assert_same(got, expected)


TYPED = (
    "Activation", "LeakyReLU", "exp", "elemwise_mul", "add_n", "_plus_scalar", "_maximum", "where", "broadcast_add",
    "softmax", "log_softmax", "LayerNorm", "BatchNorm", "sum", "mean", "Concat", "SliceChannel", "transpose",
    "broadcast_axis", "Dropout",
)  # fmt: skip


# The same operators by other code paths.
VARIANTS: dict[str, Build] = {
    "relu": unary(mx.sym.Activation, act_type="relu"),
    "softrelu": unary(mx.sym.Activation, act_type="softrelu"),
    "leaky": unary(mx.sym.LeakyReLU, act_type="leaky"),
    "prelu": unary(mx.sym.LeakyReLU, act_type="prelu"),
    "gelu": unary(mx.sym.LeakyReLU, act_type="gelu"),
    "selu": unary(mx.sym.LeakyReLU, act_type="selu"),
    "relu on images": image(mx.sym.Activation, act_type="relu"),
    "cast to half": unary(mx.sym.Cast, dtype="float16"),
    "cast to integers": unary(mx.sym.Cast, dtype="int32"),
    "softmax at a temperature": unary(mx.sym.softmax, axis=0, temperature=2.0),
    "softmax of masked rows": lambda x, y, name: mx.sym.softmax(
        x, mx.sym.cast(mx.sym.reshape(1 + indices(column(y), 70), shape=(-1,)), "int32"), use_length=True, name=name
    ),
    "channel softmax": image(mx.sym.SoftmaxActivation, mode="channel"),
    "layer norm of the first axis": unary(mx.sym.LayerNorm, axis=0),
    "batch norm with fixed gamma": image(mx.sym.BatchNorm, fix_gamma=True),
    "batch norm with global statistics": image(mx.sym.BatchNorm, use_global_stats=True),
    "batch norm of rows": unary(mx.sym.BatchNorm, fix_gamma=False),
    "batch norm of the last axis": image(mx.sym.BatchNorm, axis=3, fix_gamma=False),
    "channel L2 normalization": image(mx.sym.L2Normalization, mode="channel"),
    "sum of all": unary(mx.sym.sum),
    "sum of all but one": image(mx.sym.sum, axis=1, exclude=True),
    "1-norm": unary(mx.sym.norm, ord=1, axis=0),
    "single slices": lambda x, y, name: mx.sym.SliceChannel(
        as_batch(x), num_outputs=12, axis=1, squeeze_axis=True, name=name
    ),
    "concat of rows": many(mx.sym.Concat, dim=0),
    "concat of images": lambda x, y, name: mx.sym.Concat(as_images(x), as_images(y), dim=1, name=name),
    "transposed images": image(mx.sym.transpose, axes=(0, 2, 3, 1)),
    "strided slice": unary(mx.sym.slice, begin=(None, 70), end=(None, 3), step=(None, -3)),
    "flat tile": unary(mx.sym.tile, reps=(2,)),
    "flat repeat": unary(mx.sym.repeat, repeats=2),
    "edge padding": image(mx.sym.Pad, mode="edge", pad_width=(0, 0, 0, 0, 1, 1, 2, 2)),
    "reflected padding": image(mx.sym.Pad, mode="reflect", pad_width=(0, 0, 0, 0, 1, 1, 2, 2)),
    "reversed whole sequences": lambda x, y, name: mx.sym.SequenceReverse(as_batch(x), name=name),
    "average pooling": image(mx.sym.Pooling, kernel=(2, 2), stride=(2, 2), pool_type="avg"),
    "global pooling": image(mx.sym.Pooling, kernel=(1, 1), global_pool=True, pool_type="max"),
    "sum pooling": image(mx.sym.Pooling, kernel=(3, 3), pad=(1, 1), pool_type="sum"),
    "power pooling": lambda x, y, name: mx.sym.Pooling(
        mx.sym.square(as_images(x)) + 0.5, kernel=(2, 2), pool_type="lp", p_value=2, name=name
    ),
    "bilinear upsampling": image(mx.sym.UpSampling, scale=2, sample_type="bilinear", num_filter=8),
    "joined upsampling": lambda x, y, name: mx.sym.UpSampling(
        as_images(x), as_images(y), scale=2, sample_type="nearest", num_args=2, name=name
    ),
    "take of columns": lambda x, y, name: mx.sym.take(x, indices(column(y), 72), axis=1, mode="wrap", name=name),
    "where of rows": lambda x, y, name: mx.sym.where(mx.sym.reshape(column(x) > 0, shape=(-1,)), x, y, name=name),
    "one input twice": lambda x, y, name: mx.sym.elemwise_mul(x, x, name=name),
    "grouped convolution": image(mx.sym.Convolution, kernel=(3, 3), num_filter=16, num_group=4, no_bias=True),
    "convolution of sequences": lambda x, y, name: mx.sym.Convolution(
        as_batch(x), kernel=(3,), num_filter=16, name=name
    ),
    "dense rows": lambda x, y, name: mx.sym.FullyConnected(as_batch(x), num_hidden=16, flatten=False, name=name),
    "dropout of few": unary(mx.sym.Dropout, p=0.3),
    "dropout of most": unary(mx.sym.Dropout, p=0.9),
    "dropout at all times": unary(mx.sym.Dropout, p=0.3, mode="always"),
    "dropout of images": image(mx.sym.Dropout, p=0.25),
}
