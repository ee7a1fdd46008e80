"""What a real step takes: measured in a process of its own, and told where that fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
from echo.errors import OptionError, UnsupportedError
from echo.report.usage import BLOCKS, GRAPH, PROCESS, STORAGE, UNWRITTEN
from echo.runtime import profile
from echo.runtime.profile import measured

MB = 2**20
CALL = {
    "ctx": ["cpu", 0],
    "shapes": {"data": [256, 1024], "weight": [1024, 1024]},
    "types": {"data": "float32", "weight": "float32"},
    "grad_req": "write",
}


def _layers(count: int) -> mx.sym.Symbol:
    hidden, weight = mx.sym.var("data"), mx.sym.var("weight")
    for _ in range(count):
        hidden = mx.sym.tanh(mx.sym.FullyConnected(hidden, weight, no_bias=True, num_hidden=1024))
    return hidden


@pytest.mark.slow
def test_growth_rises_with_the_number_of_layers() -> None:
    few, many = (measured(_layers(count), CALL) for count in (2, 42))
    more = 40 * 256 * 1024 * 4  # activations, in place of the products
    assert 0.9 * more <= many[STORAGE] - few[STORAGE] <= 1.2 * more
    few_beside, many_beside = (each[PROCESS] - each[BLOCKS] for each in (few, many))  # a workspace comes with the sums
    assert 0.8 * more <= many_beside - few_beside <= 1.5 * more


@pytest.mark.slow
def test_variables_and_plans_reach_the_process() -> None:
    model = SMALL["nmt"]()
    profile = echo.profile(model.symbol, compare=("echo", "mirror"), run=True, max_overhead=None, **model.shapes)
    for name, usage in profile.usages.items():
        assert abs(usage.measured[STORAGE] - usage.total) <= 0.02 * usage.total + MB, name
        known = sum(usage.measured[part] for part in (STORAGE, BLOCKS, GRAPH)) - usage.measured[UNWRITTEN]
        assert usage.unaccounted == usage.measured[PROCESS] - known
        assert usage.measured[GRAPH] > 0
        assert usage.measured[UNWRITTEN] < usage.measured[BLOCKS]
    stored = {name: usage.measured[STORAGE] for name, usage in profile.usages.items()}
    assert stored["echo"] < stored["mirror"] < stored["stock"]
    assert "of it not accounted for" in str(profile)


@pytest.mark.slow
def test_unwritten_scratch_memory_is_reported() -> None:
    hidden = mx.sym.Convolution(mx.sym.var("data"), kernel=(7, 7), stride=(2, 2), pad=(3, 3), num_filter=64)
    hidden = mx.sym.Activation(mx.sym.BatchNorm(hidden), act_type="relu")
    loss = mx.sym.MakeLoss(mx.sym.mean(hidden))
    (usage,) = echo.profile(loss, compare=(), run=True, fuse=False, data=(16, 3, 224, 224)).usages.values()
    allocated = sum(usage.measured[name] for name in (STORAGE, BLOCKS, GRAPH))
    assert usage.measured[UNWRITTEN] > 0.1 * allocated
    assert allocated - usage.measured[UNWRITTEN] == pytest.approx(usage.measured[PROCESS], rel=0.05)


@pytest.mark.slow
def test_measured_growth_ignores_variables_of_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO", "1")
    monkeypatch.setenv("ECHO_POLICY", "nonsense")
    assert measured(_layers(2), CALL)[STORAGE] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"shapes": {"data": [3, 4], "weight": [5, 6]}}, "RuntimeError: simple_bind error.*inconsistent"),
        ({"ctx": ["gpu", 77]}, "RuntimeError: simple_bind error.*USE_CUDA"),
    ],
)
def test_a_step_that_fails(call: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        measured(_layers(2), {**CALL, **call})


def test_a_process_that_dies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -9 $$\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(UnsupportedError, match=r"does not run here: exit -9"):
        measured(_layers(2), CALL)


def test_a_step_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "_LIMIT", 0.01)
    with pytest.raises(UnsupportedError, match=r"took more than 0\.01 s"):
        measured(_layers(2), CALL)


def test_blocks_are_not_run() -> None:
    net = mx.gluon.nn.Dense(4)
    net.initialize()
    with pytest.raises(OptionError, match="run: expected a symbol"):
        echo.profile(net, run=True, data=(2, 3))


@pytest.mark.slow
def test_step_in_a_folder_with_files_named_like_pythons_own_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("copy", "statistics", "json", "echo", "mxnet", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"open('ran_{name}', 'w').close()\nraise SystemExit('{name}.py ran')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    small = {"ctx": ["cpu", 0], "shapes": {"data": [8, 8]}, "types": {"data": "float32"}, "grad_req": "write"}
    assert measured(mx.sym.tanh(mx.sym.var("data")), small)[PROCESS] >= 0
    assert not list(tmp_path.glob("ran_*"))


def test_step_of_packages_that_only_a_path_names_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -I`` knows neither PYTHONPATH nor a program's own ``sys.path``."""
    (tmp_path / "only_here.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert str(tmp_path) in profile._folders()
