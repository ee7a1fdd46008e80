"""On GPUs some fused operators take a place only where they were timed and are not slower; times are injected here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Mapping

import mxnet as mx
import numpy as np
import pytest

from echo.errors import EchoError
from echo.estimators.cost_model import UnavailableError, UnmeasurableError
from echo.estimators.cost_table import CostTable
from echo.frontend.install import extension_blocker
from echo.frontend.symbols import graph_of, infer_binding, symbol_of, types_of
from echo.ir.graph import Graph
from echo.ir.training_node import TensorType
from echo.passes.fuse import why_left
from echo.passes.fusion_timing import _MOST_BYTES, FUSED, OWN, FusionSample, sample
from echo.passes.patterns.apply import Fused, find, fuse
from echo.passes.patterns.graph_view import Fusion, View
from echo.passes.request import Request
from echo.plans.options import MEMORY, Options
from echo.system.process import Deadline
from tests.support.fused_models import BATCH, EXAMPLES, STEPS, Example

FASTER, SLOWER = {OWN: 2e-3, FUSED: 2e-3}, {OWN: 2e-3, FUSED: 2.1e-3}


class Races:
    """Gives the same answer to each race, and remembers what was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, list[Any]()

    def __call__(self, graphs: Mapping[str, Any], types: Mapping[str, Any], limit: float) -> Any:
        self.asked.append((graphs, types))
        if isinstance(self.answer, EchoError):
            raise self.answer
        return self.answer


def fused(
    example: Example, races: Races, folder: Path, device: str = "gpu", timed: Any = None, **options: Any
) -> Fused:
    """The graph with fused operators as on this device; in the ``folder`` is what was measured."""
    graph = graph_of(example.symbol)
    types = types_of(graph, infer_binding(example.symbol, example.shapes))
    framework: Any = SimpleNamespace(device=device, why_no_fusion="", race=races,
                                    cost_table=lambda: CostTable("some GPU", folder))  # fmt: skip
    deadline = Deadline.after(60.0)
    request = Request(graph, Options(**options), framework, deadline=deadline, timed={} if timed is None else timed)
    return fuse(graph, lambda: types, False, why_left=why_left(request))


def wide_attention(features: int, keys: int = 5) -> Example:
    q, k, v = (mx.sym.var(name) for name in "qkv")
    scores = mx.sym.batch_dot(q * 0.5, k, transpose_b=True)
    x = mx.sym.batch_dot(mx.sym.softmax(scores, axis=-1), v)
    return Example(x, dict.fromkeys("qkv", (2, keys, features)), {"attention": 1}, {})


def wide_layer(units: int) -> Example:
    state = [mx.sym.var(name) for name in "hc"]
    cell = mx.rnn.LSTMCell(units, prefix="l_")
    x, _ = cell.unroll(3, mx.sym.var("data"), layout="NTC", merge_outputs=True, begin_state=state)
    return Example(x, {"data": (2, 3, 4), **dict.fromkeys("hc", (2, units))}, {"lstm_layer": 1}, {})


CAREFUL = {"rnn": EXAMPLES["gluon lstm"], "bias_act": EXAMPLES["biased"], "softmax_output": EXAMPLES["softmax output"],
           "cross_entropy": EXAMPLES["cross entropy with its layer, smoothed, of sequences"],
           "attention": lambda: wide_attention(65), "lstm_layer": lambda: wide_layer(1024)}  # fmt: skip
NOTHING = UnavailableError("no process can be started")


@pytest.mark.parametrize("pattern", CAREFUL)
def test_only_what_is_not_slower_takes_the_place(pattern: str, tmp_path: Path) -> None:
    found = fused(CAREFUL[pattern](), Races(FASTER), tmp_path / "fast")
    assert pattern in {name for name, _ in found.match_sites}
    left = fused(CAREFUL[pattern](), Races(SLOWER), tmp_path / "slow")
    assert pattern not in {name for name, _ in left.match_sites}
    (reason,) = {missed.reason for missed in left.missed if missed.pattern == pattern and "device" in missed.reason}
    assert reason == "slower on this device: 2.1 ms, MXNet's own 2 ms (fuse='memory' takes it all the same)"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "that would take more than 1.0 s"),
        (NOTHING, "no process can be started"),
        (UnmeasurableError("MXNet does not run it"), "MXNet does not run it"),
    ],
)
def test_untimed_operator_is_not_fused(answer: Any, reason: str, tmp_path: Path) -> None:
    found = fused(CAREFUL["softmax_output"](), Races(answer), tmp_path)
    assert found.match_sites == ()
    assert [missed.reason for missed in found.missed] == [
        f"it was not timed on this device: {reason} (fuse='memory' takes it all the same)"
    ]
    assert fused(CAREFUL["softmax_output"](), Races(FASTER), tmp_path).match_sites, "the next planning asks again"


@pytest.mark.parametrize("options", [{"fuse": MEMORY}, {"memory_budget": 0.9}])
def test_fusion_for_memory_is_not_timed(options: dict[str, Any], tmp_path: Path) -> None:
    races = Races(NOTHING)
    assert fused(CAREFUL["softmax_output"](), races, tmp_path, **options).match_sites
    assert races.asked == []


def test_cells_of_a_slower_layer_are_fused(tmp_path: Path) -> None:
    left = fused(wide_layer(1024), Races(SLOWER), tmp_path)
    assert Counter(name for name, _ in left.match_sites) == {"lstm_cell": 3}


def test_attention_over_many_keys_is_timed(tmp_path: Path) -> None:
    races = Races(SLOWER)
    assert fused(wide_attention(8, keys=65), races, tmp_path).match_sites == ()
    assert len(races.asked) == 1


@pytest.mark.parametrize("example", [EXAMPLES["lstm cells"](), EXAMPLES["gru cells"](), wide_attention(64, keys=64),
                                     wide_layer(1023),
                                     EXAMPLES["cross entropy"]()])  # fmt: skip
def test_patterns_that_always_win_are_not_timed(example: Example, tmp_path: Path) -> None:
    races = Races(NOTHING)
    assert fused(example, races, tmp_path).match_sites
    assert races.asked == []


def test_fusion_on_a_cpu_is_not_timed(tmp_path: Path) -> None:
    races = Races(NOTHING)
    assert all(fused(make(), races, tmp_path, "cpu").match_sites for make in CAREFUL.values())
    assert races.asked == []


def test_each_is_timed_once_on_a_device(tmp_path: Path) -> None:
    """In one graph, and over all processes: the table of the device has both times."""
    q, k, v = (mx.sym.var(name) for name in "qkv")
    for _ in range(2):
        v = mx.sym.batch_dot(mx.sym.softmax(mx.sym.batch_dot(q * 0.5, k, transpose_b=True), axis=-1), v)
    example = Example(v, dict.fromkeys("qkv", (2, 6, 96)), {}, {})
    races = Races(FASTER)
    assert len(fused(example, races, tmp_path).match_sites) == 2
    assert len(races.asked) == 1
    assert len(fused(example, Races(SLOWER), tmp_path).match_sites) == 2, "from the table"


def test_failed_timing_is_not_repeated_in_one_planning(tmp_path: Path) -> None:
    """Whatever graphs are planned: what takes too long, or does not run, would do so again."""
    races, timed = Races(None), dict[str, str]()
    for _ in range(2):
        assert not fused(CAREFUL["softmax_output"](), races, tmp_path, timed=timed).match_sites
    assert len(races.asked) == len(timed) == 1


@pytest.mark.parametrize("more", [(), (1,)])
def test_large_losses_are_timed_in_part(more: tuple[int, ...], tmp_path: Path) -> None:
    """With as many labels as rows of scores."""
    scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=50_000, flatten=False)
    loss = mx.sym.pick(mx.sym.log_softmax(scores), mx.sym.var("label"))
    example = Example(loss, {"data": (64, 100, 200), "label": (64, 100, *more)}, {}, {})
    races = Races(FASTER)
    assert fused(example, races, tmp_path).match_sites
    ((_, types),) = races.asked
    sizes = sorted(tensor.shape for tensor in types.values())
    assert (64, sizes[0][1]) == sizes[0][:2] == sizes[1][:2] if more else True
    assert all(100 not in tensor.shape for tensor in types.values())


def test_large_operators_are_timed_in_part(tmp_path: Path) -> None:
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=50_000)
    example = Example(mx.sym.SoftmaxOutput(x), {"data": (64 * 100, 2000)}, {}, {})  # with weights of 400 MB
    races = Races(FASTER)
    assert fused(example, races, tmp_path).match_sites
    ((_, types),) = races.asked
    (rows,) = {tensor.shape[0] for tensor in types.values()} - {50_000}
    assert 0.4 <= rows * 4 * 4 * 50_000 / _MOST_BYTES <= 1


NAMES = ["softmax output", "softmax output, padded", "biased", "dot attention", "dot attention with a mask",
         "dot attention with a bias", "gluon lstm", "gluon lstm, two layers both ways", "packed lstm", "attention",
         "lstm layer", "gru cells", "layer norm", "rectified"]  # fmt: skip


def found(example: Example) -> tuple[View, Fusion, dict[Any, TensorType]]:
    """The first fusion of an example, in its graph, with the types of the graph's entries."""
    graph = graph_of(example.symbol)
    fusions, _ = find(graph)
    return View(graph), fusions[0], types_of(graph, infer_binding(example.symbol, example.shapes))


def run(graph: Graph, arrays: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The outputs of one training step, and the gradients of the variables by name."""
    assert extension_blocker() == ""
    symbol = symbol_of(graph)
    given = {name: mx.nd.array(arrays[name]) for name in symbol.list_arguments()}
    gradients = {name: mx.nd.zeros(array.shape) for name, array in given.items()}
    executor = mx.sym.Symbol.bind(symbol, mx.cpu(), given, gradients)
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones(output.shape) for output in executor.outputs])
    return [out.asnumpy() for out in executor.outputs], {name: array.asnumpy() for name, array in gradients.items()}


def compare(made: FusionSample) -> None:
    draw = np.random.default_rng(0)
    arrays = {name: draw.uniform(-0.1, 0.1, tensor.shape) for name, tensor in made.types.items()}
    (own, own_gradients), (fused, fused_gradients) = run(made.own, arrays), run(made.fused, arrays)
    assert len(own) == len(fused) == len(made.own.heads)
    for mine, theirs in zip(fused, own):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert own_gradients.keys() | fused_gradients.keys() == made.types.keys()
    for name in own_gradients.keys() & fused_gradients.keys():
        assert fused_gradients[name] == pytest.approx(own_gradients[name], abs=1e-4), name


@pytest.mark.every(7)
@pytest.mark.parametrize("name", NAMES)
def test_both_forms_compute_the_same(name: str) -> None:
    made = sample(*found(EXAMPLES[name]()))
    ops = {node.op for node in made.fused.nodes} - {node.op for node in made.own.nodes}
    assert any(op.startswith("_echo_") for op in ops)
    compare(made)


def test_a_part_of_the_rows() -> None:
    for name, letter, shape in (("softmax output", "N", (2,)), ("gluon lstm", "T", (2, BATCH))):
        made = sample(*found(EXAMPLES[name]()), {letter: 2})
        whole = sample(*found(EXAMPLES[name]()))
        assert any(tensor.shape[: len(shape)] == shape for tensor in made.types.values())
        assert sum(tensor.bytes for tensor in made.types.values()) < sum(each.bytes for each in whole.types.values())
        compare(made)


def test_annotations_and_names_of_the_user_do_not_matter() -> None:
    """The same operators of another model are timed once."""
    symbols = []
    for prefix in "ab":
        x = mx.sym.FullyConnected(mx.sym.var(f"{prefix}_data"), num_hidden=700, name=f"{prefix}_fc", lr_mult=prefix)
        symbols.append(mx.sym.SoftmaxOutput(x, name=f"{prefix}_softmax"))
    graphs = []
    for symbol in symbols:
        shapes = {name: (400, STEPS) for name in symbol.list_arguments() if name.endswith("data")}
        made = sample(*found(Example(symbol, shapes, {}, {})))
        graphs.append((made.own.to_json(), made.fused.to_json(), made.types))
    assert graphs[0] == graphs[1]
