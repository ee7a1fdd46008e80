"""The options of ``mxecho run`` and ``mxecho verify``, which end where the program begins; and echo is active."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from echo.cli.run import _nothing, split

ROOT = Path(__file__).parents[2]


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    values = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False, cwd=cwd, env=values
    )


def test_unknown_options_show_the_usage(tmp_path: Path) -> None:
    done = python("-m", "echo", "run", "--fast", "x.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "mxecho run [OPTIONS] {SCRIPT | -m MODULE} [ARGUMENT]..." in done.stderr
    assert "--max-overhead VALUE" in python("-m", "echo", "run", "--help", cwd=tmp_path).stdout


def test_options_end_where_the_program_begins() -> None:
    assert split(["--policy", "echo", "t.py", "--strict"]) == (["--policy", "echo"], ["t.py", "--strict"])
    assert split(["--strict", "-m", "a.b", "-m", "c"]) == (["--strict"], ["-m", "a.b", "-m", "c"])
    assert split(["--max-overhead=0.5", "t.py"]) == (["--max-overhead=0.5"], ["t.py"])
    assert split([]) == ([], [])


def test_run_without_pth_files_has_echo_active(tmp_path: Path) -> None:
    """Under -S no .pth file is read, and the paths of the packages are named by PYTHONPATH."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nassert 'mxnet' not in sys.modules and 'numpy' not in sys.modules\n"
        "import mxnet\nfrom echo.runtime.patches import PATCHES\n"
        "print(PATCHES.policy.options, os.environ['ECHO'])\n"
    )
    values = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    values["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))])
    command = [sys.executable, "-W", "ignore", "-S", "-m", "echo", "run", "--max-overhead", "none", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=values, cwd=tmp_path, check=False)
    assert "Options(policy='search', max_overhead=None" in done.stdout, done.stderr
    assert done.stdout.split()[-1] == "1"


@pytest.mark.slow
def test_verify_runs_a_program_that_verifies(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, mxnet as mx\n"
        "print(os.environ['ECHO'], os.environ['ECHO_VERIFY'])\n"
        "x = mx.sym.var('data')\n"
        "for i in range(3):\n"
        "    x = mx.sym.sigmoid(mx.sym.tanh(mx.sym.FullyConnected(x, num_hidden=64, name=f'f{i}')))\n"
        "executor = x.simple_bind(mx.cpu(), data=(256, 64))\n"
        "executor.forward(is_train=True)\n"
        "executor.backward(mx.nd.ones((256, 64)))\n",
        encoding="utf-8",
    )
    values = {**os.environ, "ECHO_LOG": "DEBUG", "ECHO_CACHE_DIR": str(tmp_path / "cache"), "ECHO_MAX_OVERHEAD": "none"}
    done = subprocess.run([sys.executable, "-m", "echo", "verify", "train.py"], capture_output=True, text=True,
                          timeout=300, check=True, cwd=tmp_path, env=values)  # fmt: skip
    assert done.stdout == "1 1\n"
    assert "echo: verify: outputs, gradients, states and random numbers are those of" in done.stderr
    (tmp_path / "nothing.py").write_text("print('done')\n", encoding="utf-8")
    nothing = python("-m", "echo", "verify", "nothing.py", cwd=tmp_path)
    assert nothing.stdout == "done\n"
    assert nothing.stderr == "mxecho verify: nothing was verified: this process bound no graph for training\n"
    refused = python("-m", "echo", "verify", "--policy", cwd=tmp_path)
    assert refused.returncode == 2
    assert "mxecho verify" in refused.stderr


LAYERS = """
import sys
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
net = nn.Sequential() if sys.argv[1] == "parts" else nn.HybridSequential()
for _ in range(3):
    net.add(nn.Dense(16), nn.Activation("tanh"), nn.LayerNorm())
net.initialize()
if sys.argv[1] != "stock":
    net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "sgd")
for _ in range(2):
    with autograd.record():
        loss = net(mx.nd.ones((8, 4))).sum()
    loss.backward()
    trainer.step(8)
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("command", "unchanged", "said"), [("verify", 2, True), ("verify", 1, False), ("run", 2, False)]
)
def test_program_whose_graphs_all_stay_is_told_that_nothing_was_compared(
    command: str, unchanged: int, said: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner = SimpleNamespace(summary=SimpleNamespace(graphs=2, unchanged=unchanged))
    monkeypatch.setitem(sys.modules, "echo.runtime.bind_plan", SimpleNamespace(PLANNER=planner))
    assert _nothing(command, True) == 0
    assert ("there was nothing to compare" in capsys.readouterr().err) == said


NOTHING = "nothing was {}: Gluon trains a block that is not hybridized"
SMALL = "the blocks that are hybridized are so small"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "kind", "ends", "status", "said"),
    [
        ("run", "stock", 0, 0, NOTHING.format("planned")),
        ("verify", "stock", 0, 1, NOTHING.format("verified")),
        ("verify", "stock", 3, 3, NOTHING.format("verified")),
        ("verify", "parts", 0, 1, SMALL),
        ("verify", "whole", 0, 0, "there was nothing to compare"),
        ("run", "whole", 0, 0, ""),
    ],
)
def test_program_of_blocks_that_are_not_hybridized_is_told(
    tmp_path: Path, command: str, kind: str, ends: int, status: int, said: str
) -> None:
    (tmp_path / "train.py").write_text(LAYERS)
    done = python("-W", "ignore", "-m", "echo", command, "train.py", kind, str(ends), cwd=tmp_path)
    assert done.returncode == status
    lines = [line for line in done.stderr.splitlines() if line.startswith("mxecho")]
    assert len(lines) == bool(said)
    assert said in "".join(lines)


@pytest.mark.slow
def test_options_of_run_are_those_of_plan(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import mxnet\nfrom echo.runtime.patches import PATCHES as s\nprint(s.policy.options)"
    )
    words = ["--keep", "fc*", "--keep", "Pooling", "--recompute", "tanh0", "--optimizer-states", "2", "--max-planning",
             "none", "--fuse", "memory", "--memory-budget", "50%"]  # fmt: skip
    done = python("-m", "echo", "run", *words, "train.py", cwd=tmp_path)
    for said in ("keep=('fc*', 'Pooling')", "recompute=('tanh0',)", "optimizer_states=2", "max_planning=None",
                 "fuse='memory'", "memory_budget='50%'"):  # fmt: skip
        assert said in done.stdout, done.stderr
