"""Texts for people: numbers with nouns, and texts of fixed width as HTML, which notebooks show."""

from __future__ import annotations

from html import escape


def preformatted(text: str) -> str:
    """The text as an element that keeps its lines and columns."""
    return f'<pre style="line-height: 1.25; overflow-x: auto; white-space: pre">{escape(text)}</pre>'


def counted(number: int, noun: str) -> str:
    """A number with its noun, as "1 feature map" or "3 feature maps"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
