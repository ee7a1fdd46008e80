"""The lists of models can be read without the projects, and the witness sees what a training does."""

import subprocess
import sys

import pytest

from projects.__main__ import FAST, PROJECTS, chosen, models

WITNESS = """
import mxnet as mx
from projects.witness import Witness
witness = Witness()
witness.watch()
net = mx.gluon.nn.Dense(1, in_units=2, use_bias=False, prefix="dense_")
net.initialize(mx.init.One())
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
for _ in range(2):
    with mx.autograd.record():
        loss = net(mx.nd.array([[1, 2]])).sum()
    loss.backward()
    trainer.step(1)
found = witness.arrays()
assert sorted(found) == ["gradient/dense_weight", "loss/0", "loss/1", "weight/dense_weight"], sorted(found)
assert found["loss/0"].tolist() == [3.0] and found["loss/1"].tolist() == [0.5], found
assert found["gradient/dense_weight"].tolist() == [[1.0, 2.0]], found
assert found["weight/dense_weight"].tolist() == [[0.0, -1.0]], found
"""


def test_models_are_forty_or_more_of_five_projects() -> None:
    found = models()
    assert len(found) >= 40
    assert {project for project, _ in found.values()} == set(PROJECTS)
    assert set(FAST) <= set(found)


def test_a_project_stands_for_all_its_models() -> None:
    assert chosen(["sockeye_2", "sockeye_2/transformer"], models()) == [
        n for n in models() if n.startswith("sockeye_2/")
    ]


@pytest.mark.slow
def test_the_witness_sees_losses_the_first_gradients_and_the_last_weights() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", WITNESS], check=True)  # it wraps functions of mxnet's
