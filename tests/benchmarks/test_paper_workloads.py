"""The papers' workloads have the published sizes and need what was written down; small ones train a step."""

from __future__ import annotations

import math
from dataclasses import replace

import mxnet as mx
import numpy as np
import pytest

from benchmarks.models import Model, random_values
from benchmarks.paper import nmt, sockeye, speech, transformer
from benchmarks.paper.planning import stock
from benchmarks.paper.workloads import WORKLOADS
from benchmarks.record import load

# Millions of parameters. Published are those of the word models (4.7, 20, 66), of the networks on images (25.6, 60.2,
# 23.8, 8.0, 31.0), of Transformer base (65 with 37,000 word pieces) and BERT (110, with one matrix of words for two).
PARAMETERS = {
    "nmt_tbd": 26.7, "nmt_groundhog": 37.2, "nmt_best": 88.9, "transformer": 60.6, "deepspeech2": 181.5,
    "sockeye_tbd": 27.7, "sockeye_groundhog": 39.2, "sockeye_best": 97.3,
    "deepspeech2_rnn": 60.7, "bert_base": 132.0, "resnet50_v1": 25.6, "resnet50_v2": 25.5, "resnet152_v1": 60.3,
    "inception_v3": 23.8, "densenet121": 8.0, "unet": 31.0, "lm_200": 4.7, "lm_650": 19.8, "lm_1500": 66.0,
}  # fmt: skip
# MB that MXNet plans for a step.
STOCK_MB = {
    "sockeye_tbd": 8003, "sockeye_groundhog": 6742, "sockeye_best": 4248,
    "nmt_tbd": 7927, "nmt_groundhog": 8202, "nmt_best": 4639, "transformer": 3246, "deepspeech2": 6007,
    "deepspeech2_rnn": 1707, "bert_base": 4447, "resnet50_v1": 2773, "resnet50_v2": 2622, "resnet152_v1": 5566,
    "inception_v3": 3176, "densenet121": 4166, "unet": 3058, "lm_200": 43, "lm_650": 127, "lm_1500": 288,
}  # fmt: skip
SLOW = {"transformer", "deepspeech2", "deepspeech2_rnn",
        *(f"{builder}_{name}" for builder in ("nmt", "sockeye") for name in nmt.SETTINGS)}  # fmt: skip

SMALL = {
    "nmt": nmt.model("nmt", nmt.Setting(2, 32, 24, 4, attention=16, normed=True, steps=5)),
    "transformer": transformer.model("transformer", transformer.Setting(2, 32, 4, 64, batch=3, steps=5, words=50)),
    "speech": speech.model("speech", speech.Setting(layers=2, hidden=24, frames=40, batch=2, characters=5)),
    "speech_rnn": speech.model("speech", speech.Setting("rnn", 2, 24, frames=40, batch=2, characters=5)),
}


def test_every_workload_is_written_down() -> None:
    assert set(WORKLOADS) == set(PARAMETERS) == set(STOCK_MB)


def built(name: str) -> Model:
    if name.startswith("sockeye") and not sockeye.is_installed():
        pytest.skip("needs Sockeye: make .projects/sockeye_1/.installed")
    return WORKLOADS[name]()


@pytest.mark.every(15)
@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_has_the_published_parameters(name: str) -> None:
    model = built(name)
    shapes, _, _ = model.symbol.infer_shape(**model.shapes)
    names = model.symbol.list_arguments()
    trained = sum(math.prod(shape) for argument, shape in zip(names, shapes) if argument not in model.shapes)
    assert len(names) == len(set(names)), "two variables of one name are no shared weight"
    assert model.name == name
    assert trained / 1e6 == pytest.approx(PARAMETERS[name], abs=0.05)


@pytest.mark.every(8)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in WORKLOADS]
)
def test_stock_mxnet_plans_what_was_written_down(name: str) -> None:
    found = stock(built(name))
    assert round(found["planned"] / 2**20) == STOCK_MB[name]
    committed = next(row for row in load("paper_footprint")["rows"] if row["workload"] == name)
    assert found == committed["stock"]


@pytest.mark.parametrize("name", SMALL)
def test_a_small_one_trains_a_step(name: str) -> None:
    model = SMALL[name]
    gradients, loss = _step(model)
    assert np.isfinite(loss).all()
    assert set(gradients) == set(model.symbol.list_arguments()) - set(model.shapes)
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    assert [key for key, gradient in gradients.items() if not gradient.any()] == []


def test_no_word_of_a_target_sees_those_after_it() -> None:
    setting = transformer.Setting(2, 32, 4, 64, batch=2, steps=6, words=50)
    model = transformer.model("transformer", setting)
    executor = model.symbol.simple_bind(mx.cpu(), grad_req="null", **model.shapes)
    values = random_values(model)
    first = _outputs(executor, values)
    values["target"] = values["target"].copy()
    values["target"][:, 4] = (values["target"][:, 4] + 1) % setting.words
    second = _outputs(executor, values)
    differs = (first != second).reshape(setting.batch, setting.steps, -1).any(axis=2)
    np.testing.assert_array_equal(differs, [[False] * 4 + [True] * 2] * setting.batch)


def test_norms_stand_before_each_tanh_where_the_setting_has_them() -> None:
    def norms(setting: nmt.Setting) -> int:
        outputs = nmt.model("nmt", setting).symbol.get_internals().list_outputs()
        return sum(name.endswith("norm_output") for name in outputs)

    normed = nmt.Setting(1, 16, 8, 2, normed=True, steps=7)
    assert norms(normed) == 2 * normed.steps
    assert norms(replace(normed, normed=False)) == 0


def _step(model: Model) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Every gradient after one step, and the output."""
    executor = model.symbol.simple_bind(mx.cpu(), grad_req=model.grad_req(), **model.shapes)
    for name, values in random_values(model).items():
        executor.arg_dict[name][:] = np.maximum(values, 1) if name == "label" else values
    executor.forward(is_train=True)
    executor.backward()
    gradients = {name: array.asnumpy() for name, array in executor.grad_dict.items() if array is not None}
    return gradients, executor.outputs[0].asnumpy()


def _outputs(executor: mx.executor.Executor, values: dict[str, np.ndarray]) -> np.ndarray:
    for name, array in values.items():
        executor.arg_dict[name][:] = array
    return executor.forward(is_train=False)[0].asnumpy()
