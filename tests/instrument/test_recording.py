"""``ECHO_RECORD``: trainings that know nothing of it are recorded, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from echo.instrument.windows import read_rows

GLUON = """
import mxnet as mx
from mxnet import autograd, gluon
net = gluon.nn.Dense(4, in_units=6)
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=False)
for i in range(9):
    with autograd.record():
        loss = net(mx.nd.ones((5, 6)))
    loss.backward()
    if i % 2:
        trainer.step(ignore_stale_grad=True, batch_size=5)
    else:
        trainer.allreduce_grads()
        trainer.update(5)
print("trained")
"""
MODULE = """
import mxnet as mx, numpy as np
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4), name="softmax")
def symbol(key):
    return net, ("data",), ("softmax_label",)
module = mx.mod.BucketingModule(symbol, 6)
data = mx.io.NDArrayIter(np.zeros((45, 6), "f"), np.zeros(45), 5)
data.default_bucket_key = 6
module.bind(data.provide_data, data.provide_label)
module.init_params()
module.init_optimizer()
for batch in data:
    batch.bucket_key = 6
    module.forward_backward(batch)
    module.update()
print("trained")
"""


def run(program: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "ECHO": "0", "ECHO_RECORD_EVERY": "4", "ECHO_RECORD_WARMUP": "5", **environment}
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=variables, cwd=folder, timeout=120,
                          capture_output=True, text=True, check=False)  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("program", [GLUON, MODULE], ids=["gluon", "module"])
def test_steps_of_a_program_that_knows_nothing_of_it(program: str, tmp_path: Path) -> None:
    done = run(program, tmp_path, ECHO_RECORD="run.csv")
    assert done.stdout == "trained\n", done.stderr
    rows = read_rows(tmp_path / "run.csv")
    assert [(row.step, row.steps, row.samples, row.warmup) for row in rows] == [(5, 4, 20, True), (9, 4, 20, False)]
    assert rows[0].storage, "what was there before the first step counts"
    assert (tmp_path / "run.json").exists()
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".csv"] == ["run.csv"]


@pytest.mark.slow
def test_a_program_that_takes_no_step_leaves_nothing(tmp_path: Path) -> None:
    done = run("import mxnet; print('imported')", tmp_path, ECHO_RECORD="run.csv")
    assert (done.stdout, done.stderr) == ("imported\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.every(3)
@pytest.mark.parametrize(("variable", "value", "said"), [
    ("ECHO_RECORD", "nowhere/run.csv", "No such file or directory: 'nowhere/run.csv'"),
    ("ECHO_RECORD_EVERY", "many", "ECHO_RECORD_EVERY: "),
    ("ECHO_RECORD_EVERY", "0", "ECHO_RECORD_EVERY: expected a number of steps from 1 on, got '0'"),
    ("ECHO_RECORD_WARMUP", "-1", "ECHO_RECORD_WARMUP: expected a number"),
    ("ECHO_RECORD", ".", "expected a file, got a folder: '.'"),
])  # fmt: skip
def test_failed_recording_is_one_line_and_training_goes_on(
    variable: str, value: str, said: str, tmp_path: Path
) -> None:
    done = run(GLUON, tmp_path, **{"ECHO_RECORD": "run.csv", variable: value})
    assert (done.returncode, done.stdout) == (0, "trained\n")
    lines = [line for line in done.stderr.splitlines() if line.startswith("echo: nothing more is recorded: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert list(tmp_path.iterdir()) == []


OWN_TRAINER = """
import mxnet as mx
from mxnet import autograd, gluon
gluon.Trainer.step = (lambda original: lambda self, size=None, **more: original(self, size, **more))(gluon.Trainer.step)
import echo.instrument.recording as recording
recording.record_from_environment()
net = gluon.nn.Dense(4, in_units=6)
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd")
with autograd.record():
    loss = net(mx.nd.ones((5, 6)))
loss.backward()
trainer.step(size=5)
print("trained")
"""


@pytest.mark.slow
def test_a_step_with_other_arguments_ends_the_recording_and_not_the_training(tmp_path: Path) -> None:
    done = run(OWN_TRAINER, tmp_path, ECHO_RECORD="run.csv")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "echo: nothing more is recorded: " in done.stderr
