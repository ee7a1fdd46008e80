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


def test_a_size_is_rounded_to_a_page_and_then_once_more() -> None:
    """As MXNet does; so a larger request never gets a smaller block."""
    for page, coarse in [(1000, 2 * MB), (3 * 10**6, 2 * MB), (8 * MB, 2 * MB), (4096, 3 * 10**6), (4096, 1)]:
        pool = MemoryPool(page, coarse, powers=False)
        blocks = [pool.handed_out(size) for size in range(0, 20 * MB, 99_991)]
        assert blocks == sorted(blocks)
    assert MemoryPool(1000, 2 * MB, powers=False).handed_out(2 * MB) == 4 * MB
    assert MemoryPool(3 * 10**6, 2 * MB, powers=False).handed_out(1) == 4 * MB
    assert MemoryPool(8 * MB, 2 * MB, powers=False).handed_out(3 * 10**6) == 8 * MB
    assert MemoryPool(4096, 3 * 10**6, powers=False).handed_out(3 * 10**6) == 6 * 10**6
    assert MemoryPool(4096, 1, powers=False).handed_out(4) == 4096


@pytest.mark.parametrize("size", SIZES)
def test_sizes_of_blocks(size: int) -> None:
    naive, powers = MemoryPool(4096, 2 * MB, powers=False), MemoryPool(4096, 16 * MB, powers=True)
    assert (naive.handed_out(size), powers.handed_out(size)) == SIZES[size]
