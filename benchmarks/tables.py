"""Writes the README's tables from the results in benchmarks/results/.

    python -m benchmarks.tables
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.record import load

README = Path(__file__).resolve().parents[1] / "README.md"
_BOUNDS = ("0.05", "0.10", "0.25", "none")


def planned_table(result: dict[str, Any]) -> str:
    """Planned MB of each model without echo and under each bound on time."""
    lines = [
        "| model | stock MB | 0.05 | **0.10 (default)** | 0.25 | no bound | of stock |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        cells = [f"{row[bound]['mb']:.0f}" for bound in _BOUNDS]
        share = row["none"]["mb"] / row["stock_mb"]
        lines.append(f"| {row['model']} | {row['stock_mb']:.0f} | {' | '.join(cells)} | {share:.2f} |")
    return "\n".join(lines) + _source(result)


def time_table(result: dict[str, Any]) -> str:
    """Time of a step against stock, measured and predicted."""
    lines = [
        "| model | 0.05 | **0.10 (default)** | 0.25 | no bound |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        cells = [f"{row[bound]['ratio']:.2f} ({1 + row[bound]['predicted_overhead']:.2f})" for bound in _BOUNDS]
        lines.append(f"| {row['model']} | {' | '.join(cells)} |")
    return "\n".join(lines) + _source(result)


def startup_table(result: dict[str, Any]) -> str:
    """What the package adds to the start of Python."""
    lines = ["| start of Python | ms | added | of that the .pth file |", "|---|---:|---:|---:|"]
    for row in result["rows"]:
        added = [f"{row[name]:.2f}" if row["added_ms"] else "" for name in ("added_ms", "file_ms")]
        lines.append(f"| {row['case']} | {row['start_ms']:.1f} ± {row['spread_ms'] / 2:.1f} | {' | '.join(added)} |")
    return "\n".join(lines) + _source(result)


def sockeye_table(result: dict[str, Any]) -> str:
    """Memory and speed of Sockeye's models under ECHO=1."""
    lines = [
        "| model | stock MB | no bound | of stock | storage peak, MB | default | updates a second |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        none, default, counter = row["none"], row["default"], row["counter_mb"]
        lines.append(
            f"| {row['model']} | {row['stock_mb']} | {none['mb']} | {none['mb'] / row['stock_mb']:.2f} "
            f"| {counter['stock']:.0f} to {counter['none']:.0f} | {default['mb']} | {default['updates_ratio']:.2f} |"
        )
    return "\n".join(lines) + _source(result)


def _source(result: dict[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    return (
        f"\n\n{result['date']}, commit {result['commit']}, {machine['processor']}, {machine['cores']} cores, "
        f"mxnet {versions['mxnet']}, numpy {versions['numpy']}, Python {versions['python']}"
        + (f", sockeye {versions['sockeye']}" if "sockeye" in versions else "")
    )


def insert(text: str, name: str, table: str) -> str:
    """The text with everything between the markers ``<!-- table:NAME -->`` and ``<!-- /table:NAME -->`` replaced."""
    pattern = re.compile(f"(<!-- table:{name} -->).*?(<!-- /table:{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"expected the markers of table {name!r}, found none")
    return pattern.sub(lambda found: f"{found.group(1)}\n{table}\n{found.group(2)}", text)


def main() -> None:
    """Rewrites the README in place."""
    text = README.read_text(encoding="utf-8")
    text = insert(text, "planned", planned_table(load("planned_memory")))
    text = insert(text, "time", time_table(load("step_time")))
    text = insert(text, "startup", startup_table(load("startup")))
    text = insert(text, "sockeye", sockeye_table(load("sockeye_training")))
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
