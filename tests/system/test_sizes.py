"""Bytes as text: MB of a million bytes, and smaller units for what is small."""

from __future__ import annotations

import pytest

from echo.system.sizes import bytes_of, megabytes, size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (17_400, "17.4 kB"), (499_600, "500 kB"),
        (999_499, "999 kB"), (999_500, "1.0 MB"), (1_000_000, "1.0 MB"), (6_340_000, "6.3 MB"), (99_949_999, "99.9 MB"),
        (99_950_000, "100 MB"), (842 * 10**6, "842 MB"), (12_345_678_901, "12,346 MB"), (-2_000_000, "-2.0 MB"),
    ],
)  # fmt: skip
def test_size_has_the_unit_that_fits(size: int, text: str) -> None:
    assert size_text(size) == text
    assert abs(bytes_of(text) - size) <= 0.051 * abs(size)


def test_megabytes_are_millions() -> None:
    assert (megabytes(335 * 10**6), megabytes(2**30, 0)) == ("335.0", "1,074")
