"""The operators of MXNet that convert: for each, a function of torch tensors and of the operator's attributes."""

from __future__ import annotations

from typing import Mapping

from echo.torch.attributes import Function
from echo.torch.operators import arithmetic, layers, losses, sequences, shapes

OPERATORS: Mapping[str, Function] = {
    **arithmetic.OPERATORS, **layers.OPERATORS, **losses.OPERATORS, **sequences.OPERATORS, **shapes.OPERATORS,
}  # fmt: skip
