"""Does a busy machine change plans? Each model is planned again and again next to programs that never rest.

    python -m benchmarks.busy_planning [MODEL ...]

Each planning is a process of its own with an empty cache; first some on the machine as it is, then `PLANNINGS` next to
`BUSY` loops. A row has the spread of the planned bytes and of all bytes that the executor holds, how often each set of
fused operators was chosen, the most seconds of a planning, and the predicted times. Writes results/busy_planning.json.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any, Callable, Iterator

from benchmarks.models import MODELS, SMALL, Model, cnn
from benchmarks.record import apart, known_rows, named, save

PLANNINGS, QUIET_PLANNINGS, BUSY = 10, 2, 3
BARS = {"spread of bytes": 0.03, "sets of fused operators": 1, "seconds": 10.0}
_LOOP = "while True: pass"


def _dense(value: Any, units: int, name: str) -> Any:
    import mxnet as mx

    return mx.sym.FullyConnected(value, num_hidden=units, flatten=False, name=name)


def _gated(value: Any, skip: Any, hidden: int, name: str) -> Any:
    """A gated residual network: two layers with dropout, a gate, a sum with ``skip``, and its norm."""
    import mxnet as mx

    inner = mx.sym.LeakyReLU(_dense(value, hidden, f"{name}_in"), act_type="elu", name=f"{name}_elu")
    inner = mx.sym.Dropout(_dense(inner, hidden, f"{name}_out"), p=0.1, name=f"{name}_drop")
    gate = mx.sym.Activation(_dense(inner, hidden, f"{name}_gate"), act_type="sigmoid", name=f"{name}_sigmoid")
    total = mx.sym.broadcast_add(skip, gate * _dense(inner, hidden, f"{name}_value"), name=f"{name}_sum")
    return mx.sym.LayerNorm(total, name=f"{name}_norm")


def _selected(data: Any, features: int, hidden: int) -> Any:
    """The features of each step, embedded and weighed by what they are."""
    import mxnet as mx

    columns = mx.sym.split(data, num_outputs=features, axis=2)
    embedded = [_dense(columns[at], hidden, f"feature{at}") for at in range(features)]
    chosen = [_gated(value, value, hidden, f"select{at}") for at, value in enumerate(embedded)]
    weights = mx.sym.softmax(_dense(mx.sym.concat(*chosen, dim=2), features, "weights"), axis=2)
    parts = (mx.sym.slice_axis(weights, axis=2, begin=at, end=at + 1) for at in range(features))
    return mx.sym.add_n(*map(mx.sym.broadcast_mul, chosen, parts), name="selected")


def forecaster(past: int = 24, future: int = 6, hidden: int = 32, batch: int = 32, features: int = 4) -> Model:
    """A small Temporal Fusion Transformer: gated residual networks select features, an LSTM, attention, quantiles."""
    import mxnet as mx

    with mx.name.NameManager():
        selected = _selected(mx.sym.var("data"), features, hidden)
        cell = mx.rnn.LSTMCell(hidden, prefix="lstm_")
        outputs, _ = cell.unroll(past + future, inputs=selected, merge_outputs=True)
        enriched = _gated(outputs, selected, hidden, "enriched")
        query, key, value = (_dense(enriched, hidden, name) for name in ("query", "key", "value"))
        scores = mx.sym.softmax(mx.sym.batch_dot(query, key, transpose_b=True) / hidden**0.5, axis=2)
        attended = _gated(mx.sym.batch_dot(scores, value), enriched, hidden, "attended")
        found = _dense(mx.sym.slice_axis(attended, axis=1, begin=past, end=past + future), 9, "quantiles")
        error = mx.sym.broadcast_sub(mx.sym.expand_dims(mx.sym.var("target"), axis=2), found)
        symbol = mx.sym.MakeLoss(mx.sym.maximum(0.9 * error, -0.1 * error), name="loss")
    return Model("tft", symbol, {"data": (batch, past + future, features), "target": (batch, future)})


def resnet18() -> Model:
    """ResNet-18 on images of 64 x 64."""
    from mxnet.gluon.model_zoo import vision

    return cnn("resnet18", vision.resnet18_v1, 16, 64)


PLANNED: dict[str, Callable[[], Model]] = {
    "lm": MODELS["lm"],
    "nmt": SMALL["nmt"],
    "resnet18": resnet18,
    "tft": forecaster,
}


def planned(name: str) -> dict[str, Any]:
    """Plans a model with an empty cache; in a process of its own. ``load``: of the machine, over the last minute."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ECHO_CACHE_DIR"] = folder
        import echo

        model = PLANNED[name]()
        started = time.perf_counter()
        plan = echo.plan(model.symbol, **model.shapes)
        seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "bytes": plan.after.planned,
        "total": plan.after.total,
        "fused": ", ".join(f"{count} x {label}" for label, count in sorted(Counter(p for p, _ in plan.fused).items())),
        "time": plan.time_ratio,
        "step_seconds": plan.step_seconds,
        "stopped": [str(note) for note in plan.failed],
        "load": os.getloadavg()[0],
    }


@contextlib.contextmanager
def busy(programs: int = BUSY) -> Iterator[None]:
    """So many programs that never rest run while this is open."""
    running = [subprocess.Popen([sys.executable, "-S", "-c", _LOOP]) for _ in range(programs)]
    try:
        yield
    finally:
        for program in running:
            program.kill()
            program.wait()


def row(name: str, quiet: list[dict[str, Any]], loaded: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary of plannings of one model, and whether they meet `BARS`."""
    sizes, totals = [each["bytes"] for each in loaded], [each["total"] for each in loaded]
    fused = Counter(each["fused"] for each in loaded)
    spread = max(sizes) / min(sizes) - 1
    most = max(each["seconds"] for each in loaded)
    return {
        "model": name,
        "bytes": sorted(Counter(sizes).items()),
        "quiet_bytes": sorted({each["bytes"] for each in quiet}),
        "spread_of_bytes": spread,
        "spread_of_total": max(totals) / min(totals) - 1,
        "fused": dict(fused),
        "quiet_fused": sorted({each["fused"] for each in quiet}),
        "seconds": [round(each["seconds"], 2) for each in loaded],
        "quiet_seconds": [round(each["seconds"], 2) for each in quiet],
        "time": [round(each["time"], 3) for each in loaded],
        "quiet_time": [round(each["time"], 3) for each in quiet],
        "stopped": sum(bool(each["stopped"]) for each in loaded),
        "load": round(max(each["load"] for each in loaded), 1),
        "met": spread <= BARS["spread of bytes"] and len(fused) <= BARS["sets of fused operators"]
        and most < BARS["seconds"],
    }  # fmt: skip


def measure(name: str) -> dict[str, Any]:
    """Plans one model on the machine as it is, then next to busy programs."""
    quiet = [apart("busy_planning", "planned", name) for _ in range(QUIET_PLANNINGS)]
    with busy():
        loaded = [apart("busy_planning", "planned", name) for _ in range(PLANNINGS)]
    return row(name, quiet, loaded)


def main() -> None:
    """Measures the models named on the command line, all by default."""
    for name in named(__doc__, PLANNED):
        found = measure(name)
        print(found, flush=True)
        known = {each["model"]: each for each in [*known_rows("busy_planning"), found]}
        save("busy_planning", [known[each] for each in PLANNED if each in known])


if __name__ == "__main__":
    main()
