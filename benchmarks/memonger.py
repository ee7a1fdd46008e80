"""The models of memonger (Chen et al., 2016) at the memory that it reaches: which planner recomputes less?

    python -m benchmarks.memonger [MODEL ...]

memonger needs hints at the outputs of layers and recomputes everything else, matrix products and convolutions too. Its
rule is written here from its description: nodes are mirrored; one with a hint is stashed as soon as the maps since
the last stashed one take more than a threshold, and nine thresholds are tried. Planned MB are MXNet's own in both
cases, and so are the operators: echo fuses none here. Next to the seconds that all of planning takes stand those of the
processor that are echo's own, from MXNet's training graph to the finished plan, operators not measured (as in
benchmarks.planning_time). Writes results/memonger.json.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterator
from unittest import mock

import mxnet as mx

import echo
from benchmarks.models import MXNET_MB
from benchmarks.record import apart, known_rows, named, save
from echo.ir.op_spec import PLAN_ATTRIBUTE
from echo.ir.ops import spec
from echo.passes.analysis import FindCandidates, Partition
from echo.passes.rewrite import Explain, Rewrite
from echo.passes.select import Select
from echo.plans.decisions import splits_of

BATCH = 64
HIDDEN, WORDS, FEATURES = 1024, 5000, 50
GATES = ("sigmoid", "tanh", "sigmoid", "sigmoid")
Symbol = mx.sym.Symbol
_OWN_STAGES = (FindCandidates, Partition, Select, Rewrite, Explain)
_FIRST, _MORE = 3, 6  # thresholds that memonger tries: to find where to look, and there


@dataclass(frozen=True)
class Model:
    """``bar_mb``: what memonger is known to reach on it, as MXNet prints it."""

    symbol: Symbol
    shapes: dict[str, tuple[int, ...]]
    bar_mb: int


def lstm(steps: int, bar_mb: int) -> Model:
    """Four layers of 1024 units, an input of 50 features and a loss over 5000 words at each step, batch 64."""
    var = functools.lru_cache(maxsize=None)(mx.sym.var)
    shapes = {f"layer{layer}_{state}": (BATCH, HIDDEN) for layer in range(4) for state in "ch"}
    states = [(var(f"layer{layer}_c"), var(f"layer{layer}_h")) for layer in range(4)]
    tops = []
    for step in range(steps):
        shapes[f"step{step}_data"] = (BATCH, FEATURES)
        x = mx.sym.FullyConnected(var(f"step{step}_data"), weight=var("embed_weight"), no_bias=True, num_hidden=HIDDEN)
        for layer in range(4):
            products = [
                mx.sym.FullyConnected(source, weight=var(f"layer{layer}_{name}_weight"),
                                      bias=var(f"layer{layer}_{name}_bias"), num_hidden=4 * HIDDEN)
                for name, source in (("x", x), ("h", states[layer][1]))
            ]  # fmt: skip
            parts = mx.sym.SliceChannel(products[0] + products[1], num_outputs=4)
            i, g, f, o = (mx.sym.Activation(part, act_type=kind) for part, kind in zip(parts, GATES))
            c = f * states[layer][0] + i * g
            x = o * mx.sym.Activation(c, act_type="tanh")
            for state in (c, x):
                state._set_attr(__stage__=str(step))
            states[layer] = (c, x)
        tops.append(x)
    losses = []
    for step, top in enumerate(tops):
        shapes[f"step{step}_label"] = (BATCH,)
        scores = mx.sym.FullyConnected(top, weight=var("word_weight"), bias=var("word_bias"), num_hidden=WORDS)
        losses.append(mx.sym.softmax_cross_entropy(scores, var(f"step{step}_label")))
    last = [mx.sym.BlockGrad(state) for pair in states for state in pair]
    return Model(mx.sym.Group([*losses, *last]), shapes, bar_mb)


def resnet() -> Model:
    """Bottleneck units [3, 24, 36, 3] on 32 images of 224 x 224, leaky activations, hints at the outputs of units."""

    def convolved(x: Symbol, channels: int, kernel: int, stride: int = 1) -> Symbol:
        x = mx.sym.Convolution(x, num_filter=channels, kernel=(kernel, kernel), stride=(stride, stride),
                               pad=(kernel // 2, kernel // 2))  # fmt: skip
        return mx.sym.LeakyReLU(mx.sym.BatchNorm(x), act_type="leaky")

    x = mx.sym.Pooling(convolved(mx.sym.var("data"), 64, 7, 2), pool_type="max", kernel=(3, 3), stride=(2, 2))
    for stage, units in enumerate((3, 24, 36, 3)):
        for unit in range(units):
            channels, stride = 64 * 2**stage, 2 if stage and not unit else 1
            inner = convolved(convolved(convolved(x, channels, 1), channels, 3, stride), 4 * channels, 1)
            shortcut = x if unit else convolved(x, 4 * channels, 1, stride)
            x._set_attr(__stage__="True")
            x = shortcut + inner
    x = mx.sym.Flatten(mx.sym.Pooling(x, kernel=(7, 7), global_pool=True, pool_type="avg"))
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=1000), name="softmax")
    return Model(symbol, {"data": (32, 3, 224, 224)}, 2520)


MODELS: dict[str, Callable[[], Model]] = {
    "lstm 4x1024, 50 steps": lambda: lstm(50, 492),
    "lstm 4x1024, 200 steps": lambda: lstm(200, 781),
    "lstm 4x1024, 1000 steps": lambda: lstm(1000, 1666),
    "resnet [3, 24, 36, 3]": resnet,
}


def planned_mb(symbol: Symbol, shapes: dict[str, tuple[int, ...]]) -> float:
    """MB, within one of those that MXNet prints, that MXNet's planner reserves; nothing is run."""
    executor = symbol.simple_bind(mx.cpu(), grad_req="write", **shapes)
    return MXNET_MB * int(re.findall(r"Total (\d+) MB allocated", executor.debug_str())[0])


def mirrored(model: Model, threshold: int) -> tuple[Symbol, int, int, int]:
    """memonger's rule: the symbol, the bytes that are stashed, the most between two stashed maps, and the heavy
    operators that are recomputed."""
    value = json.loads(model.symbol.tojson())
    internals = model.symbol.get_internals()
    _, shapes, _ = internals.infer_shape(**model.shapes)
    sizes = {name: 4 * math.prod(shape) for name, shape in zip(internals.list_outputs(), shapes)}
    local = most = stashed = heavy = 0
    last_stage, stash = "", False
    for node in value["nodes"]:
        if node["op"] == "null":
            continue
        attrs = node.setdefault("attrs", {})
        size = sum(sizes.get(f"{node['name']}_{output}", 0) for output in ("output", *(f"output{i}" for i in range(4))))
        local += size
        stage = attrs.pop("__stage__", "")
        if stage and (stage == "True" or stage != last_stage):
            last_stage, stash = stage, local > threshold
            if stash:
                most, local = max(most, local), 0
        kept = bool(stage) and stash
        stashed += size * kept
        attrs["__force_mirroring__"] = str(not kept)
        heavy += spec(node["op"]).cost.heavy and not kept
    return mx.sym.load_json(json.dumps(value)), stashed, most, heavy


def memonger(model: Model) -> dict[str, Any]:
    """The best of nine thresholds: around the geometric mean of what is stashed and what is recomputed at once."""
    started = time.perf_counter()
    tried: list[tuple[float, int]] = []
    threshold, least = 0, None
    for _ in range(_FIRST):
        symbol, stashed, most, heavy = mirrored(model, threshold)
        tried.append((planned_mb(symbol, model.shapes), heavy))
        least = most if least is None else min(least, most)
        threshold = int(math.sqrt(stashed * most / 2))
    step = int((threshold * math.sqrt(2) - (least or 0)) / _MORE)
    for count in range(1, _MORE + 1 if step > 0 else 1):
        symbol, _, _, heavy = mirrored(model, (least or 0) + count * step)
        tried.append((planned_mb(symbol, model.shapes), heavy))
    best = min(tried)
    return {"mb": best[0], "heavy": best[1], "seconds_to_plan": time.perf_counter() - started}


def ours(model: Model, mb: float | None) -> dict[str, Any]:
    """The fastest plan of so many MB; None: the smallest that runs nothing heavy again."""
    arguments, _, auxiliary = model.symbol.infer_shape(**model.shapes)
    held = 8 * sum(map(math.prod, arguments)) + 4 * sum(map(math.prod, auxiliary))  # gradients of everything, too
    budget = None if mb is None else held + int(1e6 * mb)
    options = {"max_overhead": None, "memory_budget": budget, "fuse": False, "max_planning": None}
    started, before = time.perf_counter(), time.process_time()
    with own_stages() as own:
        try:
            plan = echo.plan(model.symbol, grad_req="write", **options, **model.shapes)
        except echo.BudgetError as error:
            return {"missed": str(error), "seconds_to_plan": time.perf_counter() - started}
    took, processor = time.perf_counter() - started, time.process_time() - before
    marks = [mark for mark in plan.marks if spec(mark.op).cost.heavy and PLAN_ATTRIBUTE in mark.attrs]
    heavy = sum(len(splits_of(mark)) or 1 for mark in marks)
    return {
        "stock_mb": plan.before.planned / 1e6,
        "mb": plan.after.planned / 1e6,
        "heavy": heavy,
        "overhead": plan.overhead,
        "seconds_to_plan": took,
        "processor_seconds": processor,
        "own_processor_seconds": sum(own),
    }


@contextmanager
def own_stages() -> Iterator[list[float]]:
    """Seconds of the processor of each stage that asks MXNet nothing, while this is open."""
    found: list[float] = []

    def timed(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_timed(*values: Any) -> Any:
            started = time.process_time()
            value = run(*values)
            found.append(time.process_time() - started)
            return value

        return run_timed

    with ExitStack() as patches:
        for stage in _OWN_STAGES:
            patches.enter_context(mock.patch.object(stage, "run", timed(stage.run)))
        yield found


def measure(name: str, what: str) -> Any:
    """One figure, in a process of its own: the largest graphs do not free gigabytes of names and nodes."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ECHO_CACHE_DIR"] = folder  # no plan of an earlier run
        model = MODELS[name]()
        if what == "memonger":
            return memonger(model)
        return ours(model, MXNET_MB * model.bar_mb if what == "budget" else None)


def main() -> None:
    """Measures the models named on the command line, all by default."""
    names = named(__doc__, MODELS)
    for name in names:
        rows = [row for row in known_rows("memonger") if row["model"] != name]
        row: dict[str, Any] = {"model": name, "bar_mb": MXNET_MB * MODELS[name]().bar_mb}
        for what in ("memonger", "budget", "light"):
            row[what] = apart("memonger", "measure", name, what)
            print(f"{name}, {what}: {row[what]}", flush=True)
        order = list(MODELS)
        print("written:", save("memonger", sorted([*rows, row], key=lambda one: order.index(one["model"]))).name)


if __name__ == "__main__":
    main()
