"""MXNet in a process of its own, for tests in an environment where it cannot be imported.

``python -m tests.support.mxnet_process`` reads requests from its input and writes answers: pickles with their lengths
before them. A request is the name of a function of `ANSWERS` and its arguments.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Callable, Mapping

import numpy as np

Arrays = Mapping[str, Any]
ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"


def send(stream: BinaryIO, value: Any) -> None:
    """Writes a value."""
    text = pickle.dumps(value, protocol=4)
    stream.write(struct.pack("<Q", len(text)) + text)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Reads a value, or raises `EOFError`."""
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<Q", header)[0]))


def start(module: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    """Starts a module in the environment that has MXNet, without echo; both ends of it are pipes."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.Popen(
        [PYTHON, "-W", "ignore", "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        stderr=subprocess.DEVNULL, env={**others, "ECHO": "0", **variables},
    )  # fmt: skip


def first_states(symbol: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Auxiliary states of a symbol, as MXNet starts with them: variances are 1, means 0."""
    _, _, states = symbol.infer_shape(**shapes)
    return {name: np.full(shape, "var" in name, np.float32)
            for name, shape in zip(symbol.list_auxiliary_states(), states)}  # fmt: skip


def _bound(text: str, values: Arrays, states: Arrays, trained: list[str]) -> Any:
    import mxnet as mx

    symbol = mx.sym.load_json(text)
    arguments = {name: mx.nd.array(values[name], dtype=values[name].dtype) for name in symbol.list_arguments()}
    gradients = {name: mx.nd.zeros_like(arguments[name]) for name in trained}
    auxiliary = {name: mx.nd.array(states[name], dtype=states[name].dtype)
                 for name in symbol.list_auxiliary_states()}  # fmt: skip
    requests = {name: "write" if name in trained else "null" for name in arguments}
    return symbol.bind(mx.cpu(), arguments, gradients, requests, auxiliary)


def run(text: str, values: Arrays, states: Arrays, trained: list[str], heads: list[Any] | None, train: bool) -> Any:
    """Outputs, gradients and auxiliary states of one step of a symbol."""
    import mxnet as mx

    executor = _bound(text, values, states, trained)
    outputs = executor.forward(is_train=train)
    if trained:
        executor.backward(None if heads is None else [mx.nd.array(head, dtype=head.dtype) for head in heads])
    mx.nd.waitall()
    gradients = {name: value.asnumpy() for name, value in executor.grad_dict.items() if value is not None}
    return [one.asnumpy() for one in outputs], gradients, {n: v.asnumpy() for n, v in executor.aux_dict.items()}


def descend(text: str, values: Arrays, states: Arrays, trained: list[str], rate: float, steps: int) -> Any:
    """The first output in each step of gradient descent."""
    import mxnet as mx

    executor, found = _bound(text, values, states, trained), []
    for _ in range(steps):
        found.append(executor.forward(is_train=True)[0].asnumpy())
        executor.backward()
        for name in trained:
            executor.arg_dict[name] -= rate * executor.grad_dict[name]
        mx.nd.waitall()
    return found


def shapes(text: str, given: Mapping[str, tuple[int, ...]]) -> Any:
    """The shapes of arguments and auxiliary states."""
    import mxnet as mx

    symbol = mx.sym.load_json(text)
    arguments, _, states = symbol.infer_shape(**given)
    return dict(zip(symbol.list_arguments(), arguments)), dict(zip(symbol.list_auxiliary_states(), states))


def save(path: str, values: Arrays) -> None:
    """Writes a ``.params`` file."""
    import mxnet as mx

    mx.nd.save(path, {name: mx.nd.array(value, dtype=value.dtype) for name, value in values.items()})


def load(path: str) -> Any:
    """Reads a ``.params`` file."""
    import mxnet as mx

    return {name: value.asnumpy() for name, value in mx.nd.load(path).items()}


def model(name: str) -> Any:
    """A symbol's JSON, the shapes of its inputs, and how many values those have that are integers."""
    from benchmarks.models import random_values

    made = _MODELS[name]()
    return made.symbol.tojson(), made.shapes, random_values(made), first_states(made.symbol, made.shapes)


def _small(name: str) -> Any:
    from benchmarks.models import SMALL

    return SMALL[name]()


def _bert(interleaved: bool) -> Any:
    from benchmarks.attention_models import bert

    return bert(8, 2, interleaved, layers=2, units=32, heads=4)


def _speech() -> Any:
    from benchmarks.paper.speech import Setting, model

    return model("speech", Setting(layers=2, hidden=12, frames=24, batch=2, characters=4))


def _sockeye(kind: str) -> Any:
    """A model as Sockeye 1.18 builds it."""
    from benchmarks.models import Model
    from tests.support.whole_models import MODELS

    made = MODELS[kind]()
    return Model(kind, made.symbol, dict(made.shapes), None, dict(made.integers))


def _word_model() -> Any:
    """Two layers of MXNet's RNN operator, whose first states are zeros of an unknown batch."""
    import mxnet as mx

    from benchmarks.models import Model

    with mx.name.NameManager():
        words = mx.sym.Embedding(mx.sym.var("data"), input_dim=50, output_dim=16, name="embedding")
        states = [mx.sym.zeros((2, 0, 24)) for _ in range(2)]
        layers = mx.sym.RNN(words, mx.sym.var("rnn_parameters"), *states, mode="lstm", state_size=24, num_layers=2)
        scores = mx.sym.FullyConnected(mx.sym.reshape(layers, (-3, 0)), num_hidden=50, name="scores")
        symbol = mx.sym.SoftmaxOutput(scores, mx.sym.reshape(mx.sym.var("label"), (-1,)), name="softmax")
    return Model("words", symbol, dict.fromkeys(("data", "label"), (7, 4)), limits={"data": 50, "label": 50})


def _own_cell() -> Any:
    """Six steps of a cell that is neither an LSTM nor a GRU: one gate of products, and a state that decays."""
    import mxnet as mx

    from benchmarks.models import Model, embedded_steps, word_loss

    with mx.name.NameManager():
        dense = partial(mx.sym.FullyConnected, num_hidden=2 * 32)
        of_input, of_state, bias = (mx.sym.var(f"cell_{name}") for name in ("x_weight", "h_weight", "bias"))
        state, decay, rows = mx.sym.zeros((0, 32)), mx.sym.var("cell_decay", shape=(1, 32)), []
        for step, word in enumerate(embedded_steps("data", 6, 32, 50)):
            mixed = dense(word, weight=of_input, bias=bias, name=f"cell_x{step}")
            mixed = mixed * (1 + dense(state, weight=of_state, no_bias=True, name=f"cell_h{step}"))
            new, gate = mx.sym.split(mixed, num_outputs=2, axis=1)
            kept = mx.sym.broadcast_mul(state, mx.sym.sigmoid(decay))
            state = kept + mx.sym.sigmoid(gate) * mx.sym.Activation(new, act_type="softsign")
            rows.append(state)
        symbol = word_loss(rows, 50, ignore_padding=True)
    return Model("cell", symbol, dict.fromkeys(("data", "softmax_label"), (8, 6)), None,
                 {"data": 50, "softmax_label": 50})  # fmt: skip


_MODELS: Mapping[str, Callable[[], Any]] = {
    "resnet": partial(_small, "resnet50_v1"), "inception": partial(_small, "inception_v3"),
    "nmt": partial(_small, "nmt"), "bert": partial(_bert, False), "interleaved bert": partial(_bert, True),
    **{f"sockeye {kind}": partial(_sockeye, kind) for kind in ("gru, dot attention", "lnlstm", "transformer")},
    "deepspeech2": _speech, "words": _word_model, "own cell": _own_cell,
}  # fmt: skip
ANSWERS: Mapping[str, Callable[..., Any]] = {
    "run": run, "descend": descend, "shapes": shapes, "save": save, "load": load, "model": model,
}  # fmt: skip


def main() -> None:
    """Answers until the input ends; what MXNet prints goes to the errors."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            name, arguments = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            send(answers, (True, ANSWERS[name](*arguments)))
        except Exception as error:
            send(answers, (False, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
