"""The cost model on hand-made training graphs: views, sums, Dropout, layouts, and the signatures of operators."""

from __future__ import annotations

import pytest

from echo.estimators.cost_table import CostTable
from echo.estimators.operator_groups import blocked_nodes, signature, work
from echo.ir.graph import Entry
from echo.meter.timer import LAUNCH
from tests.support.timed_graphs import Build, by_op, chain, estimate, fixed


def test_views_and_fused_additions_cost_nothing(table: CostTable) -> None:
    build = Build()
    data = build.variable(64, 256)
    active = build.add("Activation", [data], (64, 256), attrs={"act_type": "relu"})
    view = build.add("Reshape", [active], (256, 64), inplace=((0, 0, True),))
    build.add("Reshape", [data], (256, 64), inplace=((0, 0, True),))  # a variable is copied
    build.add("_grad_add", [view, view], (256, 64), forward=False)
    seconds = estimate(build.graph(), table, None, 0).seconds
    assert [cost > 0 for cost in seconds] == [False, True, False, True, False]


def test_weight_gradients_that_onednn_adds_up_cost_a_sum(table: CostTable) -> None:
    build = Build()
    data, weight, so_far = build.variable(64, 256), build.variable(256, 256), build.variable(256, 256)
    product = build.add("FullyConnected", [data, weight], (64, 256))
    gradient = build.add("_backward_FullyConnected", [product, data, weight], (64, 256), (256, 256), forward=False,
                         control_deps=(product.node,))  # fmt: skip
    total = build.add("_grad_add", [so_far, Entry(gradient.node, 1)], (256, 256), forward=False)
    training, measure = build.graph(total), fixed(_grad_add=1e-4)
    assert estimate(training, table, measure, 10).seconds[total.node] == 0
    assert estimate(training, table, measure, 10, onednn=True).seconds[total.node] == 1e-4


@pytest.mark.usefixtures("parts")
def test_similar_sums_of_gradients_are_measured_once(table: CostTable) -> None:
    build = Build()
    for rows in (256, 1024):
        data, weight, so_far = build.variable(64, 256), build.variable(rows, 256), build.variable(rows, 256)
        product = build.add("FullyConnected", [data, weight], (64, rows))
        gradient = build.add("_backward_FullyConnected", [product, data, weight], (64, 256), (rows, 256), forward=False,
                             control_deps=(product.node,))  # fmt: skip
        build.add("_grad_add", [so_far, Entry(gradient.node, 1)], (rows, 256), forward=False)
    measure = fixed(_grad_add=LAUNCH + 1e-4)
    result = estimate(build.graph(), table, measure, 10, onednn=True)
    assert set(measure.asked) >= {"_grad_add"}
    found = sorted(by_op(build.graph(), result.seconds, "_grad_add"))
    assert found == pytest.approx([LAUNCH + 0.25e-4, LAUNCH + 1e-4])


def test_a_dropout_is_recomputed_from_its_mask_but_drawn_once(table: CostTable) -> None:
    build = Build()
    build.add("Dropout", [build.variable(1000, 1000)], (1000, 1000), (1000, 1000), random=True)
    result = estimate(build.graph(), table, None, 0)
    assert result.step_seconds > 2 * sum(result.seconds)


@pytest.mark.usefixtures("parts")
def test_a_measured_dropout_takes_time_for_its_draws_and_its_bytes(table: CostTable) -> None:
    build = Build()
    for rows in (1000, 800):  # of the second size none is measured: it is about that of the first
        build.add("Dropout", [build.variable(rows, 1000)], (rows, 1000), (rows, 1000), random=True)
    copies = sum(estimate(build.graph(), table, None, 0).seconds)
    result = estimate(build.graph(), table, fixed(Dropout=1.0), 60)
    assert sum(result.seconds) == copies, "a clone draws nothing"
    assert result.step_seconds == pytest.approx(1.8, rel=1e-3)
    assert (result.guessed, result.is_timed) == (0.0, True)


def test_a_signature_holds_no_names_and_no_annotations() -> None:
    def key(name: str, attrs: dict[str, str]) -> str:
        build = Build()
        build.add("Activation", [build.variable(64, 256)], (64, 256), name=name, attrs=attrs)
        return signature(build.graph(), 1)

    plain = key("relu1", {"act_type": "relu"})
    assert plain == "Activation(float32[64,256])->float32[64,256]{act_type=relu}"
    assert key("relu2", {"__layout__": "NCHW", "act_type": "relu"}) == plain
    assert key("relu1", {"act_type": "tanh"}) != plain


def test_signatures_of_gradients_carry_the_attributes_of_their_operator() -> None:
    training = chain()
    assert signature(training, len(training.nodes) - 1).endswith("{no_bias=True,num_hidden=256}")


def test_signatures_of_equal_nodes_are_equal_and_of_sizes_differ() -> None:
    first, second = chain(steps=2), chain(steps=3)
    assert signature(first, 2) == signature(second, 2) == signature(second, 4)
    assert signature(chain(batch=32), 2) != signature(first, 2)


def test_batch_norm_after_convolution_has_onednns_layout() -> None:
    build = Build()
    data, weight = build.variable(8, 3, 32, 32), build.variable(16, 3, 3, 3)
    statistics = [build.variable(16) for _ in range(4)]
    first = build.add("BatchNorm", [data, *statistics], (8, 3, 32, 32), (3,), (3,))
    convolved = build.add("Convolution", [first, weight], (8, 16, 30, 30))
    normal = build.add("BatchNorm", [convolved, *statistics], (8, 16, 30, 30), (16,), (16,))
    last = build.add("tanh", [normal], (8, 16, 30, 30))
    training = build.graph(last)
    assert blocked_nodes(training) == {convolved.node, normal.node}
    assert "float32[8,16,30,30]~" in signature(training, normal.node)
    assert "~" not in signature(training, first.node)


@pytest.mark.parametrize(
    ("op", "inputs", "output", "flops"),
    [
        ("Convolution", [(8, 16, 10, 10), (32, 16, 3, 3)], (8, 32, 8, 8), 2 * 8 * 32 * 64 * 16 * 9),
        ("Deconvolution", [(8, 16, 8, 8), (16, 32, 3, 3)], (8, 32, 10, 10), 2 * 8 * 16 * 64 * 32 * 9),
        ("FullyConnected", [(64, 30, 256), (100, 256)], (64, 30, 100), 2 * 64 * 30 * 100 * 256),
        ("batch_dot", [(4, 30, 64), (4, 64, 50)], (4, 30, 50), 2 * 4 * 30 * 50 * 64),
        ("dot", [(30, 64), (64, 50)], (30, 50), 2 * 30 * 50 * 64),
        ("tanh", [(30, 64)], (30, 64), 0),
    ],
)
def test_work_of_products(op: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], flops: float) -> None:
    build = Build()
    build.add(op, [build.variable(*shape) for shape in inputs], output)
    training = build.graph()
    assert work(training, training.nodes[-1]).flops == pytest.approx(flops)
