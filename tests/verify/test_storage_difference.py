"""How a difference reads."""

from __future__ import annotations

import numpy as np

from echo.verify.storage import Difference


def test_values_shapes_and_types() -> None:
    one, other = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    assert str(Difference("output 0", 0.25, one, other)) == "output 0 by 2.5e-01 of its largest element"
    assert str(Difference("x", 0.0, one, other[:1])) == "x: float32(2, 3) became float32(1, 3)"
    assert str(Difference("x", 0.0, one, other.astype("float16"))) == "x: float32(2, 3) became float16(2, 3)"
