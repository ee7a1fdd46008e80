"""Code that exists in Python and in C++: each twin in the table of ARCHITECTURE.md names the others where it begins."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "ARCHITECTURE.md"


def twins() -> list[list[str]]:
    """The files of each row in the table of transforms that are written in Python and in C++."""
    _, _, rest = DOCUMENT.read_text(encoding="utf-8").partition("| transform | specification | C++ |\n")
    rows = rest.partition("\n\n")[0].splitlines()[1:]
    return [re.findall(r"`(echo/[\w./]+)`", row) for row in rows]


def opening(path: Path) -> str:
    """The docstring of a Python file; the comment that a C++ file, or its header, begins with."""
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    header = path.with_suffix(".h")
    return (header if header.exists() else path).read_text(encoding="utf-8").partition("#pragma once")[0]


@pytest.mark.parametrize("files", twins(), ids=lambda files: Path(files[0]).stem)
def test_twins_name_each_other(files: list[str]) -> None:
    assert len(files) > 1
    said = {file: opening(ROOT / file) for file in files}
    assert [(file, other) for file in files for other in files if other != file and other not in said[file]] == []


def test_a_twin_is_expected_of_each_transform() -> None:
    assert len(twins()) == 4


@pytest.mark.parametrize("name", ["GreedyKeep", "RuinRecreate"])
def test_solver_has_the_same_name_in_python_and_cpp(name: str) -> None:
    for folder, kind in (("echo/policies/solvers", "*.py"), ("echo/native/planner", "*.h")):
        declared = [path for path in (ROOT / folder).glob(kind) if f"class {name}" in path.read_text(encoding="utf-8")]
        assert len(declared) == 1, f"expected class {name} in one file of {folder}"
