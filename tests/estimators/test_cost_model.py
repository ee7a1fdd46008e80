"""The cost model on hand-made training graphs: what is measured, in which order, and what is guessed."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from echo.errors import EchoError
from echo.estimators.cost_model import Measuring, UnmeasurableError
from echo.estimators.cost_table import BYTES_PER_SECOND, FLOPS_PER_SECOND, CostTable
from echo.estimators.operator_groups import GRADIENT_OF_PRODUCT, signature
from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph
from echo.meter.timer import LAUNCH
from tests.support.timed_graphs import Build, by_op, chain, estimate, fixed, products


def test_equal_nodes_are_measured_once_and_cost_the_same(table: CostTable) -> None:
    training = chain()
    known = {"Activation": 2e-5, "FullyConnected": 1e-3, "_backward_Activation": 4e-5,
             "_backward_FullyConnected": 1.7e-3, "_ones": 1e-6}  # fmt: skip
    measure = fixed(**known)
    result = estimate(training, table, measure, 10)
    assert all(by_op(training, result.seconds, op) == {seconds} for op, seconds in known.items())
    # what weighs most is measured a second time, at another moment; gradients of products, which are dear, come last
    assert {op: measure.asked.count(op) for op in known} == dict.fromkeys(known, 2)
    assert measure.asked[-1] == "_backward_FullyConnected"
    assert (result.measured, result.estimated) == (5, 0)


def test_differing_measurements_are_repeated_a_third_time(table: CostTable) -> None:
    training, asked = chain(), []

    def measure(training: TrainingGraph, number: int) -> float:
        op = training.nodes[number].op
        asked.append(op)
        if op == "FullyConnected":
            return (1e-3, 2e-3, 0.9e-3)[asked.count(op) - 1]
        return 1e-4 if asked.count(op) == 1 else 1.04e-4

    result = estimate(training, table, measure, 10)
    assert {op: asked.count(op) for op in set(asked)} == {**dict.fromkeys(asked, 2), "FullyConnected": 3}
    assert by_op(training, result.seconds, "FullyConnected") == {0.9e-3}
    assert by_op(training, result.seconds, "Activation") == {1.04e-4}, "the latest, which knows of all before"


@pytest.mark.parametrize(("rows", "seconds"), [(64, 1.0), (400_000, 1.57), (10_000_000, 2.5)])
def test_the_limit_grows_with_the_step(
    rows: int, seconds: float, table: CostTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def run(measuring: Measuring) -> None:
        given.append(measuring._budget.left)

    monkeypatch.setattr(Measuring, "run", run)
    estimate(products(rows), table, fixed(), 1.0)
    assert given == [pytest.approx(seconds, rel=0.02)]
    estimate(products(rows), table, fixed(), 0.0)
    assert given[1] == 0


def test_the_gradient_of_a_product_is_a_multiple_of_the_product_where_it_is_not_measured(table: CostTable) -> None:
    training = chain()
    result = estimate(training, table, fixed(FullyConnected=1e-3), 10)
    assert by_op(training, result.seconds, "_backward_FullyConnected") == {GRADIENT_OF_PRODUCT * 1e-3}


def by_rows(training: TrainingGraph, seconds: tuple[float, ...], op: str) -> dict[int, float]:
    return {node.outputs[0].shape[0]: cost for node, cost in zip(training.nodes, seconds) if node.op == op}


@pytest.mark.usefixtures("parts")
def test_gradients_about_as_large_take_the_same_multiple_of_their_products(table: CostTable) -> None:
    training = products(64, 200, 2000)
    asked = []

    def measure(training: TrainingGraph, number: int) -> float:
        node = training.nodes[number]
        asked.append((node.op, node.outputs[0].shape[0]))
        return node.outputs[0].shape[0] * (1.5e-6 if node.op.startswith("_") else 1e-6)

    result = estimate(training, table, measure, 10)
    assert {rows for op, rows in asked if op == "FullyConnected"} == {64, 200, 2000}
    assert {rows for op, rows in asked if op == "_backward_FullyConnected"} == {64, 2000}
    found = by_rows(training, result.seconds, "_backward_FullyConnected")
    assert found == pytest.approx({64: 96e-6, 200: 300e-6, 2000: 3000e-6})


def test_a_large_part_of_a_step_is_measured_whatever_others_took(table: CostTable) -> None:
    asked = []

    def measure(training: TrainingGraph, number: int) -> float:
        asked.append(training.nodes[number].outputs[0].shape[0])
        return 1e-3

    estimate(products(1000, 1010), table, measure, 10)
    assert {1000, 1010} <= set(asked)
    asked.clear()
    estimate(products(1010, 1020, *[1000] * 200), table, measure, 10)
    assert not asked, "these are a hundredth of the step each"


def test_a_gradient_that_would_exceed_the_time_is_not_measured(
    table: CostTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("echo.estimators.cost_model.time", SimpleNamespace(perf_counter=lambda: now[0]))
    asked = []

    def measure(training: TrainingGraph, number: int) -> float:
        asked.append(training.nodes[number].op)
        now[0] += 0.3
        return 1e-3

    training = products(64, 6400)
    result = estimate(training, table, measure, 1.5)
    # of the first one it is not known how long it took, as the process had to start
    assert asked[:3] == ["FullyConnected", "_backward_FullyConnected", "FullyConnected"]
    assert "_backward_FullyConnected" not in asked[3:], "another gradient would take more than a second"
    assert by_rows(training, result.seconds, "_backward_FullyConnected") == pytest.approx({64: 1e-3, 6400: 1e-3})
    estimate(training, table, measure, 10.0)
    assert asked[-1] == "_backward_FullyConnected"


@pytest.mark.parametrize("knows", [True, False])
def test_gradient_takes_the_seconds_of_its_computed_outputs(knows: bool, table: CostTable) -> None:
    build = Build()
    data, weight = build.variable(8, 16, 32, 32), build.variable(16, 16, 1, 1)
    product = build.add("Convolution", [data, weight], (8, 16, 32, 32))
    both, late, soon = (
        build.add("_backward_Convolution", [product, data, weight], (8, 16, 32, 32), (16, 16, 1, 1), forward=False,
                  control_deps=(product.node,))
        for _ in range(3)
    )  # fmt: skip
    training = build.graph(both, Entry(both.node, 1), late, Entry(soon.node, 1))
    seconds = {product.node: 1e-3, both.node: 3e-3, late.node: 1.2e-3, soon.node: 1.8e-3}

    def measure(training: TrainingGraph, number: int) -> float:
        if not knows and number != product.node:
            raise UnmeasurableError("not asked for")
        return seconds[number]

    if not knows:
        whole = GRADIENT_OF_PRODUCT * 1e-3
        seconds.update({both.node: whole, late.node: whole / 2, soon.node: whole / 2})
    found = estimate(training, table, measure, 10).seconds
    assert {number: found[number] for number in seconds} == pytest.approx(seconds)


def test_the_step_is_the_sum_of_all_nodes(table: CostTable) -> None:
    result = estimate(chain(), table, fixed(FullyConnected=1e-3), 10)
    assert result.step_seconds == pytest.approx(sum(result.seconds))


def test_later_of_two_measurements_counts(table: CostTable) -> None:
    """It knows of the one before: the process that measures remembers the shortest runs."""
    times = {"FullyConnected": [1.04e-3, 1e-3], "Activation": [1e-5, 1.04e-5]}

    def measure(training: TrainingGraph, number: int) -> float:
        left = times.get(training.nodes[number].op)
        if not left:
            raise UnmeasurableError("not asked for")
        return left.pop(0)

    training = chain()
    result = estimate(training, table, measure, 10)
    assert by_op(training, result.seconds, "FullyConnected") == {1e-3}
    assert by_op(training, result.seconds, "Activation") == {1.04e-5}


def test_a_full_table_needs_no_measurement(table: CostTable, tmp_path: Path) -> None:
    training = chain()
    first = estimate(training, table, fixed(FullyConnected=1e-3, Activation=2e-5), 10)
    measure = fixed()
    assert estimate(training, CostTable("test", tmp_path), measure, 10) == first
    assert measure.asked == []


def test_unmeasured_graph_takes_the_rooflines_seconds(table: CostTable) -> None:
    training = chain()
    result = estimate(training, table, None, 10)
    assert (result.measured, result.estimated) == (0, 5)
    product = 2.0 * 64 * 256 * 256
    assert by_op(training, result.seconds, "FullyConnected") == {LAUNCH + product / FLOPS_PER_SECOND}
    (activation,) = by_op(training, result.seconds, "Activation")
    assert activation == pytest.approx(LAUNCH + 2 * 64 * 256 * 4 / BYTES_PER_SECOND)


@pytest.mark.parametrize(
    ("seconds", "guessed", "is_timed"),
    [
        ({}, 1.0, False),
        ({"FullyConnected": 1e-3, "Activation": 2e-5, "_backward_Activation": 4e-5, "_ones": 1e-6}, 0.0, True),
        ({"FullyConnected": 1e-3}, 0.04, True),  # the gradient of the product is known, too
        ({"Activation": 2e-5}, 0.95, False),
    ],
)
def test_guessed_share_counts_unmeasured_operators(
    seconds: dict[str, float], guessed: float, is_timed: bool, table: CostTable
) -> None:
    result = estimate(chain(), table, fixed(**seconds) if seconds else None, 10)
    assert result.guessed == pytest.approx(guessed, abs=0.05)
    assert result.is_timed is is_timed


def test_an_unmeasurable_operator_follows_the_roofline_and_is_remembered(table: CostTable) -> None:
    training = chain()
    measure = fixed(FullyConnected=1e-3, _backward_Activation=1e-4)
    result = estimate(training, table, measure, 10)
    # its rate is the one of what was measured, not the constant
    moved = 2 * 64 * 256 * 4
    rate = 4 * 64 * 256 * 4 / 1e-4
    (activation,) = by_op(training, result.seconds, "Activation")
    assert activation == pytest.approx(LAUNCH + moved / rate)
    key = signature(training, 3)
    assert key in table
    assert table.get(key) is None


def test_unexpected_error_of_measuring_is_raised(table: CostTable) -> None:
    def measure(training: TrainingGraph, number: int) -> float:
        raise EchoError("something else")

    with pytest.raises(EchoError, match="something else"):
        estimate(chain(), table, measure, 10)


@pytest.mark.usefixtures("parts")
def test_sizes_between_two_measured_ones_are_interpolated(table: CostTable) -> None:
    build = Build()
    for columns in (64, 70, 80, 1000):
        build.add("Activation", [build.variable(1000, columns)], (1000, columns), attrs={"act_type": "relu"})

    def measure(training: TrainingGraph, number: int) -> float:
        return training.nodes[number].outputs[0].elements * 1e-9

    training = build.graph()
    result = estimate(training, table, measure, 10)
    assert result.measured == 2
    assert [cost for cost in result.seconds if cost] == pytest.approx([64e-6, 70e-6, 80e-6, 1e-3], rel=0.02)


def test_the_time_limit_is_kept_and_the_candidates_come_first(table: CostTable) -> None:
    build = Build()
    for index in range(40):
        wide = build.variable(64, 1000 * 2**index % 4093)
        build.add("Activation", [wide], build.nodes[wide.node].outputs[0].shape, attrs={"act_type": str(index)})
    weight = build.variable(64, 256)
    build.add("FullyConnected", [build.variable(64, 256), weight], (64, 64), attrs={"num_hidden": "64"})
    asked = []

    def measure(training: TrainingGraph, number: int) -> float:
        asked.append(training.nodes[number].op)
        time.sleep(0.01)
        return 1e-5

    result = estimate(build.graph(), table, measure, 0.1)
    assert 1 <= len(asked) <= 11
    assert set(asked) == {"Activation"}
    assert 1 <= result.measured <= len(asked), "the last seconds are for what looks doubtful"
    assert estimate(build.graph(), table, measure, 0).measured == result.measured
