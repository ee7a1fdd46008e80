"""Whole models of MXNet, converted: a step, and a training, against MXNet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import echo.torch  # noqa: E402
from tests.torch.oracle import Oracle  # noqa: E402

# The rate at which each is trained, and whether MXNet runs it in float64.
MODELS = {"resnet": (0.01, True), "inception": (0.01, True), "nmt": (1.0, True), "bert": (0.005, True),
          "interleaved bert": (0.005, False), "deepspeech2": (0.02, False), "words": (0.1, True),
          "own cell": (0.5, True), "sockeye gru, dot attention": (0.5, True), "sockeye lnlstm": (0.5, True),
          "sockeye transformer": (0.1, True)}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A model without dropout, with values to start from."""

    text: str
    inputs: list[str]
    values: dict[str, Any]
    states: dict[str, Any]

    @property
    def trained(self) -> list[str]:
        return [name for name in self.values if name not in self.inputs]

    @property
    def doubled(self) -> Example:
        """The same in float64."""
        values, states = ({name: value.astype(np.float64) for name, value in held.items()}
                          for held in (self.values, self.states))  # fmt: skip
        return Example(self.text.replace('"float32"', '"float64"'), self.inputs, values, states)

    def converted(self) -> Any:
        return echo.torch.convert(self.text, {name: self.values[name] for name in self.trained}, self.states)

    def given(self) -> dict[str, Any]:
        return {name: torch.from_numpy(self.values[name].copy()) for name in self.inputs}

    def step(self) -> dict[str, Any]:
        """The output, gradients and auxiliary states of one step in torch."""
        module = self.converted()
        output = module(**self.given())
        output.sum().backward()
        gradients = {name: module.get_parameter(name).grad.numpy() for name in self.trained}
        states = {name: module.get_buffer(name).numpy() for name in self.states}
        return {"": output.detach().numpy(), **gradients, **states}

    def expected(self, oracle: Oracle) -> dict[str, Any]:
        """The same of MXNet."""
        outputs, gradients, states = oracle.ask("run", self.text, self.values, self.states, self.trained, None, True)
        return {"": outputs[0], **gradients, **states}


def example(oracle: Oracle, name: str) -> Example:
    text, shapes, values, states = oracle.ask("model", name)
    text = text.replace('"p": "0.1"', '"p": "0.0"').replace('"p": "0.5"', '"p": "0.0"')
    return Example(text, list(shapes), values, states)


def distance(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """How far each array is off, as a part of its norm; a gradient of nearly 0 by the largest norm of all."""
    norms = {name: float(np.linalg.norm(value)) for name, value in expected.items()}
    least = 1e-3 * max(norms.values())
    return {name: float(np.linalg.norm(found[name] - value)) / max(norms[name], least)
            for name, value in expected.items()}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, (_, doubles) in MODELS.items() if doubles])
def test_model_has_mxnet_step_in_float64(oracle: Oracle, name: str) -> None:
    doubled = example(oracle, name).doubled
    gaps = distance(doubled.step(), doubled.expected(oracle))
    assert max(gaps.values()) < 1e-6, gaps


@pytest.mark.parametrize("name", MODELS)
def test_model_is_as_near_to_float64_as_mxnet(oracle: Oracle, name: str) -> None:
    single = example(oracle, name)
    exact = single.doubled.step()
    ours, theirs = distance(single.step(), exact), distance(single.expected(oracle), exact)
    assert np.linalg.norm([*ours.values()]) <= 1.5 * np.linalg.norm([*theirs.values()]) + 1e-6


def losses(outputs: list[Any], single: Example) -> list[float]:
    """The mean loss of each step: of probabilities the cross-entropy."""
    if outputs[0].ndim == 1:
        return [float(output.mean()) for output in outputs]
    labels = single.values[next(name for name in single.inputs if "label" in name)]
    labels = (labels.T if "softmax_label" in single.inputs else labels).reshape(-1).astype(int)  # steps come first
    return [float(-np.log(output[np.arange(len(labels)), labels] + 1e-20).mean()) for output in outputs]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "inception"])
def test_training_has_mxnet_losses(oracle: Oracle, name: str) -> None:
    single, rate = example(oracle, name), MODELS[name][0]
    single = single.doubled if name == "resnet" else single  # in float32, MXNet itself is farther off
    module, outputs = single.converted(), []
    optimizer = torch.optim.SGD(module.parameters(), rate)
    for _ in range(20):
        optimizer.zero_grad()
        output = module(**single.given())
        outputs.append(output.detach().numpy().copy())
        output.sum().backward()
        optimizer.step()
    answer = oracle.ask("descend", single.text, single.values, single.states, single.trained, rate, 20)
    found, expected = losses(outputs, single), losses(answer, single)
    assert found[-1] < found[0]
    assert np.abs(np.subtract(found, expected)).max() < 1e-3 * expected[0]
