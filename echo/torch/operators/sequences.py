"""Recurrent layers, sequences of several lengths, products of attention, and choices by index.

Indices, labels and lengths are numbers of any type in MXNet, floats as a rule.
"""

from __future__ import annotations

import math
from typing import Literal, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from echo.torch.attributes import Function

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def rnn(data: Tensor, parameters: Tensor, *states: Tensor, state_size: int, num_layers: int,
        mode: Literal["lstm", "gru", "rnn_tanh", "rnn_relu"], bidirectional: bool = False, p: float = 0.0,
        state_outputs: bool = False, use_sequence_length: Literal["False"] = "False",
        projection_size: Literal["None"] = "None", lstm_state_clip_min: Literal["None"] = "None",
        lstm_state_clip_max: Literal["None"] = "None", lstm_state_clip_nan: bool = False,
        training: bool) -> tuple[Tensor, ...]:  # fmt: skip
    """Recurrent layers on (steps, batch, units), by torch's own: the gates have the same order in both."""
    ways = 2 if bidirectional else 1
    weights = _unpacked(parameters, data.shape[2], state_size, num_layers, ways, _GATES[mode])
    first = [state.expand(num_layers * ways, data.shape[1], state_size).contiguous() for state in states]
    options = (weights, True, num_layers, p, training, bidirectional, False)
    if mode == "lstm":
        return torch.lstm(data, first, *options)  # type: ignore[no-any-return]
    function = {"gru": torch.gru, "rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu}[mode]
    return function(data, first[0], *options)  # type: ignore[no-any-return]


def _unpacked(parameters: Tensor, inputs: int, hidden: int, layers: int, ways: int, gates: int) -> list[Tensor]:
    """cuDNN's packed parameters as torch's: for each layer and direction two weights and two biases."""
    rows = gates * hidden
    shapes: list[tuple[int, ...]] = []
    for layer in range(layers):
        width = hidden * ways if layer else inputs
        shapes += [(rows, width), (rows, hidden)] * ways
    shapes += [(rows,)] * (2 * layers * ways)
    flat = parameters.split([math.prod(shape) for shape in shapes])
    parts = [part.reshape(shape) for part, shape in zip(flat, shapes)]
    weights, biases = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    return [part for at in range(0, len(weights), 2) for part in (*weights[at : at + 2], *biases[at : at + 2])]


def _places(data: Tensor, axis: int) -> Tensor:
    """The number of each step, to be compared with one number for each sample; the other axis is the batch."""
    return torch.arange(data.shape[axis], device=data.device).reshape(-1, *[1] * (axis == 0))


def sequence_mask(data: Tensor, sequence_length: Tensor | None = None, *, use_sequence_length: bool = False,
                  value: float = 0.0, axis: int = 0) -> Tensor:  # fmt: skip
    """A number in all steps from a sample's length on."""
    if sequence_length is None:
        return data
    beyond = _places(data, axis) >= sequence_length.unsqueeze(axis)
    return data.masked_fill(beyond.reshape(*beyond.shape, *[1] * (data.ndim - 2)), value)


def sequence_last(data: Tensor, sequence_length: Tensor | None = None, *, use_sequence_length: bool = False,
                  axis: int = 0) -> Tensor:  # fmt: skip
    """The last step of each sample."""
    steps = data.transpose(0, axis)
    if sequence_length is None:
        return steps[-1]
    return steps[sequence_length.long() - 1, torch.arange(steps.shape[1], device=data.device)]


def sequence_reverse(data: Tensor, sequence_length: Tensor | None = None, *, use_sequence_length: bool = False,
                     axis: Literal[0] = 0) -> Tensor:  # fmt: skip
    """The steps of each sample backwards, up to its length."""
    if sequence_length is None:
        return data.flip(0)
    places, length = _places(data, 0), sequence_length.long().unsqueeze(0)
    source = torch.where(places < length, length - 1 - places, places)
    return data[source, torch.arange(data.shape[1], device=data.device)]


def self_scores(queries_keys_values: Tensor, *, heads: int) -> Tensor:
    """Scores of self-attention; queries, keys and values of each head stand beside each other."""
    q, k, _ = _parts(queries_keys_values, heads, 3)
    return torch.bmm(q / q.shape[2] ** 0.5, k.transpose(1, 2))


def self_values(queries_keys_values: Tensor, attention: Tensor, *, heads: int) -> Tensor:
    """Values of self-attention, weighted."""
    return _joined(torch.bmm(attention, _parts(queries_keys_values, heads, 3)[2]), heads)


def source_scores(queries: Tensor, keys_values: Tensor, *, heads: int) -> Tensor:
    """Scores of attention to another sequence."""
    (q,) = _parts(queries, heads, 1)
    return torch.bmm(q / q.shape[2] ** 0.5, _parts(keys_values, heads, 2)[0].transpose(1, 2))


def source_values(keys_values: Tensor, attention: Tensor, *, heads: int) -> Tensor:
    """Values of another sequence, weighted."""
    return _joined(torch.bmm(attention, _parts(keys_values, heads, 2)[1]), heads)


def _parts(x: Tensor, heads: int, count: int) -> list[Tensor]:
    """(steps, batch, heads * count * size) as ``count`` arrays (batch * heads, steps, size)."""
    steps, batch, _ = x.shape
    parts = x.reshape(steps, batch * heads, count, -1).unbind(2)
    return [part.transpose(0, 1) for part in parts]


def _joined(x: Tensor, heads: int) -> Tensor:
    return x.transpose(0, 1).reshape(x.shape[1], x.shape[0] // heads, -1)


def dot(lhs: Tensor, rhs: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """A product over the last axis of one array and the first of the other."""
    return torch.atleast_1d(torch.tensordot(lhs, rhs, ([0 if transpose_a else -1], [-1 if transpose_b else 0])))


def batch_dot(lhs: Tensor, rhs: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Products of matrices."""
    return torch.matmul(lhs.mT if transpose_a else lhs, rhs.mT if transpose_b else rhs)


def gemm2(A: Tensor, B: Tensor, *, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0,
          axis: Literal[-2] = -2) -> Tensor:  # fmt: skip
    """Products of matrices, scaled."""
    return batch_dot(A, B, transpose_a=transpose_a, transpose_b=transpose_b) * alpha


def _within(indices: Tensor, size: int, mode: str) -> Tensor:
    found = indices.long()
    return found.remainder(size) if mode == "wrap" else found.clamp(0, size - 1)


def embedding(data: Tensor, weight: Tensor, *, input_dim: int, output_dim: int,
              dtype: torch.dtype = torch.float32) -> Tensor:  # fmt: skip
    """Rows of a weight."""
    return F.embedding(_within(data, weight.shape[0], "clip"), weight)


def take(a: Tensor, indices: Tensor, *, axis: int = 0, mode: Literal["clip", "wrap"] = "clip") -> Tensor:
    """Slices of an array along one axis."""
    places = _within(indices, a.shape[axis], mode)
    if axis == 0:
        return F.embedding(places, a) if a.ndim == 2 else a[places]
    before, after = a.shape[:axis], a.shape[axis % a.ndim + 1 :]
    return a.index_select(axis, places.reshape(-1)).reshape(*before, *places.shape, *after)


def pick(data: Tensor, index: Tensor, *, axis: int | None = -1, keepdims: bool = False,
         mode: Literal["clip", "wrap"] = "clip") -> Tensor:  # fmt: skip
    """An element along one axis for each position of the others."""
    if axis is None:
        data, axis = data.reshape(-1), 0
    places = index if index.ndim == data.ndim else index.unsqueeze(axis)
    found = data.gather(axis, _within(places, data.shape[axis], mode))
    return found if keepdims else torch.atleast_1d(found.squeeze(axis))


def gather_nd(data: Tensor, indices: Tensor) -> Tensor:
    """Elements or slices whose positions are the columns of ``indices``."""
    return data[tuple(_within(one, size, "wrap") for one, size in zip(indices, data.shape))]


def one_hot(indices: Tensor, *, depth: int, on_value: float = 1.0, off_value: float = 0.0,
            dtype: torch.dtype = torch.float32) -> Tensor:  # fmt: skip
    """A number at the place of each index, and another elsewhere."""
    hit = indices.long().unsqueeze(-1) == torch.arange(depth, device=indices.device)
    return torch.where(hit, on_value, off_value).to(dtype)


def topk(data: Tensor, *, axis: int | None = -1, k: int = 1, ret_typ: Literal["value", "indices", "both"] = "indices",
         is_ascend: bool = False, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:  # fmt: skip
    """The largest or smallest elements, and their places."""
    if axis is None:
        data, axis = data.reshape(-1), 0
    values, places = torch.topk(data, k if k > 0 else data.shape[axis], axis, largest=not is_ascend)
    return {"value": (values,), "indices": (places.to(dtype),), "both": (values, places.to(dtype))}[ret_typ]


def sort(data: Tensor, *, axis: int | None = -1, is_ascend: bool = True) -> Tensor:
    """Elements in order."""
    data, axis = (data.reshape(-1), 0) if axis is None else (data, axis)
    return data.sort(dim=axis, descending=not is_ascend, stable=True).values


def argsort(data: Tensor, *, axis: int | None = -1, is_ascend: bool = True,
            dtype: torch.dtype = torch.float32) -> Tensor:  # fmt: skip
    """The places of elements in order."""
    data, axis = (data.reshape(-1), 0) if axis is None else (data, axis)
    return data.argsort(dim=axis, descending=not is_ascend, stable=True).to(dtype)


OPERATORS: Mapping[str, Function] = {
    "RNN": rnn, "SequenceMask": sequence_mask, "SequenceLast": sequence_last, "SequenceReverse": sequence_reverse,
    "_contrib_interleaved_matmul_selfatt_qk": self_scores, "_contrib_interleaved_matmul_selfatt_valatt": self_values,
    "_contrib_interleaved_matmul_encdec_qk": source_scores, "_contrib_interleaved_matmul_encdec_valatt": source_values,
    "dot": dot, "batch_dot": batch_dot, "_linalg_gemm2": gemm2, "Embedding": embedding, "take": take, "pick": pick,
    "gather_nd": gather_nd, "one_hot": one_hot, "topk": topk, "sort": sort, "argsort": argsort,
}  # fmt: skip
