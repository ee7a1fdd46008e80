"""Takes into the site what stands elsewhere in the repository: the documents of its root, and pictures of results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
TAKEN = {
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "assets/nmt_memory.svg": "benchmarks/results/nmt_memory.svg",
    "assets/nmt_steps.svg": "benchmarks/results/nmt_steps.svg",
    "assets/planning_time.png": "benchmarks/results/planning_time.png",
}
PAGES = {"README.md": "index.md", **{source: page for page, source in TAKEN.items()}}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds those files, under their names on the site."""
    for name, source in TAKEN.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Has links between documents of the root lead to their pages."""
    return re.sub(r"\]\((\w+\.md)\)", lambda found: f"]({PAGES.get(found[1], found[1])})", markdown)
