"""Texts of fixed width as HTML, which notebooks show."""

from __future__ import annotations

from html import escape


def preformatted(text: str) -> str:
    """The text as an element that keeps its lines and columns."""
    return f'<pre style="line-height: 1.25; overflow-x: auto; white-space: pre">{escape(text)}</pre>'
