"""ARCHITECTURE.md is true: its picture is drawn from the imports, and the files and names that it mentions are there.

``python -m tests.test_architecture`` draws the picture anew.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import grimp
import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "ARCHITECTURE.md"
_PICTURE = re.compile(r"```mermaid\n.*?```", re.DOTALL)
_NAME = re.compile(r"`(echo(?:\.\w+)+)`")


def picture() -> str:
    """The rooms, each with an arrow to those that it imports, but for arrows that follow from others."""
    imports = grimp.build_graph("echo", exclude_type_checking_imports=True, cache_dir=None)
    rooms: nx.DiGraph = nx.DiGraph()
    for module in imports.modules - {"echo"}:
        for imported in imports.find_modules_directly_imported_by(module) - {"echo"}:
            one, other = module.split(".")[1], imported.split(".")[1]
            if one != other and one != "__main__":
                rooms.add_edge(one, other)
    lines = sorted(f"  {one} --> {other}" for one, other in nx.transitive_reduction(rooms).edges)
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def text() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


def test_the_picture_shows_the_imports() -> None:
    assert _PICTURE.findall(text()) == [picture()], "python -m tests.test_architecture draws it"


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_are_there(document: str) -> None:
    said = (ROOT / document).read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:echo|tests|benchmarks|fuzz|projects|examples|startup)/[\w./]*)`", said))
    paths |= set(re.findall(r"\]\(((?!http)[\w./]+)\)", said))
    paths = {path for path in paths if "NAME" not in path and "FILE" not in path}
    assert len(paths) > 8
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_names_are_there() -> None:
    names = set(_NAME.findall(text()))
    assert len(names) > 5
    for name in names:
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ImportError:
            parent = importlib.import_module(module) if module.islower() else None
            if parent is None:  # a method
                module, _, kind = module.rpartition(".")
                parent = getattr(importlib.import_module(module), kind)
            assert hasattr(parent, attribute), name


if __name__ == "__main__":
    DOCUMENT.write_text(_PICTURE.sub(lambda _: picture(), text()), encoding="utf-8")
