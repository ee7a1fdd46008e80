"""The installed package agrees with pyproject.toml, the change log, the README and the documentation."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project_field(name: str) -> str:
    found = re.search(rf'^{name} = "(.+)"$', text("pyproject.toml"), re.MULTILINE)
    assert found, f"pyproject.toml has no {name}"
    return found.group(1)


def listed_options() -> dict[str, str]:
    table = text("docs/reference/options.md").split("## Options", 1)[1].split("\n#", 1)[0]
    return dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", table, re.MULTILINE))


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
    assert metadata.metadata("mxnet-echo")["Requires-Python"] == "<3.13,>=3.8"
    assert project_field("requires-python") == ">=3.8,<3.13"
    assert "Python 3.8 to 3.12" in text("README.md")


def test_the_reference_lists_every_option_with_its_default() -> None:
    from echo.plans.options import Options

    listed = {name: ast.literal_eval(default) for name, default in listed_options().items()}
    assert listed == {item.name: item.default for item in fields(Options)}


def test_how_it_works_lists_the_stages_in_order() -> None:
    from echo.pipeline import BASES, PIPELINE, REFINEMENTS

    listed = re.findall(r"^(?:\d+\.|  ) \*\*(.+?)\*\*", text("docs/how-it-works.md"), re.MULTILINE)
    classes = [type(stage).__name__ for stage in (BASES[0], *REFINEMENTS, *PIPELINE)]
    assert [name.title().replace(" ", "") for name in listed] == classes


def test_the_readme_is_what_a_newcomer_needs() -> None:
    readme = text("README.md")
    assert len(readme.splitlines()) < 200
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in target]
    assert targets
    assert not [target for target in targets if not (ROOT / target.partition("#")[0]).exists()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_the_documents_are_make_targets(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets
    if path.name == "README.md":
        assert {"demo", "test", "help"} <= named


def test_missing_mxnet_raises_with_what_to_install() -> None:
    program = """
import sys
sys.modules["mxnet"] = None
import echo
try:
    echo.enable()
except echo.UnsupportedError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'mxnet-echo[cpu]', or [cu102], [cu112], [cu117]" in found.stdout


def test_mxnet_is_an_extra_so_that_a_cuda_wheel_stays() -> None:
    needed = metadata.requires("mxnet-echo") or []
    always = [one for one in needed if "extra ==" not in one]
    assert not [one for one in always if one.startswith("mxnet")]
    for extra in ("cpu", "cu102", "cu112", "cu117"):
        wheel = "mxnet" if extra == "cpu" else f"mxnet-{extra}"
        (found,) = (one for one in needed if one.startswith(f"{wheel}=="))
        assert f'extra == "{extra}"' in found.replace("'", '"')
