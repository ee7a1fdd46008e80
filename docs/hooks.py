"""Takes into the site what stands elsewhere: documents of the root, pictures of results, the help of commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

from echo.cli.main import application

ROOT = Path(__file__).resolve().parents[1]
TAKEN = {
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "assets/nmt_memory.svg": "benchmarks/results/nmt_memory.svg",
    "assets/nmt_steps.svg": "benchmarks/results/nmt_steps.svg",
    "assets/planning_time.png": "benchmarks/results/planning_time.png",
    "assets/paper_sweeps.svg": "benchmarks/results/paper_sweeps.svg",
    "assets/torch_frontier.png": "benchmarks/results/torch_frontier.png",
}
PAGES = {"README.md": "index.md", **{source: page for page, source in TAKEN.items()}}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds those files, under their names on the site."""
    for name, source in TAKEN.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "reference/command-line.md", content=_command_line()))
    return files


def _command_line() -> str:
    """A page with the help of each command."""
    parts = ["# The command line", "`mxecho --install-completion` has the shell complete commands and options."]
    for name, command in _commands("mxecho", get_command(application())):
        context = command.make_context(name, [], resilient_parsing=True)
        parts += [f"## {name}", f"```text\n{command.get_help(context)}\n```"]
    return "\n\n".join(parts) + "\n"


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command and those below it that its help shows, by their full names."""
    yield name, command
    for below, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _commands(f"{name} {below}", inner)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Has links between documents of the root lead to their pages."""
    markdown = markdown.replace("](docs/", "](")
    return re.sub(r"\]\((\w+\.md)\)", lambda found: f"]({PAGES.get(found[1], found[1])})", markdown)
