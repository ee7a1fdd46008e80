"""MXNet as the oracle of converted symbols: one process of its own environment, for all tests of a session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support.mxnet_process import receive, send, start


class Oracle:
    """Asks the process; an error of MXNet's is a `RuntimeError`."""

    def __init__(self) -> None:
        variables = {"OMP_NUM_THREADS": "1", "MXNET_SUBGRAPH_BACKEND": "NONE"}
        self._process = start("tests.support.mxnet_process", **variables)

    def ask(self, name: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        send(self._process.stdin, (name, arguments))
        right, answer = receive(self._process.stdout)
        if not right:
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        self._process.communicate(timeout=60)


@dataclass(frozen=True)
class Case:
    """One operator: its inputs (values, or shapes of random ones), its attributes, and what is compared.

    Inputs named in ``fixed`` have no gradient. ``loss`` is an operator whose gradient depends on no other.
    """

    op: str
    inputs: dict[str, Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    loss: bool = False
    outputs: int = 1
    positive: bool = False

    def __str__(self) -> str:
        return f"{self.op} " + " ".join(f"{name}={value}" for name, value in self.attrs.items())

    def json(self) -> str:
        """The symbol, as MXNet writes it."""
        import json

        names = list(self.inputs)
        nodes: list[Any] = [{"op": "null", "name": name, "inputs": []} for name in names]
        attrs = {name: str(value) for name, value in self.attrs.items()}
        nodes.append({"op": self.op, "name": "made", "attrs": attrs, "inputs": [[i, 0, 0] for i in range(len(names))]})
        heads = [[len(names), index, 0] for index in range(self.outputs)]
        rows = [*range(len(nodes)), len(nodes) - 1 + max(self.outputs, 3)]
        return json.dumps({"nodes": nodes, "arg_nodes": list(range(len(names))), "node_row_ptr": rows, "heads": heads,
                           "attrs": {"mxnet_version": ["int", 10901]}})  # fmt: skip

    def values(self) -> dict[str, Any]:
        random = np.random.RandomState(3)
        return {name: value if isinstance(value, np.ndarray) else self._random(random, value)
                for name, value in self.inputs.items()}  # fmt: skip

    def _random(self, random: Any, shape: tuple[int, ...]) -> Any:
        drawn = random.uniform(0.1, 0.9, shape) if self.positive else random.normal(0, 1, shape)
        return drawn.astype(np.float32)


def numbers(*values: Any) -> Any:
    """An array of floats, as MXNet takes labels and indices."""
    return np.array(values[0] if len(values) == 1 else values, np.float32)


def check(oracle: Oracle, case: Case, tolerance: float = 1e-5, training: bool = True) -> None:
    """Compares outputs, gradients and auxiliary states, relative to the largest element of each."""
    import torch

    from echo.torch import convert

    values = case.values()
    states = {name: values.pop(name) for name in list(values) if name.startswith("moving_")}
    trained = [name for name in values if name not in case.fixed]
    module = convert(case.json(), {name: values[name] for name in trained}, states).train(training)
    found = module(**{name: torch.from_numpy(values[name].copy()) for name in case.fixed})
    found = found if isinstance(found, tuple) else (found,)
    random = np.random.RandomState(4)
    heads = [random.normal(0, 1, one.shape).astype(one.detach().numpy().dtype) for one in found]
    outputs, gradients, after = oracle.ask("run", case.json(), values, states, trained if training else [],
                                           None if case.loss else heads, training)  # fmt: skip
    for index, (one, expected) in enumerate(zip(found, outputs)):
        assert (tuple(one.shape), one.detach().numpy().dtype) == (expected.shape, expected.dtype)
        assert_near(one, expected, tolerance, f"output {index}")
    if trained and training:
        given = [torch.ones_like(one) if case.loss else torch.from_numpy(head) for one, head in zip(found, heads)]
        pairs = [(one, head) for one, head in zip(found, given) if one.requires_grad]
        if pairs:
            torch.autograd.backward(*zip(*pairs))
        for name in trained:
            gradient = module.get_parameter(name).grad
            assert_near(torch.zeros(values[name].shape) if gradient is None else gradient, gradients[name], tolerance,
                        name)  # fmt: skip
    for name, expected in after.items():
        assert_near(module.get_buffer(name), expected, tolerance, name)


def assert_near(found: Any, expected: Any, tolerance: float, what: str) -> None:
    """Whether two arrays differ by no more than a part of the largest element."""
    scale = max(1e-30, float(np.abs(expected).max(initial=0)))
    gap = float(np.abs(found.detach().numpy().astype(np.float64) - expected).max(initial=0)) / scale
    assert gap <= tolerance, f"{what}: differs by {gap:.1e} of the largest element, {scale:g}"
