"""The commands and code of the README, the documentation and the examples are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import mxnet as mx
import pytest

import echo

ROOT = Path(__file__).resolve().parents[1]


DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


def python_blocks() -> Iterator[Any]:
    """Each Python block of each document, by the document's path and the block's place in it."""
    for path in DOCUMENTS:
        blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        for number, block in enumerate(blocks):
            yield pytest.param(block, id=f"{path.relative_to(ROOT)}:{number}")


def symbol() -> mx.sym.Symbol:
    with mx.name.NameManager():
        words = mx.sym.Embedding(mx.sym.var("data"), input_dim=30, output_dim=16)
        hidden = mx.sym.FullyConnected(mx.sym.tanh(words), num_hidden=30, flatten=False, name="out")
        hidden = mx.sym.Reshape(mx.sym.tanh(hidden), shape=(-1, 30))
        return mx.sym.SoftmaxOutput(hidden, mx.sym.Reshape(mx.sym.var("softmax_label"), shape=(-1,)), name="softmax")


@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("block", list(python_blocks()))
def test_python_of_the_documents_runs(
    block: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "torch" in block:
        pytest.importorskip("torch", reason="torch is not installed: make test-torch runs this block")
    monkeypatch.chdir(tmp_path)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(4, 3, activation="relu"), mx.gluon.nn.Dense(5))
    net.initialize()
    names: dict[str, Any] = {"symbol": symbol(), "net": net}
    exec(block, names)
    assert names["symbol"].list_arguments() == symbol().list_arguments()
    if "print(plan)" in block:
        assert "planned by MXNet" in capsys.readouterr().out
        assert isinstance(names["plan"], echo.Plan)


@pytest.mark.slow
def test_language_model_example_learns(tmp_path: Path) -> None:
    environment = {**os.environ, "ECHO_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "examples" / "lm_pydoc.py"), "--steps", "12"],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "perplexity" in done.stdout


@pytest.mark.slow
def test_demo_trains_in_less_than_half_the_memory(tmp_path: Path) -> None:
    environment = {**os.environ, "ECHO_CACHE_DIR": str(tmp_path), "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "examples" / "demo_nmt.py"), "--steps", "6"],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^ (\S[^│]*?) {2,}(\d+) +[\d.]+x", done.stdout, re.MULTILINE)
    rows = {name.strip(): int(megabytes) for name, megabytes in found}
    assert rows["echo"] < rows["stock MXNet"] / 2
    assert "…" not in done.stdout, "a heading is cut off"
    assert ("stock MXNet: binding" in done.stdout, "echo: planning" in done.stdout) == (True, True)
