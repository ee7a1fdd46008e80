"""Is a default plan ever worse than no plan? Random recurrent models, each trained with and without echo.

    python -m benchmarks.never_worse [FIRST [LAST]]

For each seed, the model that `model` draws has 0.1 to 20 MB of planned memory. Its plan is made on an empty cache, and
steps of the stock graph and the planned one alternate, one thread each, for a second or `LEAST_STEPS` steps. A row has
all bytes that the executor holds (workspaces of fused operators included) before and after, and the ratio of the
medians of the steps, measured and predicted. A plan is worse if it needs more bytes, takes more than `SLOWER` times the
step, or is slower at all (beyond `NOISE`) for less than `GAIN` of the bytes. Where less than `TINY` bytes are planned,
bytes do not count. What looks worse is trained once more with the plan at hand, and that counts. Writes
results/never_worse.json.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from typing import Any

from benchmarks.models import Model
from benchmarks.record import apart, known_rows, parser, save

SLOWER, GAIN, NOISE, TINY = 1.10, 0.05, 0.05, 100_000
LEAST_STEPS, MOST_STEPS, SECONDS = 15, 200, 1.0


def model(seed: int) -> Model:
    """A recurrent model whose cells, sizes, layers and head are drawn."""
    import mxnet as mx

    draw = random.Random(seed)
    steps, batch = draw.choice([8, 15, 30, 60]), draw.choice([4, 8, 16, 32])
    hidden, words, layers = draw.choice([16, 32, 48, 64, 100]), draw.choice([50, 200, 1000]), draw.choice([1, 1, 2])
    kind = draw.choice(["lstm", "gru", "rnn_tanh", "LSTMCell", "GRUCell", "RNNCell"])
    data = mx.sym.Embedding(mx.sym.var("data"), input_dim=words, output_dim=hidden, name="embedding")
    if kind[0].islower():
        cell: Any = mx.rnn.FusedRNNCell(
            hidden, layers, kind, draw.random() < 0.3, draw.choice([0.0, 0.2]), prefix="rnn_"
        )
    else:
        cell = mx.rnn.SequentialRNNCell()
        for layer in range(layers):
            cell.add(getattr(mx.rnn, kind)(hidden, prefix=f"layer{layer}_"))
            if draw.random() < 0.4:
                cell.add(mx.rnn.DropoutCell(0.3, prefix=f"drop{layer}_"))
    layout = "TNC" if kind[0].islower() else "NTC"
    output, _ = cell.unroll(steps, data, merge_outputs=True, layout=layout)
    flat = mx.sym.Reshape(output, shape=(-3, 0))
    if draw.random() < 0.3:
        flat = mx.sym.LayerNorm(mx.sym.Activation(flat, act_type="relu"), name="norm")
    scores = mx.sym.FullyConnected(flat, num_hidden=words, name="scores")
    symbol = mx.sym.SoftmaxOutput(scores, mx.sym.Reshape(mx.sym.var("label"), shape=(-1,)), name="softmax")
    return Model(f"{kind} {layers}x{hidden} T{steps} B{batch} V{words}", symbol,
                 dict.fromkeys(("data", "label"), (steps, batch) if layout == "TNC" else (batch, steps)))  # fmt: skip


def measure(text: str) -> dict[str, Any]:
    """One row, in a process of its own."""
    import mxnet as mx

    import echo

    seed = int(text)
    drawn = model(seed)
    plan = echo.plan(drawn.symbol, grad_req=drawn.grad_req(), **drawn.shapes)
    symbols = (drawn.symbol, echo.optimize(drawn.symbol, plan=plan))
    executors = [symbol.simple_bind(mx.cpu(), grad_req=drawn.grad_req(), **drawn.shapes) for symbol in symbols]
    for executor in executors:
        for name, array in executor.arg_dict.items():
            array[:] = mx.nd.random.randint(0, 50, array.shape) if name in drawn.shapes else 0.1
    seconds: list[list[float]] = [[], []]
    start = time.perf_counter()
    for step in range(MOST_STEPS + 2):
        if step > LEAST_STEPS + 2 and time.perf_counter() - start > SECONDS:
            break
        for executor, times in zip(executors, seconds):
            began = time.perf_counter()
            executor.forward(is_train=True)
            executor.backward()
            mx.nd.waitall()
            if step >= 2:
                times.append(time.perf_counter() - began)
    stock, planned = map(statistics.median, seconds)
    return {
        "seed": seed, "model": drawn.name, "planned": plan.before.planned,
        "before": plan.before.total, "after": plan.after.total,
        "fused": len(plan.fused), "recomputed": plan.recomputed_nodes, "stock_ms": round(1e3 * stock, 3),
        "time": round(planned / stock, 3), "predicted": None if plan.time is None else round(plan.time.ratio, 3),
    }  # fmt: skip


def is_worse(row: dict[str, Any]) -> bool:
    """Whether a plan of a row should not have been taken."""
    saved = 1 - row["after"] / row["before"]
    if row["after"] == row["before"] and not row["fused"] and not row["recomputed"]:
        return False  # the original graph: the measured difference is noise
    larger = saved < 0 and row["planned"] >= TINY
    return larger or row["time"] > (SLOWER if saved >= GAIN else 1 + NOISE)


def main() -> None:
    """Measures the seeds that are asked for, and prints those whose plans are worse."""
    options = parser(__doc__)
    options.add_argument("first", nargs="?", type=int, default=0, metavar="FIRST")
    options.add_argument("last", nargs="?", type=int, default=200, metavar="LAST")
    arguments = options.parse_args()
    rows = {row["seed"]: row for row in known_rows("never_worse")}
    for seed in range(arguments.first, arguments.last):
        with tempfile.TemporaryDirectory() as folder:
            os.environ.update(ECHO_CACHE_DIR=folder, OMP_NUM_THREADS="1")
            row = apart("never_worse", "measure", str(seed))
            if is_worse(row):  # a busy moment of the machine does not come twice
                row = {**apart("never_worse", "measure", str(seed)), "first_time": row["time"]}
        rows[seed] = row
        print(f"{seed:4} {row['model']:36} {row['before']:10,} -> {row['after']:10,} {row['time']:6.2f}", end="")
        print(f" predicted {row['predicted']}{'  WORSE' if is_worse(row) else ''}", flush=True)
        save("never_worse", [rows[number] for number in sorted(rows)])


if __name__ == "__main__":
    main()
