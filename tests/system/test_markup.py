"""Texts as HTML keep every character."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from echo.system.markup import preformatted


def test_every_character_is_kept() -> None:
    text = "a < b  & c > \"d\"\n  'e' │ é"
    element = ElementTree.fromstring(preformatted(text))
    assert element.tag == "pre"
    assert element.text == text
