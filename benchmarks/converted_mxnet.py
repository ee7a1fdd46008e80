"""MXNet's side of `benchmarks.torch_converted`: a process that plans a model and takes steps of it.

``python -m benchmarks.converted_mxnet MODEL`` writes the model and its planned bytes, then the seconds of one step for
each request, which is the name of an executor. Both are pickles (`tests.support.mxnet_process`).
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any, Callable, Mapping

import numpy as np

import echo
from benchmarks.models import MODELS, Model, random_values
from benchmarks.speech_models import deepspeech
from benchmarks.step_time import bind, step
from echo.estimators.footprint import GRADIENTS
from echo.plans.decisions import WORKSPACES
from tests.support.mxnet_process import first_states, receive, send

BUILDERS: Mapping[str, Callable[[], Model]] = {
    "nmt": MODELS["nmt"], "deepspeech2": partial(deepspeech, "gru", frames=64, batch=16, hidden=256),
}  # fmt: skip
_OPTIONS: Mapping[str, Any] = {"max_overhead": 0.10, "max_planning": None}  # the best plan, on a busy machine too


def described(model: Model, plan: echo.Plan) -> dict[str, Any]:
    """A model as `echo.torch.convert` takes it, and the bytes that MXNet needs for a step of it."""
    memory = {by: {"planned_bytes": one.planned, "workspace_bytes": one.static.get(WORKSPACES, 0),
                   "gradient_bytes": one.static[GRADIENTS]}
              for by, one in (("stock", plan.before), ("echo", plan.after))}  # fmt: skip
    return {"symbol": model.symbol.tojson(), "inputs": list(model.shapes), "values": _values(model),
            "states": first_states(model.symbol, model.shapes), "memory": memory}  # fmt: skip


def _values(model: Model) -> dict[str, Any]:
    """Random values; of labels none is 0, which would end those of a CTC loss."""
    values: dict[str, Any] = random_values(model)
    return {name: np.maximum(value, 1) if name == "label" else value for name, value in values.items()}


def main() -> None:
    """Answers until the input ends; what MXNet prints goes to the errors."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    model = BUILDERS[sys.argv[1]]()
    plan = echo.plan(model.symbol, grad_req=model.grad_req(), **_OPTIONS, **model.shapes)
    executors = {"stock": bind(model, model.symbol), "echo": bind(model, echo.optimize(model.symbol, plan=plan))}
    for name, value in _values(model).items():
        for executor in executors.values():
            executor.arg_dict[name][:] = value
    send(answers, described(model, plan))
    while True:
        try:
            send(answers, step(executors[receive(sys.stdin.buffer)]))
        except EOFError:
            return


if __name__ == "__main__":
    main()
