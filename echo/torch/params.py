"""MXNet's .params files: named arrays, read and written without MXNet.

A file is a list of arrays and a list of names (``NDArray::Save`` of MXNet 1.x, little endian). Only dense arrays are
read. What MXNet 1.x wrote and this reads is written again to the same bytes.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Union

import numpy as np
import torch

from echo.errors import GraphError

File = Union[str, "os.PathLike[str]"]
_LIST, _PLAIN, _NUMPY_SHAPES = 0x112, 0xF993FAC9, 0xF993FACA
_OLD = {0xF993FAC8: "an older version of MXNet (before 1.0)"}
_STORAGE = {1: "row_sparse", 2: "csr"}
# MXNet's numbers of types. numpy has no bfloat16: its bits are read as integers, and viewed by torch.
_TYPES = {0: torch.float32, 1: torch.float64, 2: torch.float16, 3: torch.uint8, 4: torch.int32, 5: torch.int8,
          6: torch.int64, 7: torch.bool, 12: torch.bfloat16}  # fmt: skip
_NUMBERS = {kind: number for number, kind in _TYPES.items()}
_CPU = struct.pack("<ii", 1, 0)


@dataclass(frozen=True)
class Params:
    """Named arrays in the order of the file, and whether it was written under NumPy's semantics of shapes."""

    values: Mapping[str, torch.Tensor]
    numpy_shapes: bool = False


class _Reader:
    def __init__(self, path: File) -> None:
        self._path, self._bytes, self._at = path, Path(path).read_bytes(), 0

    def fail(self, text: str) -> GraphError:
        return GraphError(f"{os.fspath(self._path)}: {text}")

    def take(self, size: int, what: str) -> bytes:
        found = self._bytes[self._at : self._at + size]
        if len(found) < size:
            raise self.fail(f"the file is cut: expected {size} bytes of {what} at {self._at}, got {len(found)}")
        self._at += size
        return found

    def numbers(self, form: str, what: str) -> tuple[int, ...]:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}"), what))

    def end(self) -> None:
        if self._at != len(self._bytes):
            raise self.fail(f"expected the end of the file at {self._at}, got {len(self._bytes) - self._at} more bytes")


def read_params(path: File) -> Params:
    """Reads a file that ``mx.nd.save``, ``Module.save_checkpoint`` or ``HybridBlock.export`` of MXNet 1.x wrote.

    Raises:
        GraphError: the file is cut, of MXNet 2, or no file of named dense arrays.
    """
    reader = _Reader(path)
    first = reader.take(8, "the header")
    if first[:4] == b"PK\x03\x04":
        raise reader.fail("expected a .params file of MXNet 1.x, got a zip archive, as MXNet 2 writes it")
    if struct.unpack("<Q", first) != (_LIST,):
        raise reader.fail(f"expected a .params file of MXNet, which starts with 0x112, got {first.hex()}")
    _, count = reader.numbers("QQ", "the number of arrays")
    arrays = [_array(reader, f"array {number}") for number in range(count)]
    (named,) = reader.numbers("Q", "the number of names")
    if named != count:
        raise reader.fail(f"expected a name for each of {count} arrays, got {named} names")
    names = [_name(reader, number) for number in range(count)]
    reader.end()
    if len(set(names)) != count:
        raise reader.fail(f"expected each name once, got {sorted({name for name in names if names.count(name) > 1})}")
    return Params({name: value for name, (value, _) in zip(names, arrays)}, any(numpy for _, numpy in arrays))


def _name(reader: _Reader, number: int) -> str:
    (length,) = reader.numbers("Q", "the length of a name")
    try:
        return reader.take(length, f"name {number}").decode()
    except UnicodeDecodeError as error:
        raise reader.fail(f"name {number} is not UTF-8: {error}") from error


def _array(reader: _Reader, what: str) -> tuple[torch.Tensor, bool]:
    magic, storage = reader.numbers("Ii", f"the header of {what}")
    if magic not in (_PLAIN, _NUMPY_SHAPES):
        raise reader.fail(f"{what}: expected an array of MXNet 1.x, got {_OLD.get(magic, hex(magic))}")
    if storage != 0:
        raise reader.fail(f"{what}: expected dense storage, got {_STORAGE.get(storage, storage)}")
    (ndim,) = reader.numbers("i", f"the rank of {what}")
    if ndim < 0 or (ndim == 0 and magic == _PLAIN):
        raise reader.fail(f"{what}: expected values, got an array without a shape")
    shape = reader.numbers(f"{ndim}q", f"the shape of {what}")
    _, _, number = reader.numbers("iii", f"the type of {what}")
    if number not in _TYPES:
        raise reader.fail(f"{what}: expected a type of {sorted(_TYPES)}, got {number}")
    if any(size < 0 for size in shape):
        raise reader.fail(f"{what}: expected a known shape, got {shape}")
    data = reader.take(int(np.prod(shape, dtype=object)) * _TYPES[number].itemsize, f"the values of {what}")
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return raw.view(_TYPES[number]).reshape(shape), magic == _NUMPY_SHAPES


def write_params(path: File, params: Params) -> None:
    """Writes named arrays so that MXNet 1.x loads them.

    Raises:
        GraphError: an array has a type that MXNet lacks, or no dimension (without NumPy's semantics of shapes).
    """
    parts = [struct.pack("<QQQ", _LIST, 0, len(params.values))]
    for name, value in params.values.items():
        parts += _written(name, value, params.numpy_shapes)
    parts.append(struct.pack("<Q", len(params.values)))
    for name in params.values:
        parts += [struct.pack("<Q", len(name.encode())), name.encode()]
    Path(path).write_bytes(b"".join(parts))


def _written(name: str, value: torch.Tensor, numpy_shapes: bool) -> list[bytes]:
    if value.dtype not in _NUMBERS:
        raise GraphError(f"{name}: expected a type of MXNet, got {value.dtype}")
    if value.ndim == 0 and not numpy_shapes:
        raise GraphError(f"{name}: expected at least one dimension, as in MXNet, got a scalar")
    magic = _NUMPY_SHAPES if numpy_shapes else _PLAIN
    header = struct.pack(f"<Iii{value.ndim}q", magic, 0, value.ndim, *value.shape)
    flat = value.detach().cpu().contiguous().reshape(-1)
    return [header, _CPU, struct.pack("<i", _NUMBERS[value.dtype]), flat.view(torch.uint8).numpy().tobytes()]


def tensor(name: str, value: Any) -> torch.Tensor:
    """A copy of a value that a user gives: of torch, NumPy or MXNet."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    if not isinstance(value, np.ndarray):
        raise GraphError(f"{name}: expected an array of NumPy or a tensor, got {type(value).__name__}")
    return torch.from_numpy(value.copy())
