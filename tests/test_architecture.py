"""ARCHITECTURE.md is true: its picture is drawn from the imports, and the files and names that it mentions are there.

``python -m tests.test_architecture`` draws the picture anew. Tests stand where the modules do that they test, and keep
their hands off what is private in another room.
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Iterator

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


# Tests -------------------------------------------------------------------------------------------------------------


def does_something(module: ast.Module) -> bool:
    """Whether a module has a function with more in it than words: data and protocols need no test of their own."""
    functions = (node for node in ast.walk(module) if isinstance(node, (ast.FunctionDef, ast.Lambda)))
    bodies = (node.body if isinstance(node.body, list) else [node.body] for node in functions)
    return any(not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)) for body in bodies
               for each in body)  # fmt: skip


def mirrored(module: Path) -> Path:
    """``tests/ROOM/test_NAME.py`` of ``echo/ROOM/NAME.py``."""
    return ROOT / "tests" / module.relative_to(ROOT / "echo").with_name(f"test_{module.name}")


MODULES = [path for path in sorted((ROOT / "echo").rglob("*.py")) if not path.name.startswith("__")]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_has_tests_at_the_same_path(module: Path) -> None:
    if does_something(ast.parse(module.read_text(encoding="utf-8"))):
        test = mirrored(module)
        assert test.is_file(), f"expected its tests in {test.relative_to(ROOT)}"
        assert "def test_" in test.read_text(encoding="utf-8")


def patched(test: Path) -> Iterator[str]:
    """The private names of echo that a file puts others in the place of, as ``echo.ROOM.MODULE._NAME``."""
    tree = ast.parse(test.read_text(encoding="utf-8"))
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            known.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Import):
            known.update({alias.asname: alias.name for alias in node.names if alias.asname})
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            what = [ast.unparse(argument) for argument in node.args[:2]]
            if what[0].startswith(("'", '"')):
                found = ast.literal_eval(what[0])
            else:
                first, _, rest = what[0].partition(".")
                found = ".".join(filter(None, (known.get(first, first), rest, what[1].strip("'\""))))
            if re.match(r"echo\..*\b_[a-z]\w*(?!_)$", found, re.IGNORECASE):
                yield found


@pytest.mark.parametrize("test", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda path: path.stem)
def test_what_is_private_is_patched_in_its_own_room_alone(test: Path) -> None:
    parts = test.relative_to(ROOT / "tests").parts
    room = parts[0] if len(parts) > 1 else test.stem[len("test_") :]
    assert [name for name in patched(test) if name.split(".")[1] != room] == []


if __name__ == "__main__":
    DOCUMENT.write_text(_PICTURE.sub(lambda _: picture(), text()), encoding="utf-8")
