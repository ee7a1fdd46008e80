"""The core installs and plans without a framework: no MXNet, no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A child in which neither framework can be imported, whatever is installed; even a search for one is an error.
BLOCKED = """
import sys

class Blocked:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("mxnet", "torch"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked)
"""
CORE = ("ir", "policies", "estimators", "plans", "kernels", "native", "system")


def run(program: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", BLOCKED + program, *arguments], capture_output=True,
                          text=True, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_blocked_child_imports_no_framework() -> None:
    """The other tests would pass without this if the block did not work."""
    for name in ("mxnet", "torch"):
        with pytest.raises(AssertionError, match=f"{name} is blocked"):
            run(f"import {name}")


def test_core_rooms_import_without_frameworks() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for room in CORE for path in sorted((ROOT / "echo" / room).rglob("*.py")) if not path.name.startswith("__")
    ]  # fmt: skip
    assert len(modules) > 40
    run("import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)", *modules)


def chain(length: int) -> dict[str, Any]:
    """A chain whose gradients read what they are gradients of, with a second output that lives to the end."""
    nodes: list[dict[str, Any]] = [
        {"id": i, "op": "tanh", "cost": 1, "bytes": [8, 2], "deps": [i - 1] if i else []} for i in range(length)
    ]
    nodes.append({"id": length, "op": "loss", "cost": 1, "bytes": 4, "deps": [length - 1]})
    for i in reversed(range(length)):
        number = len(nodes)
        nodes.append({"id": number, "op": "grad", "cost": 1, "bytes": 8, "deps": [number - 1, i]})
    return {"loss": length, "nodes": nodes, "outputs": [length, [0, 1]]}


def test_schedule_command_plans_without_frameworks(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(chain(20)))
    program = "import runpy\nsys.argv[0] = 'mxecho'\nfrom echo.cli.main import main\nmain()"
    value = json.loads(run(program, "schedule", str(path), "--budget", "50%", "--json"))
    assert value["peak_bytes"] <= value["budget_bytes"] < value["stock_bytes"] == 20 * 8 + 2 + 4 + 8
    assert value["recomputed_nodes"] > 0
