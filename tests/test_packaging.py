"""What is installed agrees with pyproject.toml, the change log and the README."""

from __future__ import annotations

import inspect
import re
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project_field(name: str) -> str:
    found = re.search(rf'^{name} = "(.+)"$', text("pyproject.toml"), re.MULTILINE)
    assert found, f"pyproject.toml has no {name}"
    return found.group(1)


def readme_options() -> list[str]:
    table = text("README.md").split("### Options", 1)[1].split("\n#", 1)[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_one_version() -> None:
    import echo

    version = project_field("version")
    assert echo.__version__ == version
    assert metadata.version("mxnet-echo") == version
    assert re.search(rf"\b{re.escape(version)}\b", text("CHANGELOG.md"))


def test_console_script() -> None:
    (script,) = (entry for entry in metadata.entry_points(group="console_scripts") if entry.name == "mxecho")
    assert callable(script.load())


def test_python_versions_agree() -> None:
    assert metadata.metadata("mxnet-echo")["Requires-Python"] == "<3.12,>=3.8"
    assert project_field("requires-python") == ">=3.8,<3.12"
    assert "Python 3.8 to 3.11" in text("README.md")


@pytest.mark.parametrize("function", ["optimize", "plan"])
def test_readme_lists_every_option(function: str) -> None:
    import echo
    from echo.options import Options

    parameters = inspect.signature(getattr(echo, function)).parameters
    known = set(parameters) | set(inspect.signature(Options).parameters)
    options = readme_options()
    assert options, "no options in the README's table"
    assert set(options) <= known


def test_readme_has_a_place_for_the_table() -> None:
    start, end = (text("README.md").find(f"<!-- {mark} -->") for mark in ("table:planned", "/table:planned"))
    assert 0 < start < end


def test_readme_commands_are_make_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text("README.md"), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets
