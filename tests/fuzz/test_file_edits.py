"""Changes to plans: values in a changed plan are its own."""

from __future__ import annotations

import json
import random
from typing import Any

from fuzz import file_edits
from tests.support.cases import any_case


def test_junk_is_never_put_into_itself() -> None:
    before = repr(file_edits._JUNK)
    rng, graph = random.Random(0), any_case("slices").graph
    for _ in range(300):
        value: dict[str, Any] = {"late": True, "marks": [[1, "a", {}]], "plan": {"key": {}}}
        for _ in range(20):
            file_edits._junk(rng, value, graph)
        json.dumps(value)  # an error where it is circular
    assert repr(file_edits._JUNK) == before
