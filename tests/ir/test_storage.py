"""The sizes of blocks that MXNet's pools hand out; `tests/fake_gpu/test_memory.py` holds them against MXNet's own."""

from __future__ import annotations

import pytest

from echo.ir.storage import MemoryPool

MB = 1 << 20
SIZES = {  # of a request: the block in MXNet's naive pool, and in the one of powers of two
    0: (4096, 4096),
    100: (4096, 4096),
    5000: (8192, 8192),
    MB: (MB, MB),
    MB + 4: (MB + 4096, 2 * MB),
    2 * MB: (2 * MB, 2 * MB),
    3 * MB: (4 * MB, 4 * MB),
    9 * MB + 4: (10 * MB, 16 * MB),
    17 * MB: (18 * MB, 32 * MB),
    40 * MB: (40 * MB, 48 * MB),
}


@pytest.mark.parametrize("size", SIZES)
def test_sizes_of_blocks(size: int) -> None:
    naive, powers = MemoryPool(4096, 2 * MB, powers=False), MemoryPool(4096, 16 * MB, powers=True)
    assert (naive.handed_out(size), powers.handed_out(size)) == SIZES[size]
