"""Bytes as people read them: 1 kB is 1,000 bytes, 1 MB a million, in all that echo prints and draws."""

from __future__ import annotations

KB, MB, GB = 10**3, 10**6, 10**9


def megabytes(size: float, digits: int = 1) -> str:
    """Returns the number of MB, for a column whose heading says so."""
    return f"{size / MB:,.{digits}f}"


def size_text(size: float) -> str:
    """Returns the size with its unit and three digits or more: "842 MB", "6.3 MB", "17 kB", "900 bytes"."""
    if abs(size) < KB:
        return f"{size:.0f} bytes"
    unit, name = (MB, "MB") if abs(size) >= 0.9995 * MB else (KB, "kB")
    return f"{size / unit:,.{0 if abs(size) >= 99.95 * unit else 1}f} {name}"


def bytes_of(text: str) -> int:
    """Returns the bytes in a text of `size_text`."""
    amount, unit = text.replace(",", "").split()
    return round(float(amount) * {"MB": MB, "kB": KB, "bytes": 1}[unit])
