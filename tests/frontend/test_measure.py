"""Measuring operators: every kind that a model holds, without a trace in the user's process. No times are compared."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Iterator

import mxnet as mx
import numpy as np
import pytest

from echo.estimators.cost_model import UnmeasurableError
from echo.estimators.operator_groups import is_free
from echo.frontend import measure
from echo.frontend.capture import training_graph
from echo.frontend.install import install_hook
from echo.frontend.measure import TimerClient
from echo.frontend.measurement_process import measuring
from echo.frontend.symbols import graph_of, infer_binding
from echo.ir.ops import spec
from echo.ir.training_graph import TrainingGraph


def training(symbol: mx.sym.Symbol, **shapes: tuple[int, ...]) -> TrainingGraph:
    assert install_hook() == ""
    inputs_only = {"words", "label", "lengths"}
    grad_req = {name: "null" if name in inputs_only else "write" for name in symbol.list_arguments()}
    return training_graph(graph_of(symbol), infer_binding(symbol, shapes, grad_req=grad_req), mx.cpu())


def numbers(graph: TrainingGraph, op: str) -> list[int]:
    return [number for number, node in enumerate(graph.nodes) if node.op == op]


def only(graph: TrainingGraph, op: str) -> int:
    (number,) = numbers(graph, op)
    return number


@pytest.fixture(scope="module")
def timer() -> Iterator[TimerClient]:
    with measuring():
        yield TimerClient(mx.cpu())


def _cnn() -> TrainingGraph:
    data = mx.sym.var("data")
    body = mx.sym.Convolution(data, num_filter=16, kernel=(3, 3), pad=(1, 1), name="conv")
    body = mx.sym.BatchNorm(body, fix_gamma=False, name="norm")
    body = mx.sym.Activation(body, act_type="relu")
    body = body + mx.sym.Pooling(body, kernel=(3, 3), stride=(1, 1), pad=(1, 1), pool_type="max")
    body = mx.sym.concat(body, mx.sym.LeakyReLU(body, act_type="gelu"), dim=1)
    body = mx.sym.FullyConnected(mx.sym.flatten(body), num_hidden=10, name="scores")
    return training(mx.sym.SoftmaxOutput(body, mx.sym.var("label")), data=(8, 3, 16, 16), label=(8,))


def _words() -> TrainingGraph:
    words = mx.sym.Embedding(mx.sym.var("words"), input_dim=50, output_dim=32, name="embedding")
    steps = mx.sym.SliceChannel(words, num_outputs=6, axis=1, squeeze_axis=True)
    state = mx.sym.LayerNorm(steps[0], name="norm")
    for step in range(1, 6):
        state = mx.sym.tanh(state * steps[step] + mx.sym.softmax(steps[step]))
    heads = mx.sym.reshape(state, shape=(-1, 4, 8))
    scores = mx.sym.batch_dot(heads, heads, transpose_b=True)
    return training(mx.sym.MakeLoss(mx.sym.sum(mx.sym.transpose(scores, axes=(1, 0, 2)), axis=1)), words=(16, 6))


@pytest.mark.parametrize("build", [_cnn, _words])
def test_every_operator_of_a_model_has_positive_finite_seconds(timer: TimerClient, build: Any) -> None:
    graph = build()
    refused = set()
    for number, node in enumerate(graph.nodes):
        if is_free(graph, node):
            continue
        try:
            seconds = timer(graph, number).seconds
        except UnmeasurableError:
            refused.add(node.op)
            continue
        assert 0 < seconds < math.inf, node
    # what MXNet adds to a gradient graph, in part with attributes that the graph does not carry
    assert refused <= {"batch_dot", "_zeros_without_dtype", "transpose", "_backward_MakeLoss", "_ones"}


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The trials that were asked for, where each answer is a nanosecond for each element of the first input."""
    asked: list[dict[str, Any]] = []

    def answer(_: mx.Context, request: Any, *__: Any) -> dict[str, float]:
        asked.append(request["microbenchmark"])
        return {"seconds": 1e-9 * math.prod(request["microbenchmark"]["inputs"][0].shape), "spent": 0.0}

    monkeypatch.setattr(measure, "ask", answer)
    return asked


def test_each_operator_is_asked_about_at_its_own_size(trials: list[dict[str, Any]]) -> None:
    product = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1024, name="product")
    graph = training(mx.sym.Activation(product, act_type="relu"), data=(256, 64))
    seconds = [TimerClient(mx.cpu())(graph, only(graph, op)).seconds for op in ("FullyConnected", "Activation")]
    assert seconds == pytest.approx([1e-9 * 256 * 64, 1e-9 * 256 * 1024])
    assert [trial["op"] for trial in trials] == ["FullyConnected", "Activation"]


def test_a_large_node_is_cut_and_scaled(trials: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training(mx.sym.Activation(mx.sym.var("data"), act_type="tanh"), data=(512, 4096))
    number, whole = only(graph, "Activation"), pytest.approx(1e-9 * 512 * 4096)
    assert TimerClient(mx.cpu())(graph, number).seconds == whole
    monkeypatch.setattr("echo.frontend.microbenchmark._MOST_BYTES", 2 << 20)
    assert TimerClient(mx.cpu())(graph, number).seconds == whole
    shapes = [trial["inputs"][0].shape for trial in trials]
    assert shapes[0] == (512, 4096)
    assert shapes[1][0] <= 64


def test_a_node_that_takes_too_long_is_cut_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training(mx.sym.Activation(mx.sym.var("data"), act_type="tanh"), data=(64, 8))
    asked: list[tuple[int, float | None]] = []

    def answer(_: mx.Context, request: Any, *__: Any) -> dict[str, float]:
        rows = request["microbenchmark"]["inputs"][0].shape[0]
        asked.append((rows, request["once"]))
        return (
            {"too_long": 4.0, "once": 0.5, "spent": 0.0} if len(asked) == 1 else {"seconds": 1e-3 * rows, "spent": 0.0}
        )

    monkeypatch.setattr(measure, "ask", answer)
    assert TimerClient(mx.cpu())(graph, only(graph, "Activation")).seconds == pytest.approx(64e-3)
    assert asked[0] == (64, None)
    assert asked[1][0] <= 16
    assert asked[1][1] == 0.5


@pytest.mark.parametrize(("fixed", "row"), [(1e-3, 1e-6), (0.0, 1e-6), (1e-3, 0.0)])
def test_packing_operator_is_measured_at_two_batches_and_extrapolated(
    fixed: float, row: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=512, name="product")
    graph = training(product, data=(4096, 512))
    asked: list[int] = []

    def answer(_: mx.Context, request: Any, *__: Any) -> dict[str, float]:
        asked.append(request["microbenchmark"]["inputs"][0].shape[0])
        return {"seconds": fixed + row * asked[-1], "spent": 0.0}

    monkeypatch.setattr(measure, "ask", answer)
    monkeypatch.setattr(measure, "spec", lambda op: spec(op).having(packs_parameters=True))
    assert TimerClient(mx.cpu())(graph, only(graph, "FullyConnected")).seconds == pytest.approx(fixed + row * 4096)
    smaller, larger = asked
    assert smaller < larger < 4096


def test_product_with_large_parameters_takes_what_a_larger_part_suggests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient takes as much less as the product does, whatever part of it is timed."""
    graph = training(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16384, name="product"), data=(4096, 512))
    asked: list[tuple[str, int]] = []

    def answer(_: mx.Context, request: Any, *__: Any) -> dict[str, float]:
        found = request["microbenchmark"]
        asked.append((found["op"], found["inputs"][0].shape[0]))
        times = 1.0 if found["op"] == "FullyConnected" else 2.0
        return {"seconds": times * (0.02 + 1e-4 * asked[-1][1]), "spent": 0.0}

    monkeypatch.setattr(measure, "ask", answer)
    timer = TimerClient(mx.cpu())
    whole = timer(graph, only(graph, "FullyConnected")).seconds
    part, larger = (rows for _, rows in asked)  # each is timed once
    assert larger == pytest.approx(3 * part, rel=0.02)
    assert whole == pytest.approx((0.02 + 1e-4 * larger) * 4096 / larger)
    asked.clear()
    assert timer(graph, only(graph, "_backward_FullyConnected")).seconds == pytest.approx(2 * whole)
    assert asked == [("_backward_FullyConnected", part)], "the product was asked for before"


def test_a_gradient_packs_the_parameters_of_its_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=512, name="product"), data=(4096, 512))
    asked: list[int] = []

    def answer(_: mx.Context, request: Any, *__: Any) -> dict[str, float]:
        asked.append(request["microbenchmark"]["inputs"][0].shape[0])
        return {"seconds": 1e-3 + 1e-6 * asked[-1], "spent": 0.0}

    monkeypatch.setattr(measure, "ask", answer)
    monkeypatch.setattr(measure, "spec", lambda op: spec(op).having(packs_parameters=op == "FullyConnected"))
    seconds = TimerClient(mx.cpu())(graph, only(graph, "_backward_FullyConnected")).seconds
    assert seconds == pytest.approx(1e-3 + 1e-6 * 4096)
    assert len(asked) == 2


def test_a_gradient_that_is_cut_is_one_that_mxnet_runs(timer: TimerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo.frontend.microbenchmark._MOST_BYTES", 1 << 16)
    norm = mx.sym.LayerNorm(mx.sym.tanh(mx.sym.var("data")), name="norm")
    graph = training(mx.sym.softmax(norm), data=(64, 16, 32))
    for op in ("_backward_LayerNorm", "_backward_softmax"):
        assert timer(graph, only(graph, op)).seconds > 0


def _sum() -> mx.sym.Symbol:
    return mx.sym.elemwise_add(mx.sym.var("data"), mx.sym.var("other"))


def _tanh() -> mx.sym.Symbol:
    return mx.sym.Activation(mx.sym.var("data"), act_type="tanh")


def _dropout() -> mx.sym.Symbol:
    return mx.sym.Dropout(mx.sym.var("data"), p=0.5)


@pytest.mark.parametrize(
    ("symbol", "op", "rows", "share"),
    [
        (_sum(), "elemwise_add", 64, 0.0),
        (_sum(), "elemwise_add", 1024, 1.0),
        (_sum(), "elemwise_add", 384, 0.5),
        (_tanh(), "Activation", 1024, 0.0),  # in place
        (_dropout(), "Dropout", 1024, 1.0),  # which writes its mask, too
    ],
)
def test_operator_that_streams_memory_takes_longer_than_its_parts(
    symbol: mx.sym.Symbol, op: str, rows: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By as much as a sum of two arrays does, measured once for a device."""
    graph = training(symbol, data=(rows, 16384))
    asked: list[Any] = []

    def answer(_: mx.Context, request: Any, *__: Any) -> dict[str, float]:
        asked.append(request)
        if "streaming" in request:
            return {"streaming": 4e-11, "spent": 0.0}
        return {"seconds": 1e-6 * request["microbenchmark"]["inputs"][0].shape[0], "spent": 0.0}

    monkeypatch.setattr(measure, "ask", answer)
    timer, moved = TimerClient(mx.cpu()), 3 * 4 * 16384 * rows
    for _ in range(2):
        assert timer(graph, only(graph, op)).seconds == pytest.approx(1e-6 * rows + 4e-11 * share * moved, rel=1e-3)
    assert sum("streaming" in request for request in asked) == (share > 0)


@pytest.mark.parametrize("found", [None, -1e-11, float("inf"), "fast"])
def test_an_answer_that_makes_no_sense(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training(_sum(), data=(1024, 16384))
    answers = {"streaming": found, "seconds": 1e-6, "spent": 0.0}
    monkeypatch.setattr(measure, "ask", lambda *_: answers)
    with pytest.raises(UnmeasurableError, match="expected seconds a byte"):
        TimerClient(mx.cpu())(graph, only(graph, "elemwise_add"))


def _sizes_asked_for(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, ...]]:
    sizes: set[tuple[int, ...]] = set()
    asked = measure.ask

    def watched(ctx: mx.Context, request: Any, *more: Any) -> Any:
        sizes.update(item.shape for item in request.get("microbenchmark", {"inputs": ()})["inputs"])
        return asked(ctx, request, *more)

    monkeypatch.setattr(measure, "ask", watched)
    return sizes


def test_a_node_too_large_to_be_cut_is_not_allocated(timer: TimerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    symbol = mx.sym.Embedding(mx.sym.var("words"), input_dim=1_000_000, output_dim=1024, name="embedding")
    graph = training(symbol, words=(8,))
    sizes = _sizes_asked_for(monkeypatch)
    with pytest.raises(UnmeasurableError, match="expected at most"):
        timer(graph, only(graph, "Embedding"))
    assert sizes == set()


def test_integers_are_divided_by_what_is_not_zero(timer: TimerClient) -> None:
    """By zero, the process would end."""
    data, lengths = (mx.sym.cast(mx.sym.var(name), "int32") for name in ("data", "lengths"))
    graph = training(mx.sym.broadcast_div(data, lengths), data=(64, 8), lengths=(1,))
    assert timer(graph, only(graph, "broadcast_div")).seconds > 0


def test_sums_of_gradients_are_timed(timer: TimerClient) -> None:
    """MXNet adds up the gradients of a weight that many operators read."""
    x, weight = mx.sym.var("data"), mx.sym.var("weight")
    for step in range(10):
        x = mx.sym.FullyConnected(x, weight, num_hidden=32, no_bias=True, name=f"step{step}")
    graph = training(x, data=(8, 32))
    assert timer(graph, numbers(graph, "_grad_add")[0]).seconds > 0


def test_random_operator_is_timed_with_its_draws(timer: TimerClient) -> None:
    """They are those of the process that measures: the user's own come as if nothing had been measured."""
    data = mx.sym.var("data")
    graph = training(mx.sym.Dropout(data, p=0.5) * mx.sym.random.uniform(shape=(64, 64)), data=(64, 64))
    rectified = training(mx.sym.LeakyReLU(data, act_type="rrelu"), data=(64, 64))
    mx.random.seed(3)
    before = mx.nd.random.uniform(shape=8).asnumpy()
    mx.random.seed(3)
    for op in ("Dropout", "_backward_Dropout"):
        assert timer(graph, only(graph, op)).seconds > 0
    assert (mx.nd.random.uniform(shape=8).asnumpy() == before).all()
    with pytest.raises(UnmeasurableError, match="not known to be safe"):
        timer(graph, only(graph, "_random_uniform"))
    with pytest.raises(UnmeasurableError, match="draws random numbers of its own"):
        timer(rectified, only(rectified, "LeakyReLU"))


def test_foreign_code_and_index_driven_operators_are_refused(timer: TimerClient) -> None:
    data, lengths = mx.sym.var("data"), mx.sym.var("lengths")
    last = mx.sym.SequenceLast(data, lengths, use_sequence_length=True)
    graph = training(last, data=(6, 8, 4), lengths=(8,))
    for op in ("SequenceLast", "_backward_SequenceLast"):
        with pytest.raises(UnmeasurableError, match="not known to be safe"):
            timer(graph, only(graph, op))


def test_node_that_mxnet_refuses_is_unmeasurable(timer: TimerClient) -> None:
    graph = training(mx.sym.linalg.gemm2(mx.sym.var("a"), mx.sym.var("b")), a=(8, 16), b=(16, 4))
    number = only(graph, "_linalg_gemm2")
    assert timer(graph, number).seconds > 0
    wrong = graph.nodes[number].having(attrs={"transpose_a": "True"})
    broken = replace(graph, nodes=(*graph.nodes[:number], wrong, *graph.nodes[number + 1 :]))
    with pytest.raises(UnmeasurableError, match="cannot be measured on its own"):
        timer(broken, number)


def test_measuring_leaves_the_random_streams_and_the_environment_alone() -> None:
    graph = _cnn()

    def draws() -> list[float]:
        return [*mx.nd.random.uniform(shape=(4,)).asnumpy(), *np.random.uniform(size=4)]

    mx.random.seed(3)
    np.random.seed(3)
    expected = draws()
    mx.random.seed(3)
    np.random.seed(3)
    before = dict(os.environ)
    for number in [*numbers(graph, "BatchNorm"), *numbers(graph, "_backward_BatchNorm")]:
        TimerClient(mx.cpu())(graph, number)
    assert draws() == expected
    assert dict(os.environ) == before


def test_measuring_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    graph = _cnn()
    capfd.readouterr()
    for op in ("Convolution", "BatchNorm", "_backward_Activation"):
        TimerClient(mx.cpu())(graph, only(graph, op))
    assert capfd.readouterr() == ("", "")


def test_answers_spent_time_and_disturbance_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training(mx.sym.Activation(mx.sym.var("data"), act_type="tanh"), data=(64, 8))
    answers = iter([{"too_long": 4.0, "once": 0.5, "spent": 3.0}, {"seconds": 1.0, "spent": 2.0, "disturbed": True}])
    monkeypatch.setattr(measure, "ask", lambda *_: next(answers))
    monkeypatch.setattr(measure, "time", SimpleNamespace(thread_time=lambda: 7.0))
    measured = TimerClient(mx.cpu())(graph, only(graph, "Activation"))
    assert (measured.spent, measured.disturbed) == (5.0, True)
