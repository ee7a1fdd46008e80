"""The effect of fused operators: memory and time of a training step, on one thread, against stock and MXNet's RNN.

    python -m benchmarks.fusion [--rounds 7] [CASE ...]

All variants of a case live in one process and take steps in turn; a row holds medians of the ratios round by round.
How much a process grows is measured in one of its own. Writes results/fusion.json.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Mapping

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when mxnet is imported

import mxnet as mx

import echo
from benchmarks import attention_models, dropout_models
from benchmarks.models import MODELS, MXNET_MB, SMALL, Model, random_values
from benchmarks.record import apart, asked, known_rows, parser, save
from benchmarks.speech_models import deepspeech
from benchmarks.step_time import in_turn, step
from echo.system.process import resident

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "fused": {"policy": "none"}, "default": {}, "unfused": {"fuse": False},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model with the bars (MB as MXNet prints them, time); ``same`` computes the same with MXNet's own RNN operator.

    ``grows``: how much a process grows is measured, too, as it is where ``same`` is there. ``budget`` is the part of
    stock's memory that the default variant is given.
    """

    model: Model
    bar_mb: float | None = None
    bar_time: float | None = None
    same: Model | None = None
    grows: bool = False
    budget: float | None = None

    def options(self, variant: str) -> dict[str, Any]:
        """The options of a variant."""
        budget = {"memory_budget": self.budget} if variant == "default" and self.budget is not None else {}
        return {**VARIANTS[variant], **budget}


def attention(batch: int, steps: int, hidden: int, queries: int) -> mx.sym.Symbol:
    """Scores of MLP attention: inputs `source` (batch, steps, hidden) and `queries` (queries, batch, hidden)."""
    keys = mx.sym.FullyConnected(mx.sym.var("source"), num_hidden=hidden, flatten=False, no_bias=True, name="keys")
    split = mx.sym.SliceChannel(mx.sym.var("queries"), num_outputs=queries, axis=0, squeeze_axis=True)
    v, scores = mx.sym.var("v"), []
    for query in split:
        mixed = mx.sym.broadcast_add(keys, mx.sym.expand_dims(query, axis=1))
        active = mx.sym.Activation(mixed, act_type="tanh")
        scores.append(mx.sym.FullyConnected(active, v, num_hidden=1, no_bias=True, flatten=False))
    return mx.sym.Concat(*scores, dim=2)


def _attention_case() -> Case:
    batch, steps, hidden, queries = 32, 50, 512, 30
    shapes = {"source": (batch, steps, hidden), "queries": (queries, batch, hidden)}
    return Case(Model("attention", attention(batch, steps, hidden, queries), shapes), 23, 0.26)


def _lstm_case(batch: int, bar_mb: float | None, bar_time: float) -> Case:
    steps, hidden = 50, 512
    shapes = {"data": (steps, batch, hidden)}
    found = []
    for cell in (mx.rnn.LSTMCell(hidden, prefix="lstm_"), mx.rnn.FusedRNNCell(hidden, 1, mode="lstm", prefix="lstm_")):
        outputs, _ = cell.unroll(steps, mx.sym.var("data"), layout="TNC", merge_outputs=True)
        found.append(Model(f"LSTM, batch {batch}", outputs, shapes))
    return Case(found[0], bar_mb, bar_time, found[1])


def _model_case(name: str, bar_mb: float | None = None, bar_time: float | None = None) -> Case:
    return Case(MODELS[name](), bar_mb, bar_time)


def _layers_case(build: Any) -> Case:
    """MXNet's RNN operator with two layers: its memory is that of the process."""
    shape = (2, 64, 512)
    with mx.name.NameManager():
        net = build(shape[-1], shape[0], prefix="net_")
        names = [f"state{number}" for number in range(len(net.state_info()))]
        output, _ = net(mx.sym.var("data"), [mx.sym.var(name) for name in names])
    shapes = {"data": (50, *shape[1:]), **dict.fromkeys(names, shape)}
    return Case(Model(f"gluon.rnn.{build.__name__}, 2 layers", output, shapes), None, 1.0, grows=True)


def _alone_case(steps: int) -> Case:
    return Case(attention_models.alone(steps), None, 0.8 if steps == 512 else None)


def _budget_case(part: float, bar_mb: float) -> Case:
    model = attention_models.small_lm()
    return Case(replace(model, name=f"{model.name}, memory_budget={part}"), bar_mb, budget=part)


CASES: Mapping[str, Callable[[], Case]] = {
    "attention": _attention_case,
    "lstm64": partial(_lstm_case, 64, 88, 0.70),
    "lstm16": partial(_lstm_case, 16, None, 0.47),
    "nmt": partial(_model_case, "nmt", 100, 0.75),
    "nmt_large": partial(_model_case, "nmt_large", 540, 0.75),
    "lm": partial(_model_case, "lm"),
    "deepspeech_gru": lambda: Case(deepspeech("gru"), 95, 0.70),
    "deepspeech_gru_gluon": lambda: Case(deepspeech("gru", gluon=True), 95, 0.70),
    "deepspeech_lstm": lambda: Case(deepspeech("lstm"), 92, 0.70),
    "gluon_gru": lambda: _layers_case(mx.gluon.rnn.GRU),
    "gluon_lstm": lambda: _layers_case(mx.gluon.rnn.LSTM),
    "bert512": lambda: Case(attention_models.bert(512, 2), 370, 0.90),
    "bert128": lambda: Case(attention_models.bert(128, 8), 325, 0.90),
    "bert512_interleaved": lambda: Case(attention_models.bert(512, 2, interleaved=True), 370, 0.90),
    "bert128_interleaved": lambda: Case(attention_models.bert(128, 8, interleaved=True), 325, 0.90),
    "transformer_lm": lambda: Case(attention_models.small_lm(), 42),
    "transformer_lm_budget": partial(_budget_case, 0.64, 42),
    **{f"attention{steps}": partial(_alone_case, steps) for steps in (128, 512, 1024)},
    "dropout_mlp": lambda: Case(dropout_models.mlp()),
    "dropout_lm": lambda: Case(dropout_models.lm()),
    "dropout_transformer": lambda: Case(dropout_models.transformer()),
}


def bound(model: Model, symbol: mx.sym.Symbol) -> mx.executor.Executor:
    """An executor on reproducible values."""
    executor = symbol.simple_bind(mx.cpu(), grad_req=model.grad_req(), **model.shapes)
    for name, value in random_values(model).items():
        executor.arg_dict[name][:] = value
    return executor


def growth(key: str, variant: str) -> float:
    """MB by which a process grows over three steps, in this very process."""
    case = CASES[key]()
    model = case.same if variant == "rnn" and case.same is not None else case.model
    symbol = echo.optimize(model.symbol, **case.options(variant)) if variant in VARIANTS else model.symbol
    small = SMALL["lm"]()
    bound(small, echo.optimize(small.symbol))  # imports and libraries that stay are none of the step's memory
    before = resident("VmRSS")
    executor = bound(model, symbol)
    heads = [mx.nd.ones(out.shape) for out in executor.outputs]
    for _ in range(3):
        step(executor, heads)
    return (resident("VmHWM") - before) / 1e6


def measure(key: str, rounds: int) -> dict[str, Any]:
    """One row of the table."""
    case = CASES[key]()
    symbols = {"stock": case.model.symbol}
    symbols.update({name: echo.optimize(case.model.symbol, **case.options(name)) for name in VARIANTS})
    executors, seconds = {}, {}
    for name, symbol in symbols.items():
        started = time.perf_counter()
        executors[name] = bound(case.model, symbol)
        seconds[name] = time.perf_counter() - started
    if case.same is not None:
        executors["rnn"] = bound(case.same, case.same.symbol)
    times = in_turn(executors, rounds, [mx.nd.ones(out.shape) for out in executors["stock"].outputs])
    row: dict[str, Any] = {"case": case.model.name, "key": key, "bar_mb": case.bar_mb and MXNET_MB * case.bar_mb,
                           "bar_time": case.bar_time, "rounds": rounds,
                           "stock_ms": 1000 * statistics.median(times["stock"])}  # fmt: skip
    for name in VARIANTS:
        plan = symbols[name].plans[-1]
        row["stock_mb"] = plan.before.planned / 1e6
        row[name] = {"ratio": _ratio(times[name], times["stock"]), "predicted": plan.time.ratio if plan.time else None,
                     "mb": plan.after.planned / 1e6,
                     "planning_seconds": seconds[name] - seconds["stock"]}  # fmt: skip
    if case.same is not None:
        row["rnn"] = {"ratio": _ratio(times["rnn"], times["stock"])}
        row["fused"]["of_rnn"] = _ratio(times["fused"], times["rnn"])
    if case.grows or case.same is not None:
        variants = ("stock", "rnn", "fused") if case.same is not None else ("stock", "fused")
        row["growth_mb"] = {name: apart("fusion", "growth", key, name) for name in variants}
    return row


def _ratio(mine: list[float], theirs: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(mine, theirs))


def main() -> None:
    options = parser(__doc__, *CASES)
    options.add_argument("--rounds", type=int, default=7)
    arguments = options.parse_args()
    for key in asked(arguments.names, CASES):
        row = measure(key, arguments.rounds)
        print(row, flush=True)
        rows = {known["key"]: known for known in known_rows("fusion")}
        rows[key] = row
        save("fusion", [rows[each] for each in CASES if each in rows])


if __name__ == "__main__":
    main()
