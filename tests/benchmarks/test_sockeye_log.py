"""Values from Sockeye's logs, and the comparison of two logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sockeye_log import (
    counter_peak,
    differences,
    fingerprint,
    largest_plan,
    metrics_without_clocks,
    updates_per_second,
)

LOG = """\
[INFO:echo] echo: 56 MB -> 27 MB planned (-52 %), +6.6 % time, 407 feature maps recomputed
[INFO:echo] echo: 238 MB -> 76 MB planned (-68 %), +9.3 % time, 1285 feature maps recomputed
[INFO:sockeye.training] Checkpoint [1]\tUpdates=20 Epoch=1 Samples=1280 Time-cost=10.000 Updates/sec=2.000
[INFO:sockeye.training] Checkpoint [1]\tTrain-perplexity=1065.655816
[INFO:sockeye.training] Checkpoint [1]\tValidation-perplexity=1005.464320
[INFO:sockeye.training] Epoch[3] Batch [50]\tSpeed: 245.49 samples/sec 3.84 updates/sec\tperplexity=225.895583
[INFO:sockeye.training] Checkpoint [2]\tUpdates=40 Epoch=3 Samples=2560 Time-cost=4.000 Updates/sec=5.000
"""
METRICS = "1\tgradient-norm=0.5\tperplexity-val=1005.4\ttime-elapsed=10.9\n2\tperplexity-val=613.3\ttime-elapsed=18.4\n"


def model(folder: Path, metrics: str = METRICS, weights: bytes = b"weights") -> Path:
    (folder / "training_state").mkdir(parents=True)
    (folder / "metrics").write_text(metrics, encoding="utf-8")
    (folder / "params.00001").write_bytes(weights)
    for name in ("log", "training_state/training.pkl"):
        (folder / name).write_text(str(folder), encoding="utf-8")
    return folder


def test_largest_bucket_counts() -> None:
    assert largest_plan(LOG) == (238, 76, pytest.approx(0.093), 1285)


def test_a_log_without_plans_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a line 'echo: N MB"):
        largest_plan("echo: nothing to gain")


def test_updates_between_checkpoints() -> None:
    assert updates_per_second(LOG) == [2.0, 5.0]


def test_peak_of_the_counter() -> None:
    events = [{"name": "Memory: cpu/0", "args": {"Memory: cpu/0": value}} for value in (5, 70, 20)]
    other = {"name": "Memory: cpu/1", "args": {"Memory: cpu/1": 99}}
    assert counter_peak({"traceEvents": [*events, other, {"ph": "M"}]}) == 70
    with pytest.raises(ValueError, match="expected the counter"):
        counter_peak({"traceEvents": [other]})


def test_metrics_keep_all_but_times() -> None:
    assert metrics_without_clocks(METRICS) == "1\tgradient-norm=0.5\tperplexity-val=1005.4\n2\tperplexity-val=613.3"


def test_times_make_no_difference(tmp_path: Path) -> None:
    one = fingerprint(LOG, model(tmp_path / "one"))
    other = LOG.replace("Time-cost=10.000", "Time-cost=11.111")
    assert differences(one, fingerprint(other, model(tmp_path / "other", METRICS.replace("10.9", "11.2")))) == []


@pytest.mark.parametrize(
    ("name", "log", "metrics", "weights"),
    [
        ("perplexities", LOG.replace("1005.464320", "1005.464321"), METRICS, b"weights"),
        ("metrics", LOG, METRICS.replace("613.3", "613.4"), b"weights"),
        ("params.00001", LOG, METRICS, b"weightz"),
    ],
)
def test_one_digit_or_byte_is_a_difference(tmp_path: Path, name: str, log: str, metrics: str, weights: bytes) -> None:
    one = fingerprint(LOG, model(tmp_path / "one"))
    assert differences(one, fingerprint(log, model(tmp_path / "other", metrics, weights))) == [name]


def test_a_missing_file_is_a_difference(tmp_path: Path) -> None:
    one, other = model(tmp_path / "one"), model(tmp_path / "other")
    (other / "params.00001").unlink()
    assert differences(fingerprint(LOG, one), fingerprint(LOG, other)) == ["params.00001"]
