"""Layers whose gradient is a loss's, whatever gradient arrives at their output, as MXNet has them."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from echo.torch.attributes import Function

Kept = Any  # what torch keeps between forward and backward


class _Softmax(torch.autograd.Function):  # type: ignore[misc]  # torch is not there where types are checked
    """A softmax of rows, with the gradient of its cross-entropy with a class, or probabilities, for each row."""

    @staticmethod
    def forward(ctx: Kept, data: Tensor, label: Tensor, ignored: float, masked: bool, averaged: bool, smoothing: float,
                scale: float) -> Tensor:  # fmt: skip
        output = F.softmax(data, 1)
        ctx.save_for_backward(output, label)
        ctx.settings = ignored, masked, averaged, smoothing, scale
        return output

    @staticmethod
    def backward(ctx: Kept, head: Tensor) -> tuple[Any, ...]:
        output, label = ctx.saved_tensors
        ignored, masked, averaged, smoothing, scale = ctx.settings
        if label.shape == output.shape:
            return (output - label) * scale, *[None] * 6
        classes = output.shape[1]
        numbers = torch.arange(classes, dtype=label.dtype, device=label.device)
        rest = smoothing / max(classes - 1, 1)
        target = torch.where(label.unsqueeze(1) == numbers, 1 - smoothing, rest)
        gradient = (output - target.to(output.dtype)) * scale
        valid = label != ignored
        gradient = gradient * valid.unsqueeze(1) if masked else gradient
        return gradient / valid.sum().clamp(min=1) if averaged else gradient, *[None] * 6


def softmax_output(data: Tensor, label: Tensor | None = None, *, grad_scale: float = 1.0, ignore_label: float = -1.0,
                   use_ignore: bool = False, multi_output: bool = False, preserve_shape: bool = False,
                   normalization: Literal["null", "batch", "valid"] = "null", out_grad: Literal["False"] = "False",
                   smooth_alpha: float = 0.0) -> Tensor:  # fmt: skip
    """Probabilities, whose gradient is that of the cross-entropy with the labels (a softmax alone without these)."""
    moved = data.movedim(1, -1) if multi_output else data
    rows = moved.flatten(0, -2) if multi_output or preserve_shape else moved.flatten(1)
    if label is None:
        result = F.softmax(rows, 1)
    elif label.shape == data.shape:
        labels = (label.movedim(1, -1) if multi_output else label).reshape(rows.shape)
        result = _Softmax.apply(rows, labels, 0.0, False, False, 0.0, grad_scale)
    else:
        places = data[0, 0].numel() if multi_output else 1
        scale = grad_scale / {"null": places, "batch": rows.shape[0], "valid": 1}[normalization]
        smoothing = 0.0 if multi_output else smooth_alpha  # MXNet smooths no labels there
        result = _Softmax.apply(rows, label.reshape(rows.shape[0]), ignore_label, use_ignore, normalization == "valid",
                                smoothing, scale)  # fmt: skip
    result = result.reshape(moved.shape)
    return result.movedim(-1, 1) if multi_output else result


class _Regression(torch.autograd.Function):  # type: ignore[misc]  # torch is not there where types are checked
    """An output that is compared with labels, element by element."""

    @staticmethod
    def forward(ctx: Kept, data: Tensor, label: Tensor, kind: str, scale: float) -> Tensor:
        output = torch.sigmoid(data) if kind == "logistic" else data.clone()
        ctx.save_for_backward(output, label)
        ctx.kind, ctx.scale = kind, scale
        return output

    @staticmethod
    def backward(ctx: Kept, head: Tensor) -> tuple[Any, ...]:
        output, label = ctx.saved_tensors
        gap = output - label.reshape(output.shape)
        gap = torch.sign(gap) if ctx.kind == "absolute" else gap
        return gap * (ctx.scale * label.shape[0] / label.numel()), None, None, None


def regression_output(data: Tensor, label: Tensor | None = None, *, grad_scale: float = 1.0, kind: str) -> Tensor:
    """Values whose gradient is that of a distance to the labels, averaged over the values of a sample."""
    if label is None:
        return torch.sigmoid(data) if kind == "logistic" else data
    return _Regression.apply(data, label, kind, grad_scale)


class _Loss(torch.autograd.Function):  # type: ignore[misc]  # torch is not there where types are checked
    """The same values, with a gradient that does not depend on what arrives."""

    @staticmethod
    def forward(ctx: Kept, data: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return data.clone()

    @staticmethod
    def backward(ctx: Kept, head: Tensor) -> tuple[Any, ...]:
        return ctx.saved_tensors[0].expand(head.shape), None


def make_loss(data: Tensor, *, grad_scale: float = 1.0, valid_thresh: float = 0.0,
              normalization: Literal["null", "batch", "valid"] = "null") -> Tensor:  # fmt: skip
    """A loss of the user's own: its gradient is a number everywhere."""
    scale = torch.full([1] * data.ndim, grad_scale, dtype=data.dtype, device=data.device)
    if normalization == "batch":
        scale = scale / data.shape[0]
    elif normalization == "valid":
        scale = scale / (data.detach() > valid_thresh).sum().clamp(min=1)
    return _Loss.apply(data, scale)


def plain_loss(data: Tensor) -> Tensor:
    """A loss of the user's own, whose gradient is 1 everywhere."""
    return make_loss(data)


def block_gradient(data: Tensor) -> Tensor:
    """The same values without a gradient."""
    return data.detach()


def _ctc(scores: Tensor, label: Tensor, steps: Tensor, counts: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """The CTC loss of each sample, and its gradient: as in MXNet, the forward pass computes both."""
    rows = F.log_softmax(scores, 2)
    loss, alpha = torch.ops.aten._ctc_loss.Tensor(rows, label, steps, counts, blank)
    head = torch.ones_like(loss)
    gradient = torch.ops.aten._ctc_loss_backward.Tensor(head, rows, label, steps, counts, loss, alpha, blank)
    return loss, gradient - rows.exp() * gradient.sum(2, True)


def _like_ctc(scores: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape[1]), scores.new_empty(scores.shape)


def _keep_gradient(ctx: Kept, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _ctc_backward(ctx: Kept, head: Tensor, of_gradient: Tensor | None) -> tuple[Any, ...]:
    if of_gradient is not None:
        raise NotImplementedError("CTCLoss: the gradient of a gradient is not implemented")
    (gradient,) = ctx.saved_tensors
    return gradient * head.unsqueeze(1), None, None, None, None


# One operator, because the size of what torch's own hands to its gradient depends on values, which breaks a graph.
CTC = torch.library.custom_op(
    "echo::ctc_loss", _ctc, mutates_args=(),
    schema="(Tensor scores, Tensor label, Tensor steps, Tensor counts, int blank) -> (Tensor, Tensor)",
)  # fmt: skip
CTC.register_fake(_like_ctc)
CTC.register_autograd(_ctc_backward, setup_context=_keep_gradient)


def ctc_loss(data: Tensor, label: Tensor, *lengths: Tensor, use_data_lengths: bool = False,
             use_label_lengths: bool = False, blank_label: Literal["first", "last"] = "first") -> Tensor:  # fmt: skip
    """The CTC loss of scores (steps, batch, characters); without lengths, padding ends the labels."""
    steps, batch, characters = data.shape
    given = list(lengths)
    sizes = given.pop(0).long() if use_data_lengths else torch.full((batch,), steps, device=data.device)
    padding = 0 if blank_label == "first" else -1
    counts = given.pop(0).long() if use_label_lengths else (label == padding).cumsum(1).eq(0).sum(1)
    blank = 0 if blank_label == "first" else characters - 1
    loss: Tensor = CTC(data, label.long().clamp(min=0), sizes, counts, blank)[0]
    return loss


def softmax_cross_entropy(data: Tensor, label: Tensor) -> Tensor:
    """The sum of cross-entropies."""
    return F.cross_entropy(data, label.long(), reduction="sum").reshape(1)


OPERATORS: Mapping[str, Function] = {
    "SoftmaxOutput": softmax_output,
    "LinearRegressionOutput": partial(regression_output, kind="linear"),
    "LogisticRegressionOutput": partial(regression_output, kind="logistic"),
    "MAERegressionOutput": partial(regression_output, kind="absolute"),
    "MakeLoss": make_loss, "make_loss": plain_loss, "BlockGrad": block_gradient, "CTCLoss": ctc_loss,
    "softmax_cross_entropy": softmax_cross_entropy,
}  # fmt: skip
