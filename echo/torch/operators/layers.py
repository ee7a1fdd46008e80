"""Operators with weights, pooling, normalizations, and activations."""

from __future__ import annotations

import math
from typing import Literal, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from echo.torch.attributes import Function, Shape


def fully_connected(data: Tensor, weight: Tensor, bias: Tensor | None = None, *, num_hidden: int, no_bias: bool = False,
                    flatten: bool = True) -> Tensor:  # fmt: skip
    """A product with a weight; by default all dimensions but the first are one.

    A layer of one unit is a sum, which Inductor computes in the kernel that makes its input, forward and backward.
    """
    rows = data.flatten(1) if flatten else data
    if num_hidden == 1:
        found = (rows * weight[0]).sum(-1, True)
        return found if bias is None else found + bias
    return F.linear(rows, weight, bias)


def convolution(data: Tensor, weight: Tensor, bias: Tensor | None = None, *, kernel: Shape, num_filter: int,
                stride: Shape = (), pad: Shape = (), dilate: Shape = (), num_group: int = 1, no_bias: bool = False,
                layout: Literal["NCW", "NCHW", "NCDHW", "None"] = "None") -> Tensor:  # fmt: skip
    """A convolution over one to three dimensions."""
    function = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
    return function(data, weight, bias, stride or 1, pad or 0, dilate or 1, num_group)


def deconvolution(data: Tensor, weight: Tensor, bias: Tensor | None = None, *, kernel: Shape, num_filter: int,
                  stride: Shape = (), pad: Shape = (), dilate: Shape = (), adj: Shape = (),
                  num_group: int = 1, no_bias: bool = True,
                  layout: Literal["NCW", "NCHW", "NCDHW", "None"] = "None") -> Tensor:  # fmt: skip
    """A transposed convolution over one to three dimensions."""
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(kernel) - 1]
    return function(data, weight, bias, stride or 1, pad or 0, adj or 0, num_group, dilate or 1)


def pooling(data: Tensor, *, kernel: Shape = (), stride: Shape = (), pad: Shape = (),
            pool_type: Literal["max", "avg", "sum"] = "max", global_pool: bool = False,
            pooling_convention: Literal["valid", "full"] = "valid", count_include_pad: bool = True,
            layout: Literal["NCW", "NCHW", "NCDHW", "None"] = "None") -> Tensor:  # fmt: skip
    """The largest element, average or sum in each window; "full" has windows that reach beyond the end."""
    which = data.ndim - 3
    if global_pool:
        kernel, stride, pad, pooling_convention = tuple(data.shape[2:]), (), (), "valid"
    stride = stride or (1,) * len(kernel)
    full = pooling_convention == "full"
    if full:
        _check_windows(data, kernel, stride, pad)
    if pool_type == "max":
        maximum = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[which]
        return maximum(data, kernel, stride, pad or 0, ceil_mode=full)
    average = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[which]
    if pool_type == "avg":
        return average(data, kernel, stride, pad or 0, full, count_include_pad)
    if which == 0 or full:  # a window beyond the end has fewer elements, and avg_pool1d takes no divisor
        data, pad = F.pad(data, _margins(data, kernel, stride, pad, full)), ()
        return average(data, kernel, stride) * math.prod(kernel)
    return average(data, kernel, stride, pad or 0, divisor_override=1)


def _margins(data: Tensor, kernel: Shape, stride: Shape, pad: Shape, full: bool) -> list[int]:
    """Zeros before and after each dimension, the last one first, so that no window reaches beyond them."""
    found: list[int] = []
    for size, width, step, margin in zip(data.shape[2:], kernel, stride, pad or (0,) * len(kernel)):
        rest = -(size + 2 * margin - width) % step if full else 0
        found = [margin, margin + rest, *found]
    return found


def _check_windows(data: Tensor, kernel: Shape, stride: Shape, pad: Shape) -> None:
    """torch leaves out windows that lie wholly beyond the end, and MXNet does not."""
    for size, width, step, margin in zip(data.shape[2:], kernel, stride, pad or (0,) * len(kernel)):
        last = -(-(size + 2 * margin - width) // step) * step
        if last >= size + margin:
            raise ValueError(f"Pooling: expected windows that start within {size + margin}, got one at {last}")


def batch_norm(data: Tensor, gamma: Tensor, beta: Tensor, moving_mean: Tensor, moving_var: Tensor, *, eps: float = 1e-3,
               momentum: float = 0.9, fix_gamma: bool = True, use_global_stats: bool = False, axis: int = 1,
               output_mean_var: Literal["False"] = "False", training: bool) -> Tensor:  # fmt: skip
    """Batch normalization; the moving variance is that of the biased variances, where torch's is of unbiased ones."""
    scale = torch.ones_like(gamma) if fix_gamma else gamma
    moved = data.transpose(axis, 1) if axis % data.ndim != 1 else data
    if use_global_stats or not training:
        result = F.batch_norm(moved, moving_mean, moving_var, scale, beta, False, 0.0, eps)
    else:
        mean, variance = torch.zeros_like(moving_mean), torch.zeros_like(moving_var)
        result = F.batch_norm(moved, mean, variance, scale, beta, True, 1.0, eps)
        count = moved.numel() // moved.shape[1]
        moving_mean.mul_(momentum).add_(mean, alpha=1 - momentum)
        moving_var.mul_(momentum).add_(variance, alpha=(1 - momentum) * (count - 1) / count)
    return result.transpose(axis, 1) if axis % data.ndim != 1 else result


def layer_norm(data: Tensor, gamma: Tensor, beta: Tensor, *, axis: int = -1, eps: float = 1e-5,
               output_mean_var: Literal["False"] = "False") -> Tensor:  # fmt: skip
    """Normalization over one axis."""
    moved = data.movedim(axis, -1)
    return F.layer_norm(moved, moved.shape[-1:], gamma, beta, eps).movedim(-1, axis)


def instance_norm(data: Tensor, gamma: Tensor, beta: Tensor, *, eps: float = 1e-3) -> Tensor:
    """Normalization of each channel of each sample."""
    return F.instance_norm(data, None, None, gamma, beta, eps=eps)


def l2_normalization(data: Tensor, *, eps: float = 1e-10,
                     mode: Literal["instance", "channel", "spatial"] = "instance") -> Tensor:  # fmt: skip
    """Division by the norm of each sample, position or channel."""
    axes = {"instance": range(1, data.ndim), "channel": (1,), "spatial": range(2, data.ndim)}[mode]
    return data / torch.sqrt(data.square().sum(tuple(axes), keepdim=True) + eps)


def lrn(data: Tensor, *, nsize: int, alpha: float = 1e-4, beta: float = 0.75, knorm: float = 2.0) -> Tensor:
    """Local response normalization over channels."""
    return F.local_response_norm(data, nsize, alpha, beta, knorm)


def activation(data: Tensor, *, act_type: Literal["relu", "sigmoid", "tanh", "softrelu", "softsign"]) -> Tensor:
    """An activation function."""
    functions = {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "softsign": F.softsign}
    return F.softplus(data) if act_type == "softrelu" else functions[act_type](data)


def leaky_relu(data: Tensor, gamma: Tensor | None = None, *, slope: float = 0.25, lower_bound: float = 0.125,
               upper_bound: float = 0.334, act_type: Literal["leaky", "prelu", "elu", "gelu", "rrelu"] = "leaky",
               training: bool) -> Tensor:  # fmt: skip
    """An activation function with a slope for negative values, or a kin of it."""
    if act_type == "prelu":
        return F.prelu(data, gamma)
    if act_type == "rrelu":
        return F.rrelu(data, lower_bound, upper_bound, training)
    if act_type == "elu":
        return F.elu(data, slope)
    if act_type == "leaky":
        return F.leaky_relu(data, slope)
    return F.gelu(data)


def dropout(data: Tensor, *, p: float = 0.5, mode: Literal["training", "always"] = "training", axes: Shape = (),
            training: bool) -> Tensor:  # fmt: skip
    """Dropout; one mask for all positions along ``axes``."""
    active = training or mode == "always"
    if not axes or not active:
        return F.dropout(data, p, active)
    sizes = [1 if axis in axes else size for axis, size in enumerate(data.shape)]
    return data * F.dropout(torch.ones(sizes, dtype=data.dtype, device=data.device), p, True)


def up_sampling(data: Tensor, weight: Tensor | None = None, *, scale: int,
                sample_type: Literal["nearest", "bilinear"], num_filter: int = 0) -> Tensor:  # fmt: skip
    """More pixels: copies, or a deconvolution of each channel."""
    if weight is None:
        return F.interpolate(data, scale_factor=scale, mode="nearest")
    margin = math.ceil((scale - 1) / 2)
    return F.conv_transpose2d(data, weight, stride=scale, padding=margin, groups=data.shape[1])


def softmax(data: Tensor, length: Tensor | None = None, *, axis: int = -1, temperature: float | None = None,
            use_length: bool = False, dtype: torch.dtype | None = None) -> Tensor:  # fmt: skip
    """A softmax, which is 0 from a ``length`` on."""
    scaled = data / temperature if temperature else data
    if length is None:
        return F.softmax(scaled, axis, dtype=dtype)
    places = torch.arange(data.shape[axis], device=data.device)
    places = places.reshape([-1 if one == axis % data.ndim else 1 for one in range(data.ndim)])
    beyond = places >= length.unsqueeze(axis)
    return F.softmax(scaled.masked_fill(beyond, -math.inf), axis, dtype=dtype).masked_fill(beyond, 0)


def log_softmax(data: Tensor, *, axis: int = -1, temperature: float | None = None,
                use_length: Literal["False"] = "False", dtype: torch.dtype | None = None) -> Tensor:  # fmt: skip
    """The logarithm of a softmax."""
    return F.log_softmax(data / temperature if temperature else data, axis, dtype=dtype)


def softmin(data: Tensor, *, axis: int = -1, temperature: float | None = None, use_length: Literal["False"] = "False",
            dtype: torch.dtype | None = None) -> Tensor:  # fmt: skip
    """The softmax of the negative."""
    return softmax(-data, axis=axis, temperature=temperature, dtype=dtype)


def adaptive_average(data: Tensor, *, output_size: Shape = ()) -> Tensor:
    """Averages over as many windows as asked for."""
    return F.adaptive_avg_pool2d(data, output_size * 2 if len(output_size) == 1 else output_size or 1)


OPERATORS: Mapping[str, Function] = {
    "FullyConnected": fully_connected, "Convolution": convolution, "Deconvolution": deconvolution, "Pooling": pooling,
    "BatchNorm": batch_norm, "LayerNorm": layer_norm, "InstanceNorm": instance_norm,
    "L2Normalization": l2_normalization, "LRN": lrn, "Activation": activation, "LeakyReLU": leaky_relu,
    "Dropout": dropout, "UpSampling": up_sampling, "softmax": softmax, "log_softmax": log_softmax, "softmin": softmin,
    "_contrib_AdaptiveAvgPooling2D": adaptive_average,
}  # fmt: skip
