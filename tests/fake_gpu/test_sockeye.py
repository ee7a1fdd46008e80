"""Unmodified Sockeye 1.18 trains on a GPU context with ECHO=1; `check.sh` installs it next to MXNet's wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOCKEYE = ROOT / ".venv-gpu" / "sockeye"
MODELS = {
    "rnn": "--encoder rnn --decoder rnn --rnn-num-hidden 128 --rnn-attention-type mlp --layer-normalization "
    "--embed-dropout 0.1 --rnn-dropout-inputs 0.1",
    "transformer": "--encoder transformer --decoder transformer --transformer-model-size 128 "
    "--transformer-attention-heads 4 --transformer-feed-forward-num-hidden 256",
}

pytestmark = pytest.mark.skipif(not (SOCKEYE / ".installed").exists(), reason="Sockeye could not be installed")


def trained(model: str, folder: Path, echo: str) -> dict[str, Any]:
    """The output of `sockeye_training` for a model, with or without echo."""
    folder.mkdir()
    environment = {**os.environ, "ECHO": echo, "ECHO_STRICT": "1", "ECHO_MAX_OVERHEAD": "none"}
    environment["ECHO_CACHE_DIR"] = str(folder / "cache")
    environment["PYTHONPATH"] = os.pathsep.join([str(SOCKEYE), str(ROOT)])
    command = [sys.executable, "-W", "ignore", "-m", "tests.fake_gpu.sockeye_training", *MODELS[model].split()]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["complaints"] == []
    return found


@pytest.mark.parametrize("model", sorted(MODELS))
def test_sockeye_trains(model: str, tmp_path: Path) -> None:
    found, stock = trained(model, tmp_path / "with", "1"), trained(model, tmp_path / "without", "0")
    assert stock["rows"] == []
    assert stock["peak"] - found["peak"] >= 0.95 * max(row["saved"] for row in found["rows"]), "planning included"
    assert len(found["rows"]) > 1, "a graph for each bucket"
    assert [row["bound"] for row in found["rows"]] == [row["planned"] for row in found["rows"]]
    assert sum(row["fused"] for row in found["rows"]) > 0
    assert (tmp_path / "with" / "model" / "params.best").exists()
