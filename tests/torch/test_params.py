"""MXNet's .params files: the same bytes there and back, and files that are no such files."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.errors import GraphError  # noqa: E402
from echo.torch.params import Params, read_params, tensor, write_params  # noqa: E402
from tests.torch.oracle import Oracle  # noqa: E402

TYPES = ["float32", "float64", "float16", "uint8", "int8", "int32", "int64"]
VALUES = {f"arg:{name}": (np.arange(6).reshape(2, 3) - 1).astype(name) for name in TYPES}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of two arrays."""
    write_params(tmp_path / "a.params", Params({"arg:w": torch.arange(6.0).reshape(2, 3), "aux:m": torch.ones(2)}))
    return tmp_path / "a.params"


def test_file_of_mxnet_has_the_same_bytes_when_it_is_written_again(oracle: Oracle, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs.params", tmp_path / "ours.params"
    oracle.ask("save", str(theirs), VALUES)
    read = read_params(theirs)
    for name, value in VALUES.items():
        assert np.array_equal(read.values[name].numpy(), value)
        assert read.values[name].numpy().dtype == value.dtype
    write_params(ours, read)
    assert ours.read_bytes() == theirs.read_bytes()


def test_mxnet_loads_what_is_written(oracle: Oracle, path: Path) -> None:
    loaded = oracle.ask("load", str(path))
    assert loaded["arg:w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded["aux:m"].tolist() == [1, 1]


@pytest.mark.parametrize("kind", [torch.bool, torch.bfloat16])
def test_types_without_an_array_of_mxnet_keep_their_bits(kind: Any, tmp_path: Path) -> None:
    value = torch.tensor([[0.0, 1.0, 2.5]]).to(kind)
    write_params(tmp_path / "b.params", Params({"x": value}))
    read = read_params(tmp_path / "b.params").values["x"]
    assert read.dtype == kind
    assert torch.equal(read, value)


def test_numpy_shapes_are_kept(tmp_path: Path) -> None:
    write_params(tmp_path / "a", Params({"x": torch.tensor(2.0), "y": torch.ones(0, 3)}, numpy_shapes=True))
    read = read_params(tmp_path / "a")
    assert read.numpy_shapes
    assert (read.values["x"].shape, read.values["y"].shape) == ((), (0, 3))
    write_params(tmp_path / "b", read)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_cut_file_raises_graph_error(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(GraphError, match=r"a\.params: the file is cut: expected \d+ bytes of .* at \d+, got \d+"):
            read_params(path)


def _at(whole: bytes, place: int, form: str, value: int) -> bytes:
    new = struct.pack(f"<{form}", value)
    return whole[:place] + new + whole[place + len(new) :]


@pytest.mark.parametrize(
    ("place", "form", "value", "text"),
    [
        (0, "Q", 0x113, "starts with 0x112, got 1301"), (0, "I", 0x04034B50, "a zip archive, as MXNet 2 writes it"),
        (24, "I", 0xF993FAC8, "array 0: expected an array of MXNet 1.x, got an older version"),
        (24, "I", 3, "array 0: expected an array of MXNet 1.x, got 0x3"),
        (28, "i", 1, "array 0: expected dense storage, got row_sparse"), (28, "i", 2, "got csr"),
        (32, "i", 0, "array 0: expected values, got an array without a shape"),
        (32, "i", -1, "array 0: expected values, got an array without a shape"),
        (36, "q", -1, r"array 0: expected a known shape, got \(-1, 3\)"),
        (60, "i", 5000, r"array 0: expected a type of \[0, 1, .*, got 5000"),
        (24 + 64 + 40, "Q", 3, "expected a name for each of 2 arrays, got 3 names"),
    ],
)  # fmt: skip
def test_damaged_file_raises_graph_error(path: Path, place: int, form: str, value: int, text: str) -> None:
    path.write_bytes(_at(path.read_bytes(), place, form, value))
    with pytest.raises(GraphError, match=text):
        read_params(path)


def test_more_bytes_or_a_name_twice_raise_graph_error(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + b"xy")
    with pytest.raises(GraphError, match=r"expected the end of the file at \d+, got 2 more bytes"):
        read_params(path)
    path.write_bytes(whole.replace(b"aux:m", b"arg:w"))
    with pytest.raises(GraphError, match=r"expected each name once, got \['arg:w'\]"):
        read_params(path)
    path.write_bytes(whole.replace(b"aux:m", b"aux:\xff"))
    with pytest.raises(GraphError, match="name 1 is not UTF-8"):
        read_params(path)


@pytest.mark.parametrize(("value", "text"), [(torch.ones(1, dtype=torch.complex64), "x: expected a type of MXNet"),
                                             (torch.tensor(1.0), "x: expected at least one dimension")])  # fmt: skip
def test_value_that_mxnet_lacks_raises_graph_error(value: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=text):
        write_params(tmp_path / "x", Params({"x": value}))


def test_given_values_are_copied() -> None:
    class Array:
        def asnumpy(self) -> Any:
            return np.ones(2)

    source = np.zeros(2)
    made = tensor("x", source)
    source += 1
    assert made.tolist() == [0, 0]
    assert tensor("x", Array()).tolist() == [1, 1]
    weight = torch.nn.Parameter(torch.ones(2))
    assert not tensor("x", weight).requires_grad
    with pytest.raises(GraphError, match="x: expected an array of NumPy or a tensor, got list"):
        tensor("x", [1, 2])
