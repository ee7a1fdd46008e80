"""The fixture that compares texts with the files of tests/golden/."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a file of tests/golden/, or writes it there under ``--update-golden``."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text + "\n", encoding="utf-8")
        assert path.is_file(), f"there is no {path}: run pytest with --update-golden and read what it wrote"
        assert text + "\n" == path.read_text(encoding="utf-8")

    return check
