"""Layers, against MXNet."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.torch.operators import layers  # noqa: E402
from tests.torch.oracle import Case, Oracle, check, numbers  # noqa: E402

IMAGES = (2, 4, 7, 9)
_NORMED = {"data": (4, 3, 5), "gamma": (3,), "beta": (3,)}
_MOVING = {"moving_mean": numbers(0.5, -0.5, 0.1), "moving_var": numbers(0.5, 2.0, 1.0)}


def _norm(case: dict[str, object], **inputs: object) -> Case:
    return Case("BatchNorm", {**_NORMED, **_MOVING, **inputs}, case)


def _pool(**attrs: object) -> Case:
    return Case("Pooling", {"data": attrs.pop("data", IMAGES)}, attrs)


def _convolved(op: str, size: tuple[int, ...], weight: tuple[int, ...], bias: int = 0, **attrs: object) -> Case:
    inputs = {"data": size, "weight": weight, **({"bias": (bias,)} if bias else {})}
    return Case(op, inputs, {"no_bias": not bias, **attrs})


TRAINING = [
    Case("FullyConnected", {"data": (2, 3, 4), "weight": (5, 12), "bias": (5,)}, {"num_hidden": 5}),
    Case("FullyConnected", {"data": (2, 3, 4), "weight": (5, 4), "bias": (5,)}, {"num_hidden": 5, "flatten": False}),
    Case("FullyConnected", {"data": (2, 4), "weight": (5, 4)}, {"num_hidden": 5, "no_bias": True}),
    Case("FullyConnected", {"data": (2, 3, 4), "weight": (1, 4), "bias": (1,)}, {"num_hidden": 1, "flatten": False}),
    Case("FullyConnected", {"data": (2, 3, 4), "weight": (1, 12)}, {"num_hidden": 1, "no_bias": True}),
    _convolved("Convolution", IMAGES, (6, 4, 3, 2), 6, kernel=(3, 2), num_filter=6),
    _convolved("Convolution", IMAGES, (6, 2, 3, 3), kernel=(3, 3), stride=(2, 1), pad=(1, 2), dilate=(1, 2),
         num_filter=6,
               num_group=2, layout="NCHW"),
    _convolved("Convolution", (2, 4, 9), (6, 4, 3), 6, kernel=(3,), pad=(1,), num_filter=6, layout="NCW"),
    _convolved("Convolution", (1, 2, 4, 5, 6), (3, 2, 2, 2, 2), 3, kernel=(2, 2, 2), num_filter=3),
    _convolved("Deconvolution", IMAGES, (4, 3, 3, 3), 3, kernel=(3, 3), num_filter=3),
    _convolved("Deconvolution", IMAGES, (4, 3, 3, 3), kernel=(3, 3), stride=(2, 2), pad=(1, 1), adj=(1, 0),
         num_filter=6,
               num_group=2),
    *[_pool(kernel=(3, 2), pool_type=kind, **attrs) for kind in ("max", "avg", "sum") for attrs in (
        {}, {"stride": (2, 3)}, {"stride": (2, 2), "pad": (1, 1)}, {"stride": (2, 2), "pooling_convention": "full"},
        {"stride": (2, 3), "pad": (1, 1), "pooling_convention": "full"})],
    _pool(kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg", count_include_pad=False),
    *[_pool(kernel=(1, 1), global_pool=True, pool_type=kind) for kind in ("max", "avg", "sum")],
    *[_pool(data=(2, 3, 8), kernel=(3,), stride=(2,), pool_type=kind) for kind in ("max", "avg", "sum")],
    _pool(data=(2, 3, 4, 5, 6), kernel=(2, 2, 2), stride=(2, 2, 2), pool_type="avg"),
    _norm({}), _norm({"fix_gamma": False}), _norm({"fix_gamma": False, "eps": 1e-5, "momentum": 0.7}),
    _norm({"fix_gamma": False, "use_global_stats": True}), _norm({"fix_gamma": False, "axis": -1}, data=(4, 5, 3)),
    *[Case("LayerNorm", {"data": (4, 3, 5), "gamma": (size,), "beta": (size,)}, attrs)
      for size, attrs in ((5, {}), (5, {"eps": 1e-3}), (3, {"axis": 1}))],
    Case("InstanceNorm", _NORMED), Case("InstanceNorm", _NORMED, {"eps": 0.1}),
    *[Case("L2Normalization", {"data": IMAGES}, {"mode": mode}) for mode in ("instance", "channel", "spatial")],
    Case("LRN", {"data": (2, 7, 3, 3)}, {"nsize": 5, "alpha": 0.1}),
    *[Case("Activation", {"data": (3, 4)}, {"act_type": kind})
      for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")],
    *[Case("LeakyReLU", {"data": (3, 4)}, {"act_type": kind}) for kind in ("leaky", "elu", "gelu")],
    *[Case("LeakyReLU", {"data": (3, 4)}, {"act_type": kind, "slope": 0.7}) for kind in ("leaky", "elu")],
    Case("LeakyReLU", {"data": (3, 4, 2), "gamma": (4,)}, {"act_type": "prelu"}),
    Case("Dropout", {"data": (3, 4)}, {"p": 0.0}),
    Case("UpSampling", {"data": (2, 3, 4, 5)}, {"scale": 2, "sample_type": "nearest", "num_args": 1}),
    *[Case("UpSampling", {"data": (2, 3, 4, 5), "weight": (3, 1, 2 * scale - scale % 2, 2 * scale - scale % 2)},
           {"scale": scale, "sample_type": "bilinear", "num_filter": 3, "num_args": 2}) for scale in (2, 3)],
    *[Case(op, {"data": (3, 4, 2)}, attrs) for op in ("softmax", "log_softmax", "softmin")
      for attrs in ({}, {"axis": 1}, {"temperature": 3.0})],
    Case("softmax", {"data": (3, 4), "length": numbers(1, 4, 2).astype(np.int32)}, {"use_length": True, "axis": -1},
         fixed=("length",)),
    Case("_contrib_AdaptiveAvgPooling2D", {"data": IMAGES}),
    Case("_contrib_AdaptiveAvgPooling2D", {"data": IMAGES}, {"output_size": (2, 3)}),
]  # fmt: skip
INFERENCE = [
    _norm({"fix_gamma": False}), _norm({}), Case("Dropout", {"data": (3, 4)}, {"p": 0.5}),
    Case("LeakyReLU", {"data": (3, 4)}, {"act_type": "rrelu"}),
]  # fmt: skip


@pytest.mark.parametrize("case", TRAINING, ids=str)
def test_layer_trains_as_in_mxnet(oracle: Oracle, case: Case) -> None:
    check(oracle, case)


@pytest.mark.parametrize("case", INFERENCE, ids=str)
def test_layer_predicts_as_in_mxnet(oracle: Oracle, case: Case) -> None:
    check(oracle, case, training=False)


def test_every_layer_has_a_case() -> None:
    assert set(layers.OPERATORS) == {case.op for case in TRAINING}


@pytest.mark.parametrize("axes", [(), (0,), (1,)])
def test_dropout_draws_one_mask_along_axes(axes: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    dropped = layers.dropout(torch.ones(40, 30), p=0.25, axes=axes, training=True)
    assert dropped.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    for axis in axes:
        assert torch.equal(dropped.amax(axis), dropped.amin(axis))
    assert 0.1 < 1 - float(dropped.count_nonzero()) / dropped.numel() < 0.5


def test_dropout_of_always_drops_in_inference() -> None:
    assert layers.dropout(torch.ones(100), mode="always", training=False).unique().tolist() == [0.0, 2.0]


def test_window_beyond_the_end_raises_value_error() -> None:
    with pytest.raises(ValueError, match="start within 4, got one at 4"):
        layers.pooling(torch.ones(1, 1, 4), kernel=(1,), stride=(2,), pooling_convention="full")
