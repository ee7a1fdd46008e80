"""The bars of the Sockeye benchmark; the training itself is `make sockeye`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sockeye_training import BARS, MODELS, Run, missed, speed, write_text
from benchmarks.tables import sockeye_table, source

ROOT = Path(__file__).resolve().parents[2]
LOG = """\
echo: 200 MB -> 80 MB planned (-60 %), +5.0 % time, 12 feature maps recomputed
Checkpoint [1]\tUpdates=15 Epoch=1 Samples=9 Time-cost=99.0 Updates/sec=1
Checkpoint [2]\tUpdates=30 Epoch=2 Samples=9 Time-cost={} Updates/sec=1
Checkpoint [3]\tUpdates=45 Epoch=3 Samples=9 Time-cost={} Updates/sec=1
"""


def row(**changes: Any) -> dict[str, Any]:
    given = {
        "model": "rnn", "stock_mb": 238, "none": {"mb": 76}, "counter_mb": {"stock": 360.0, "none": 199.5},
        "bar": 0.37, "updates_bar": 0.9, "different": [], "default": {"mb": 80, "updates_ratio": 0.93},
        "fused": {"mb": 60, "updates_ratio": 1.4, "perplexities": [50.0, 50.1]},
    }  # fmt: skip
    return {**given, **changes}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"none": {"mb": 90}, "counter_mb": {"stock": 360.0, "none": 212.0}}, "0.38 of stock's planned MB"),
        ({"counter_mb": {"stock": 360.0, "none": 203.0}}, "the storage counter fell by 157.0 MB, expected 162"),
        ({"default": {"mb": 80, "updates_ratio": 0.89}}, "0.89 of stock's updates a second"),
        ({"fused": {"mb": 60, "updates_ratio": 1.4, "perplexities": [50.0, 52.0]}}, "perplexity 52.0 with fused"),
        ({"different": ["params.00003"]}, "differs: params.00003"),
    ],
)
def test_each_bar_can_be_missed(changes: dict[str, Any], reason: str) -> None:
    assert missed(row()) == []
    (found,) = missed(row(**changes))
    assert found.startswith(reason)


def test_speed_leaves_the_first_checkpoint_out() -> None:
    pairs = [
        (Run(LOG.format(*stock), 10.0, {}), Run(LOG.format(*echo), 12.5, {}))
        for stock, echo in (((9.0, 9.0), (10.0, 10.0)), ((9.0, 18.0), (20.0, 20.0)))
    ]
    found = speed(pairs)
    assert found["ratios"] == [0.9, 0.9, 0.45, 0.9]
    assert found["updates_ratio"] == pytest.approx(0.9)
    assert found["quickest_ratio"] == pytest.approx(18 / 20)
    assert found["command_ratio"] == pytest.approx(0.8)
    assert found["mb"] == 80


def test_every_model_has_a_bar() -> None:
    assert BARS.keys() == MODELS.keys()


def test_sentences_are_held_out_for_validation(tmp_path: Path) -> None:
    write_text(tmp_path)
    lines = {path.name: path.read_text(encoding="utf-8").splitlines() for path in tmp_path.iterdir()}
    assert set(lines) == {"train.en", "train.de", "dev.en", "dev.de"}
    assert len(lines["train.en"]) == len(lines["train.de"]) > 5 * len(lines["dev.en"])
    assert len(lines["dev.en"]) == len(lines["dev.de"]) > 50


def test_the_table_names_sockeye() -> None:
    result = {
        "date": "2026-01-01", "commit": "abc", "machine": {"processor": "P", "cores": 2}, "rows": [row()],
        "versions": {"mxnet": "1.9.1", "numpy": "1.23.5", "python": "3.11", "sockeye": "1.18.106"},
    }  # fmt: skip
    table = sockeye_table(result)
    assert "| rnn | 238 | 76 | 0.32 | 360 to 200 | 80 | 0.93 | 60 | 1.40 |" in table
    assert source(result, "make sockeye").endswith("sockeye 1.18.106")


def test_benchmark_without_sockeye_says_what_to_type() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.sockeye_training", "rnn"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "make sockeye" in done.stderr
