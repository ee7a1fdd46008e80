"""The tables of README.md and docs/ are those that the committed results give, with commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.tables import TABLES, with_tables

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_table_is_edited_by_hand(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert with_tables(text) == text


def test_every_table_is_shown() -> None:
    shown = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    assert set(re.findall(r"<!-- table:(\w+) -->", shown)) == set(TABLES)
    assert len(re.findall("<!-- table:", shown)) == len(re.findall("<!-- /table:", shown))


@pytest.mark.parametrize("name", TABLES)
def test_the_command_exists(name: str) -> None:
    command = TABLES[name][2]
    if command.startswith("make "):
        assert re.search(rf"^{command[5:]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    else:
        assert (ROOT / f"{command.split()[2].replace('.', '/')}.py").is_file()


def test_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected one of the tables planned, .*, got 'other'"):
        with_tables("<!-- table:other -->\n<!-- /table:other -->")
