"""Tables and lines as a plain text of fixed width, by rich."""

from __future__ import annotations

import io
from typing import Iterable

from rich.console import Console, RenderableType


def text_of(parts: Iterable[RenderableType], width: int) -> str:
    """Renders these with rich, one below the other, in at most ``width`` columns; brackets in texts are no markup."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, markup=False, emoji=False, highlight=False)
    for part in parts:
        console.print(part)
    return out.getvalue().rstrip("\n")
