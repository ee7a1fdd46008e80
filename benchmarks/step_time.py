"""What does recomputation cost? Measured time of a training step with echo against stock, side by side.

    python -m benchmarks.step_time [--rounds 7] [--threads 1] [MODEL ...]

Stock and every bound live in one process on the same weights and take steps in turn, so that a slow moment of the
machine hits all of them. A row holds the median of the ratios round by round, next to the predicted one.
Writes results/step_time.json.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx

import echo
from benchmarks.models import MODELS, Model, random_values
from benchmarks.record import apart, asked, known_rows, parser, save

BOUNDS: dict[str, float | str | None] = {"0.05": 0.05, "0.10": "auto", "0.25": 0.25, "none": None}


def bind(model: Model, symbol: mx.sym.Symbol) -> mx.executor.Executor:
    """An executor of the model on reproducible values."""
    executor = symbol.simple_bind(mx.cpu(), grad_req=model.grad_req(), **model.shapes)
    for name, value in random_values(model).items():
        executor.arg_dict[name][:] = value
    for name, array in executor.aux_dict.items():
        array[:] = 1.0 if "var" in name else 0.0
    return executor


def step(executor: mx.executor.Executor, heads: Sequence[mx.nd.NDArray] | None = None) -> float:
    """Seconds of one forward and backward pass; ``heads`` are the gradients of what is no loss."""
    mx.nd.waitall()
    started = time.perf_counter()
    executor.forward(is_train=True)
    executor.backward(heads)
    mx.nd.waitall()
    return time.perf_counter() - started


def in_turn(executors: Mapping[str, mx.executor.Executor], rounds: int,
            heads: Sequence[mx.nd.NDArray] | None = None) -> dict[str, list[float]]:  # fmt: skip
    """Seconds of each executor's steps, which take turns, after one of each that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in executors}
    for executor in executors.values():
        step(executor, heads)
    for number in range(rounds):
        order = list(executors) if number % 2 else list(executors)[::-1]
        for name in order:
            times[name].append(step(executors[name], heads))
    return times


def _binds_the_same(one: echo.Plan, other: echo.Plan) -> bool:
    recomputed = [{(item.node, item.output) for item in plan.recomputed} for plan in (one, other)]
    return recomputed[0] == recomputed[1] and one.match_range == other.match_range


def measure(model_name: str, count: str) -> dict[str, Any]:
    """Times one model in a process of its own, since a plan follows that of a model with the same structure.

    Bounds that come to the same plan are timed only once.
    """
    model, rounds = MODELS[model_name](), int(count)
    executors, plans, predicted, same = {"stock": bind(model, model.symbol)}, {}, {}, {}
    for name, bound in BOUNDS.items():
        symbol = echo.optimize(model.symbol, max_overhead=bound)
        executor = bind(model, symbol)
        plan = symbol.plans[-1]
        twin = next((other for other, known in plans.items() if _binds_the_same(known, plan)), None)
        plans[name] = plan
        # a bind after that of another length of the same model does not look at the user's own time
        predicted[name] = echo.plan(model.symbol, max_overhead=bound, **model.shapes)
        if twin is None:
            executors[name] = executor
        same[name] = twin or name
    times = in_turn(executors, rounds)
    row: dict[str, Any] = {"model": model.name, "stock_ms": 1000 * statistics.median(times["stock"]), "rounds": rounds}
    row["predicted_stock_ms"] = 1000 * predicted["none"].time.before
    for name, plan in plans.items():
        ratios = [mine / stock for mine, stock in zip(times[same[name]], times["stock"])]
        row[name] = {
            "ratio": statistics.median(ratios),
            "quickest_ratio": min(times[same[name]]) / min(times["stock"]),
            "predicted_ratio": predicted[name].time_ratio,
            "mb": plan.after.planned / 1e6,
        }
    return row


def _show(row: dict[str, Any]) -> None:
    for name in BOUNDS:
        print(
            f"{row['model']}, bound {name}: {row[name]['ratio']:.3f} of stock's step (quickest steps "
            f"{row[name]['quickest_ratio']:.3f}), predicted {row[name]['predicted_ratio']:.3f}",
            flush=True,
        )


def main() -> None:
    """Measures the models named on the command line, all by default."""
    options = parser(__doc__, *MODELS)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--threads", type=int, default=1, help="of MXNet's operators")
    arguments = options.parse_args()
    models, threads = asked(arguments.names, MODELS), arguments.threads
    os.environ["OMP_NUM_THREADS"] = str(threads)  # of the processes that measure
    rows = [row for row in known_rows("step_time") if row["model"] not in models or row["threads"] != threads]
    for name in models:
        rows.append({"threads": threads, **apart("step_time", "measure", name, str(arguments.rounds))})
        _show(rows[-1])
        path = save("step_time", rows)  # after each model: the large ones take minutes
    print("written:", path.name)


if __name__ == "__main__":
    main()
