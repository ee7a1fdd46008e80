"""Operators that make, move and choose elements.

A size of 0 in the shape of a new array is one that MXNet infers from its readers, such as the batch of a recurrent
layer's first state. Here it is 1, and broadcast: `concat`, `stack` and the recurrent layers expand it.
"""

from __future__ import annotations

from typing import Literal, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from echo.torch.attributes import Ends, Function, Shape


def zeros(*, shape: Shape, dtype: torch.dtype = torch.float32, like: Tensor | None) -> Tensor:
    """Zeros."""
    return full(shape=shape, dtype=dtype, value=0.0, like=like)


def ones(*, shape: Shape, dtype: torch.dtype = torch.float32, like: Tensor | None) -> Tensor:
    """Ones."""
    return full(shape=shape, dtype=dtype, value=1.0, like=like)


def full(*, shape: Shape, value: float, dtype: torch.dtype = torch.float32, like: Tensor | None) -> Tensor:
    """A number in each element."""
    return torch.full([size or 1 for size in shape], value, dtype=dtype, device=_device(like))


def _device(like: Tensor | None) -> torch.device | None:
    return None if like is None else like.device


def arange(*, start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1,
           infer_range: Literal["False"] = "False", dtype: torch.dtype = torch.float32,
           like: Tensor | None) -> Tensor:  # fmt: skip
    """Numbers at equal distances, each ``repeat`` times."""
    first, end = (0.0, start) if stop is None else (start, stop)
    return torch.arange(first, end, step, dtype=dtype, device=_device(like)).repeat_interleave(repeat)


def arange_like(data: Tensor, *, start: float = 0.0, step: float = 1.0, repeat: int = 1,
                axis: int | None = None) -> Tensor:  # fmt: skip
    """As many numbers as the data has elements, or as one of its axes is long."""
    count = data.numel() if axis is None else data.shape[axis]
    places = torch.arange(count, dtype=data.dtype, device=data.device)
    values = torch.floor(places / repeat) * step + start
    return values.reshape(data.shape) if axis is None else values


def shape_array(data: Tensor) -> Tensor:
    """The sizes of an array."""
    return torch.tensor(list(data.shape), dtype=torch.int64, device=data.device)


def reshape(data: Tensor, *, shape: Shape, reverse: bool = False) -> Tensor:
    """Another shape, by MXNet's codes: 0 keeps, -1 infers, -2 keeps the rest, -3 joins two, -4 splits one."""
    sizes, codes = list(data.shape), list(shape)
    if reverse:
        sizes.reverse()
        codes.reverse()
    found = _by_codes(sizes, codes)
    return data.reshape(found[::-1] if reverse else found)


def _by_codes(sizes: list[int], codes: list[int]) -> list[int]:
    found: list[int] = []
    left, wanted = iter(sizes), iter(codes)
    for code in wanted:
        if code == 0:
            found.append(next(left))
        elif code == -2:
            found += left
        elif code == -3:
            found.append(next(left) * next(left))
        elif code == -4:
            size, one, other = next(left), next(wanted), next(wanted)
            found += [size // other if one == -1 else one, size // one if other == -1 else other]
        else:
            next(left, None)
            found.append(code)
    return found


def reshape_like(lhs: Tensor, rhs: Tensor, *, lhs_begin: int | None = None, lhs_end: int | None = None,
                 rhs_begin: int | None = None, rhs_end: int | None = None) -> Tensor:  # fmt: skip
    """The shape of another array, or some of its sizes instead of some."""
    own, other = list(lhs.shape), list(rhs.shape)
    first, last, _ = slice(lhs_begin, lhs_end).indices(len(own))
    return lhs.reshape(own[:first] + other[slice(rhs_begin, rhs_end)] + own[last:])


def flatten(data: Tensor) -> Tensor:
    """All dimensions but the first in one."""
    return data.reshape(data.shape[0], -1)


def expand_dims(data: Tensor, *, axis: int) -> Tensor:
    """A new dimension of one element."""
    return data.unsqueeze(axis)


def squeeze(data: Tensor, *, axis: Shape | None = None) -> Tensor:
    """Without dimensions of one element."""
    return torch.atleast_1d(data.squeeze() if axis is None else data.squeeze(axis))


def transpose(data: Tensor, *, axes: Shape = ()) -> Tensor:
    """Dimensions in another order, by default the reverse one."""
    return data.permute(axes or tuple(range(data.ndim))[::-1])


def swap_axis(data: Tensor, *, dim1: int = 0, dim2: int = 0) -> Tensor:
    """Two dimensions exchanged."""
    return data.transpose(dim1, dim2)


def slices(data: Tensor, *, begin: Ends, end: Ends, step: Ends = ()) -> Tensor:
    """Python's slices of the first dimensions."""
    for axis, (first, last) in enumerate(zip(begin, end)):
        stride = (step[axis] if axis < len(step) else None) or 1
        kept = range(data.shape[axis])[first:last:stride]
        rising = kept if stride > 0 else kept[::-1]
        data = _sliced(data, axis, rising.start, rising.stop, abs(stride))
        data = data if stride > 0 else data.flip(axis)
    return data


def _sliced(data: Tensor, axis: int, first: int | None, last: int | None, stride: int = 1) -> Tensor:
    return data[(slice(None),) * (axis % data.ndim) + (slice(first, last, stride),)]


def slice_axis(data: Tensor, *, axis: int, begin: int, end: int | None) -> Tensor:
    """A slice of one dimension."""
    return _sliced(data, axis, begin, end)


def slice_like(data: Tensor, shape_like: Tensor, *, axes: Shape = ()) -> Tensor:
    """As long as another array in some dimensions, by default in all that it has."""
    for axis in axes or range(shape_like.ndim):
        data = _sliced(data, axis, 0, shape_like.shape[axis])
    return data


def broadcast_to(data: Tensor, *, shape: Shape) -> Tensor:
    """Another shape, in which 0 keeps a size."""
    return data.expand([size or own for size, own in zip(shape, data.shape)])


def broadcast_axis(data: Tensor, *, axis: Shape, size: Shape) -> Tensor:
    """Other sizes of some dimensions of one element."""
    sizes = list(data.shape)
    for one, new in zip(axis, size):
        sizes[one] = new
    return data.expand(sizes)


def broadcast_like(lhs: Tensor, rhs: Tensor, *, lhs_axes: Shape | None = None, rhs_axes: Shape | None = None) -> Tensor:
    """The sizes of another array."""
    if lhs_axes is None or rhs_axes is None:
        return lhs.expand(rhs.shape)
    return broadcast_axis(lhs, axis=lhs_axes, size=tuple(rhs.shape[axis] for axis in rhs_axes))


def tile(data: Tensor, *, reps: Shape) -> Tensor:
    """Copies beside each other."""
    return torch.tile(data, reps)


def repeat(data: Tensor, *, repeats: int, axis: int | None = None) -> Tensor:
    """Each element ``repeats`` times."""
    return data.repeat_interleave(repeats, axis)


def reverse(data: Tensor, *, axis: Shape) -> Tensor:
    """Some dimensions backwards."""
    return data.flip(axis)


def concat(*data: Tensor, dim: int = 1) -> Tensor:
    """Arrays behind each other."""
    return torch.cat(_alike(data, dim), dim)


def stack(*args: Tensor, axis: int = 0) -> Tensor:
    """Arrays along a new dimension."""
    return torch.stack(_alike(args), axis)


def _alike(arrays: Sequence[Tensor], dim: int | None = None) -> list[Tensor]:
    """Arrays with the sizes of each other, but for one dimension."""
    free = None if dim is None else dim % arrays[0].ndim
    sizes = [max(one.shape[axis] for one in arrays) for axis in range(arrays[0].ndim)]
    return [one.expand([one.shape[axis] if axis == free else size for axis, size in enumerate(sizes)])
            for one in arrays]  # fmt: skip


def slice_channel(data: Tensor, *, num_outputs: int, axis: int = 1, squeeze_axis: bool = False) -> tuple[Tensor, ...]:
    """Equal parts."""
    parts = data.split(data.shape[axis] // num_outputs, axis)
    return tuple(part.squeeze(axis) for part in parts) if squeeze_axis else parts


def split_v2(data: Tensor, *, indices: Shape, axis: int = 0, squeeze_axis: bool = False,
             sections: int = 0) -> tuple[Tensor, ...]:  # fmt: skip
    """Equal parts, or parts that start at ``indices``."""
    if sections:
        return slice_channel(data, num_outputs=sections, axis=axis, squeeze_axis=squeeze_axis)
    parts = torch.tensor_split(data, indices[1:] if indices[:1] == (0,) else indices, axis)
    return tuple(part.squeeze(axis) for part in parts) if squeeze_axis else tuple(parts)


def pad(data: Tensor, *, mode: Literal["constant", "edge", "reflect"], pad_width: Shape,
        constant_value: float = 0.0) -> Tensor:  # fmt: skip
    """Elements around an array; the first two dimensions have none."""
    widths = [pad_width[2 * axis + side] for axis in reversed(range(data.ndim)) for side in (0, 1)]
    if mode == "constant":
        return F.pad(data, widths, value=constant_value)
    return F.pad(data, widths[:-4], mode="replicate" if mode == "edge" else mode)


def depth_to_space(data: Tensor, *, block_size: int) -> Tensor:
    """Blocks of channels as blocks of positions."""
    count, channels, height, width = data.shape
    parts = data.reshape(count, block_size, block_size, channels // block_size**2, height, width)
    return parts.permute(0, 3, 4, 1, 5, 2).reshape(count, -1, height * block_size, width * block_size)


OPERATORS: Mapping[str, Function] = {
    "_zeros": zeros, "_ones": ones, "_full": full, "_arange": arange, "_contrib_arange_like": arange_like,
    "shape_array": shape_array, "Reshape": reshape, "reshape_like": reshape_like, "Flatten": flatten,
    "expand_dims": expand_dims, "squeeze": squeeze, "transpose": transpose, "SwapAxis": swap_axis, "slice": slices,
    "slice_axis": slice_axis, "slice_like": slice_like, "broadcast_to": broadcast_to, "broadcast_axis": broadcast_axis,
    "broadcast_like": broadcast_like, "tile": tile, "repeat": repeat, "reverse": reverse, "Concat": concat,
    "_rnn_param_concat": concat, "stack": stack, "SliceChannel": slice_channel, "_split_v2": split_v2, "Pad": pad,
    "depth_to_space": depth_to_space,
}  # fmt: skip
