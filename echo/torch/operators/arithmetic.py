"""Operators that compute element by element, and reductions.

MXNet keeps the type of the first operand: comparisons return numbers. A reduction to one number has the shape (1,).
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any, Literal, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from echo.torch.attributes import Function, Shape


def binary(lhs: Tensor, rhs: Tensor, *, operation: str) -> Tensor:
    """An operator of Python's on two arrays, which are broadcast."""
    return _typed(getattr(operator, operation)(lhs, rhs), lhs)


def with_scalar(data: Tensor, *, scalar: float, operation: str, swapped: bool = False) -> Tensor:
    """An operator of Python's on an array and a number, which comes first if they are ``swapped``."""
    pair = (scalar, data) if swapped else (data, scalar)
    return _typed(getattr(operator, operation)(*pair), data)


def logical(lhs: Tensor, rhs: Tensor, *, operation: str) -> Tensor:
    """A logical operator of torch's on two arrays."""
    return _typed(getattr(torch, operation)(lhs, rhs), lhs)


def maximum(lhs: Tensor, rhs: Tensor) -> Tensor:
    """The larger one; of two equal ones, the gradient of the first."""
    return torch.where(lhs >= rhs, lhs, rhs)


def minimum(lhs: Tensor, rhs: Tensor) -> Tensor:
    """The smaller one; of two equal ones, the gradient of the first."""
    return torch.where(lhs <= rhs, lhs, rhs)


def maximum_scalar(data: Tensor, *, scalar: float) -> Tensor:
    """The larger one of each element and a number."""
    return torch.clamp(data, min=scalar)


def minimum_scalar(data: Tensor, *, scalar: float) -> Tensor:
    """The smaller one of each element and a number."""
    return torch.clamp(data, max=scalar)


def clip(data: Tensor, *, a_min: float, a_max: float) -> Tensor:
    """Elements within bounds."""
    return torch.clamp(data, a_min, a_max)


def logical_not(data: Tensor) -> Tensor:
    """1 where an element is 0."""
    return _typed(data == 0, data)


def cast(data: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Another type."""
    return data.to(dtype)


def add_n(*args: Tensor) -> Tensor:
    """The sum of any number of arrays, in their order."""
    total = args[0]
    for value in args[1:]:
        total = total + value
    return total


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Elements of x where the condition is not 0; a condition of one dimension chooses rows."""
    chosen = condition != 0
    if chosen.ndim == 1:
        chosen = chosen.reshape(-1, *[1] * (x.ndim - 1))
    return torch.where(chosen, x, y)


def smooth_l1(data: Tensor, *, scalar: float = 1.0) -> Tensor:
    """Huber's function of each element."""
    bound = 1 / scalar**2
    return torch.where(data.abs() < bound, 0.5 * scalar**2 * data * data, data.abs() - 0.5 * bound)


def hard_sigmoid(data: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """A line, cut off at 0 and 1."""
    return torch.clamp(alpha * data + beta, 0, 1)


def div_sqrt_dim(data: Tensor) -> Tensor:
    """Elements divided by the root of the last dimension."""
    return data / data.shape[-1] ** 0.5


def reduce(data: Tensor, *, axis: Shape | None = None, keepdims: bool = False, exclude: bool = False,
           operation: str) -> Tensor:  # fmt: skip
    """A reduction of torch's over some axes."""
    axes = _axes(data, axis, exclude)
    if operation == "prod":
        for one in sorted(axes, reverse=True):
            data = data.prod(one, keepdim=keepdims)
        return torch.atleast_1d(data)
    return torch.atleast_1d(getattr(torch, operation)(data, axes, keepdim=keepdims))


def norm(data: Tensor, *, ord: Literal[1, 2] = 2, axis: Shape | None = None, keepdims: bool = False) -> Tensor:
    """The norm over some axes."""
    return torch.atleast_1d(torch.linalg.vector_norm(data, ord, _axes(data, axis), keepdim=keepdims))


def arg_reduce(data: Tensor, *, axis: int | None = None, keepdims: bool = False, operation: str) -> Tensor:
    """The position of the largest or smallest element, as a number of the type of the data."""
    return torch.atleast_1d(_typed(getattr(torch, operation)(data, axis, keepdim=keepdims), data))


def argmax_channel(data: Tensor) -> Tensor:
    """The position of the largest element in the last axis."""
    return _typed(data.argmax(-1), data)


def _axes(data: Tensor, axis: Shape | None, exclude: bool = False) -> list[int]:
    named = {one % data.ndim for one in axis or ()}
    if not named:
        return list(range(data.ndim))
    return [one for one in range(data.ndim) if (one in named) != exclude]


def _typed(result: Tensor, like: Tensor) -> Tensor:
    return result.to(like.dtype)


def _with(function: Any, **names: str) -> dict[str, Function]:
    return {name: partial(function, operation=operation) for name, operation in names.items()}


_SUMS = {"add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "mod": "mod", "power": "pow"}
_TESTS = {"equal": "eq", "not_equal": "ne", "greater": "gt", "greater_equal": "ge", "lesser": "lt",
          "lesser_equal": "le"}  # fmt: skip
_SCALARS = {"plus": "add", "minus": "sub", "mul": "mul", "div": "truediv", "mod": "mod", "power": "pow"}
OPERATORS: Mapping[str, Function] = {
    **{name: getattr(torch, name) for name in (
        "abs", "arccos", "arcsin", "arctan", "arctanh", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor", "log",
        "log10", "log1p", "log2", "negative", "reciprocal", "relu", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
        "square", "tan", "tanh", "trunc", "zeros_like", "ones_like",
    )},
    "erfinv": torch.erfinv, "fix": torch.trunc, "gammaln": torch.lgamma, "softsign": F.softsign, "_copy": torch.clone,
    **_with(binary, **{f"elemwise_{name}": _SUMS[name] for name in ("add", "sub", "mul", "div")}, _mod="mod",
            _power="pow", **{f"broadcast_{name}": value for name, value in {**_SUMS, **_TESTS}.items()},
            **{f"_{name}": value for name, value in _TESTS.items()}),
    **_with(with_scalar, **{f"_{name}_scalar": value for name, value in {**_SCALARS, **_TESTS}.items()}),
    **{f"_r{name}_scalar": partial(with_scalar, operation=_SCALARS[name], swapped=True)
       for name in ("minus", "div", "power")},
    **_with(logical, **{f"{before}logical_{name}": f"logical_{name}" for before in ("_", "broadcast_")
                        for name in ("and", "or", "xor")}),
    "_maximum": maximum, "broadcast_maximum": maximum, "_maximum_scalar": maximum_scalar,
    "_minimum": minimum, "broadcast_minimum": minimum, "_minimum_scalar": minimum_scalar,
    "clip": clip, "logical_not": logical_not, "Cast": cast, "amp_cast": cast, "add_n": add_n, "where": where,
    "smooth_l1": smooth_l1, "hard_sigmoid": hard_sigmoid, "_contrib_div_sqrt_dim": div_sqrt_dim,
    **_with(reduce, sum="sum", mean="mean", nansum="nansum", prod="prod", max="amax", min="amin"),
    "norm": norm, **_with(arg_reduce, argmax="argmax", argmin="argmin"), "argmax_channel": argmax_channel,
}  # fmt: skip
