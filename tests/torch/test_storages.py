"""Bytes and keys of storages, and the entries in which views lie."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.errors import UnsupportedError  # noqa: E402
from echo.torch.storages import nbytes, storage_key  # noqa: E402


def test_bytes_are_those_of_storages() -> None:
    base = torch.ones(6, 4)
    assert nbytes(base[:1]) == nbytes(base) == 96
    assert storage_key(base[1]) == storage_key(base) != storage_key(base.clone())
    assert nbytes(3) == 0
    assert storage_key(None) is None
    assert nbytes(torch.empty(3, device="meta")) == 512, "CUDA's allocator hands out blocks"


def test_sparse_tensor_has_no_storage() -> None:
    with pytest.raises(UnsupportedError, match="has no storage"):
        storage_key(torch.eye(3).to_sparse())
