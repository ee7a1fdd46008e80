"""Texts as HTML keep every character, and numbers have their nouns."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from echo.system.markup import counted, preformatted


def test_every_character_is_kept() -> None:
    text = "a < b  & c > \"d\"\n  'e' │ é"
    element = ElementTree.fromstring(preformatted(text))
    assert element.tag == "pre"
    assert element.text == text


def test_a_number_has_its_noun() -> None:
    assert [counted(number, "gradient") for number in (0, 1, 2)] == ["0 gradients", "1 gradient", "2 gradients"]
