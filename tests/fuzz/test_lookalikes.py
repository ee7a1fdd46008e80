"""Lookalikes of what is fused: some change of a template, the same for the same seed, mostly one that MXNet takes."""

from __future__ import annotations

import random

import pytest

from fuzz import symbols
from fuzz.lookalikes import OF_PATTERNS, lookalike
from fuzz.operators import ANY, MATRIX, SEQUENCE

TEMPLATES = [code for code in (*ANY, *MATRIX, *SEQUENCE) if any(word in code for word in OF_PATTERNS)]


def test_templates_of_patterns_are_changed() -> None:
    changed = [{lookalike(random.Random(seed), code) for seed in range(20)} for code in TEMPLATES]
    assert all(len(codes) > 1 for codes in changed)
    assert lookalike(random.Random(7), TEMPLATES[0]) == lookalike(random.Random(7), TEMPLATES[0])
    assert lookalike(random.Random(7), "nothing") == "nothing"


@pytest.mark.slow
def test_programs_have_some_in_them() -> None:
    sources = [symbols.draw(seed).source() for seed in range(400)]
    for word in ("name='same'", "softmax(**dict(", "np.random."):
        assert any(word in source for source in sources), word
