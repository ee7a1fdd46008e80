"""Gradients that are handed less than by MXNet: the same bits, in executors and CachedOps, or a plan that says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import echo
from benchmarks.models import SMALL
from echo.errors import GraphError, OptionError
from echo.frontend import implement
from echo.frontend.capture import training_graph
from echo.frontend.implement import implemented as exchanged
from echo.frontend.install import onednn_activations
from echo.frontend.symbols import symbol_of
from echo.ir.gradient_rules import implementations, known
from echo.ir.op_spec import GRADIENT_ATTRIBUTE
from echo.ir.ops import ops_with
from echo.ir.training_graph import TrainingGraph
from echo.passes.check_marks import with_marks
from echo.passes.rewrite import gradient_marks
from echo.plans.decisions import Mark
from echo.plans.plan import Plan
from tests.conftest import Case, FakeFrontend, case_of, model_case
from tests.ir.test_ops import Build, as_batch, as_images, image, many, symbol_with, unary
from tests.ir.test_ops_cached import DYNAMIC, STATIC
from tests.ir.test_ops_cached import run as run_cached
from tests.numpy_builds import inner, of
from tests.training import Record, assert_alive, assert_same, bind, random_arrays, recomputing, requests, train

ROOT = Path(__file__).parents[2]
Symbol = mx.sym.Symbol


def shaped(shape: tuple[int, ...], op: Callable[..., Symbol], **attrs: Any) -> Build:
    return lambda x, y, name: op(mx.sym.reshape(x, shape=shape), name=name, **attrs)


def between_convolutions(op: Callable[..., Symbol], **attrs: Any) -> Build:
    """Where oneDNN lays arrays out in its own way."""

    def build(x: Symbol, y: Symbol, name: str) -> Symbol:
        hidden = mx.sym.Convolution(as_images(x), kernel=(3, 3), num_filter=16, pad=(1, 1), name="before")
        hidden = op(hidden, name=name, **attrs)
        return mx.sym.Convolution(hidden, kernel=(3, 3), num_filter=8, name="after")

    return build


def masked_softmax(axis: int = -1) -> Build:
    def build(x: Symbol, y: Symbol, name: str) -> Symbol:
        lengths = mx.sym.cast(1 + mx.sym.arange(8) % 7, dtype="int32")
        return mx.sym.softmax(x, length=lengths, use_length=True, axis=axis, name=name)

    return build


def chain(build: Build) -> Build:
    """Its output is read again by a gradient that needs it, and its input by another."""
    return lambda x, y, name: mx.sym.sin(build(mx.sym.sigmoid(x), mx.sym.tanh(y), name))


def fresh(build: Build) -> Build:
    """On maps that nobody else reads: it may write its output over its input."""
    return lambda x, y, name: build(x * 0.5, y * 0.5, name)


ACTIVATIONS = {name: unary(mx.sym.Activation, act_type=name) for name in ("tanh", "sigmoid", "softrelu", "softsign")}
LEAKY = {name: unary(mx.sym.LeakyReLU, act_type=name) for name in ("elu", "gelu", "leaky", "selu")}
SHAPES = {1: (-1,), 3: (8, 12, 6), 4: (2, 8, 6, 6), 5: (2, 4, 2, 6, 6)}
CASES: dict[str, Build] = {
    **ACTIVATIONS,
    **LEAKY,
    **{f"chain of {name}": chain(build) for name, build in {**ACTIVATIONS, **LEAKY}.items()},
    **{f"tanh of {axes} axes": shaped(shape, mx.sym.Activation, act_type="tanh") for axes, shape in SHAPES.items()},
    **{f"gelu of {axes} axes": shaped(shape, mx.sym.LeakyReLU, act_type="gelu") for axes, shape in SHAPES.items()},
    **{f"leaky of {axes} axes": shaped(shape, mx.sym.LeakyReLU, act_type="leaky") for axes, shape in SHAPES.items()},
    "selu of images": image(mx.sym.LeakyReLU, act_type="selu"),
    "steep leaky": unary(mx.sym.LeakyReLU, act_type="leaky", slope=1.5),
    "flat leaky": unary(mx.sym.LeakyReLU, act_type="leaky", slope=0.0),
    "falling leaky": unary(mx.sym.LeakyReLU, act_type="leaky", slope=-0.5),
    **{f"sigmoid of {axes}": shaped(shape, mx.sym.Activation, act_type="sigmoid") for axes, shape in SHAPES.items()},
    "sigmoid in layouts": between_convolutions(mx.sym.Activation, act_type="sigmoid"),
    "tanh in layouts": between_convolutions(mx.sym.Activation, act_type="tanh"),
    "gelu in layouts": between_convolutions(mx.sym.LeakyReLU, act_type="gelu"),
    "leaky in layouts": between_convolutions(mx.sym.LeakyReLU, act_type="leaky"),
    "masked softmax": masked_softmax(),
    "fresh masked softmax": fresh(masked_softmax()),
    **{f"fresh {name}": fresh(build) for name, build in {**ACTIVATIONS, **LEAKY}.items()},
    "fresh sum": fresh(of(inner.add, "x y")),
    "fresh difference": fresh(of(inner.subtract, "x y")),
    "fresh concat": fresh(many(mx.sym.Concat, dim=1)),
    "chain of masked softmax": chain(masked_softmax()),
    "concat": many(mx.sym.Concat, dim=1),
    "chain of concat": chain(many(mx.sym.Concat, dim=1)),
    "concat of rows": many(mx.sym.Concat, dim=0),
    "concat of images": lambda x, y, name: mx.sym.Concat(as_images(x), as_images(y), dim=1, name=name),
    "concat in layouts": between_convolutions(
        lambda x, name: mx.sym.Concat(x, mx.sym.relu(x), mx.sym.slice_axis(x, axis=1, begin=0, end=3), dim=1, name=name)
    ),
    "concat of batches": lambda x, y, name: mx.sym.Concat(as_batch(x), as_batch(y), dim=2, name=name),
    "concat of one": lambda x, y, name: mx.sym.Concat(x, dim=1, name=name),
    "sum": of(inner.add, "x y"),
    "sum with a column": of(inner.add, "x c"),
    "sum of one twice": of(inner.add, "x x"),
    "difference": of(inner.subtract, "x y"),
    "difference from a column": of(inner.subtract, "c x"),
    "chain of sums": chain(of(inner.add, "x y")),
    "chain of differences": chain(of(inner.subtract, "c x")),
}


def case(build: Build, dtype: str = "float32", grad_req: str = "write") -> Case:
    return case_of(symbol_with(build, dtype), {"data": (8, 72)}, grad_req, {"data": dtype})


def under(case: Case) -> int:
    return next(number for number, node in enumerate(case.graph.nodes) if node.name == "under")


def implemented(case: Case, text: str) -> Symbol:
    return symbol_of(case.graph.with_attrs({under(case): {GRADIENT_ATTRIBUTE: text}}))


def run(symbol: Symbol, dtype: str = "float32", grad_req: str = "write") -> Record:
    return train(bind(symbol, random_arrays(symbol, {"data": (8, 72)}, dtype), grad_req))


def applicable(case: Case) -> list[str]:
    """The one that is chosen, and what would be chosen were other gradients to read other things."""
    chosen = implementations(case.training, onednn=True)[under(case)].text
    node = case.graph.nodes[under(case)]
    if node.op == "LeakyReLU" and node.attrs["act_type"] == "leaky" and float(node.attrs.get("slope", "0.25")) >= 0:
        return sorted(rule.text for rule in known(node.op, node.attrs))
    if node.op == "Activation" and node.attrs["act_type"] == "sigmoid":
        return sorted(rule.text for rule in known(node.op, node.attrs))
    if node.op.startswith("_npi_"):
        return [chosen, chosen.replace("f0", "0")]
    return [chosen]


def read_by_gradient(training: TrainingGraph) -> set[tuple[int, int]]:
    (number,) = (i for i, node in training.operators() if node.name == "under" and node.forward)
    return {
        (entry.node, entry.index)
        for _, node in training.operators()
        if not node.forward and number in node.control_deps
        for entry in node.inputs
    }


# The same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.every(4)
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(name: str) -> None:
    found = case(CASES[name])
    expected = run(found.symbol)
    assert_alive(expected)
    for text in applicable(found):
        changed = training_graph(found.graph, found.binding, mx.cpu(), {under(found): {GRADIENT_ATTRIBUTE: text}})
        if "of one twice" not in name:
            assert read_by_gradient(changed) != read_by_gradient(found.training)
        assert_same(run(implemented(found, text)), expected)
        assert_same(run(implemented(found, text), grad_req="add"), run(found.symbol, grad_req="add"))
        with_clone = recomputing(implemented(found, text), {"under": [0]})
        assert_same(run(with_clone), expected)


@pytest.mark.every(4)
@pytest.mark.parametrize("flags", [DYNAMIC, STATIC], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_in_a_cached_op(name: str, flags: dict[str, Any]) -> None:
    found = case(CASES[name])
    expected, _ = run_cached(found.symbol, flags)
    for text in applicable(found):
        assert_same(run_cached(implemented(found, text), flags)[0], expected)
        assert_same(run_cached(recomputing(implemented(found, text), {"under": [0]}), flags)[0], expected)


ANY_TYPE = ["softsign", "selu", "masked softmax", "concat", "sum", "difference"]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", ANY_TYPE)
def test_the_same_bits_of_other_types(name: str, dtype: str) -> None:
    found = case(CASES[name], dtype)
    chosen = implementations(found.training, onednn=True)[under(found)].text
    assert_same(run(implemented(found, chosen), dtype), run(found.symbol, dtype))


@pytest.mark.every(5)
@pytest.mark.parametrize("isa", ["", "AVX512_CORE", "AVX2", "AVX", "SSE41"])
def test_the_same_bits_of_sigmoid_for_every_number(isa: str) -> None:
    """From the output as from the input, for bit patterns of all magnitudes, with each of oneDNN's instruction sets."""
    environment = {**os.environ, "DNNL_MAX_CPU_ISA": isa}
    code = "from tests.ir.test_gradient_rules_gradients import *; print(sigmoid_deviates(1 << 20))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True, text=True, env=environment, cwd=ROOT, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.strip() == "0"


def sigmoid_deviates(count: int) -> int:
    """Of so many gradients of sigmoid, those that differ between the two formulas."""
    generator = np.random.RandomState(0)
    values = np.concatenate([
        generator.normal(0, 2, count // 2),
        generator.randint(0, 2**32, count // 2, dtype=np.uint64).astype(np.uint32).view(np.float32),
    ]).astype(np.float32)  # fmt: skip
    symbol = mx.sym.Activation(mx.sym.var("data"), act_type="sigmoid", name="under")
    found = case_of(symbol, {"data": (count,)}, "write")
    heads = mx.nd.array(generator.normal(0, 1, count))
    seen = []
    for rule in known("Activation", {"act_type": "sigmoid"}):
        executor = bind(implemented(found, rule.text), {"data": values})
        executor.forward(is_train=True)
        executor.backward([heads])
        seen.append(executor.grad_dict["data"].asnumpy())
    assert len(seen) == 2
    return int(((seen[0].view(np.uint32) != seen[1].view(np.uint32)) & ~np.isnan(values)).sum())


@pytest.mark.parametrize("is_train", [True, False])
def test_the_same_bits_in_every_mode(is_train: bool) -> None:
    found = case(CASES["chain of tanh"])
    (text,) = applicable(found)
    seen = []
    for symbol in (found.symbol, implemented(found, text)):
        executor = bind(symbol, random_arrays(symbol, {"data": (8, 72)}))
        executor.forward(is_train=is_train)
        executor.backward([mx.nd.ones(out.shape) for out in executor.outputs], is_train=not is_train)
        seen.append({name: array.asnumpy() for name, array in executor.grad_dict.items()})
    assert_same(seen[1], seen[0])


# Where they are not taken ----------------------------------------------------------------------------------------


def wrongly(name: str, dtype: str = "float32", text: str = "_backward_Activation>_backward_Activation:0,2,2") -> bool:
    """Whether an implementation changes the bits of this case."""
    found = case(CASES[name] if name in CASES else OTHERS[name], dtype)
    expected, got = run(found.symbol, dtype), run(implemented(found, text), dtype)
    return any(got[key].tobytes() != expected[key].tobytes() for key in expected)


OTHERS: dict[str, Build] = {
    "tanh of 6 axes": shaped((2, 2, 2, 2, 6, 6), mx.sym.Activation, act_type="tanh"),
    "relu": unary(mx.sym.Activation, act_type="relu"),
    "plain softmax": unary(mx.sym.softmax),
    "softmax to another type": lambda x, y, name: mx.sym.cast(
        mx.sym.softmax(
            mx.sym.cast(x, dtype="float16"),
            length=mx.sym.cast(1 + mx.sym.arange(8) % 7, dtype="int32"),
            use_length=True,
            dtype="float32",
            name=name,
        ),
        dtype="float32",
    ),
    "mixed sum": of(lambda x, y, name: inner.add(x, inner.greater_scalar(y, scalar=0.0), name=name), "x y"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_is_chosen_for_others(name: str) -> None:
    assert under(found := case(OTHERS[name])) not in implementations(found.training, onednn=True)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "softrelu", "elu", "gelu", "leaky"])
def test_nothing_is_chosen_where_onednn_is_not_asked(name: str) -> None:
    for dtype, onednn in (("float64", True), ("float16", True), ("float32", False)):
        assert implementations(case(CASES[name], dtype).training, onednn=onednn) == {}


def test_there_it_would_change_gradients() -> None:
    assert wrongly("tanh", "float64")
    assert wrongly("tanh of 6 axes")
    assert not wrongly("tanh")
    assert wrongly("falling leaky", text="_backward_LeakyReLU>_backward_LeakyReLU:0,2,2")


def test_a_falling_leaky_relu_is_read_from_its_input() -> None:
    assert applicable(case(CASES["falling leaky"])) == ["_backward_LeakyReLU>_backward_LeakyReLU:0,1,1"]


@pytest.mark.slow
def test_onednn_is_tried() -> None:
    code = (
        "from echo.frontend.install import install_hook; from echo.frontend.install import onednn_activations;"
        "assert install_hook() == ''; print(onednn_activations())"
    )
    for enabled in ("0", "1"):
        environment = {**os.environ, "MXNET_MKLDNN_ENABLED": enabled}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True, text=True, env=environment, cwd=ROOT, check=True, timeout=120,
        )  # fmt: skip
        assert done.stdout.strip() == str(enabled == "1")
    assert onednn_activations()


# What is chosen --------------------------------------------------------------------------------------------------


def chosen(build: Build) -> str:
    found = case(build)
    rule = implementations(found.training, onednn=True).get(under(found))
    if rule is None:
        return ""
    assert rule in known(found.graph.nodes[under(found)].op, found.graph.nodes[under(found)].attrs)
    return rule.text.partition(">")[2]


def test_what_is_in_memory_anyway_is_read() -> None:
    leaky, total = LEAKY["leaky"], of(inner.add, "x y")
    assert chosen(leaky).endswith(":0,2,2")  # the probe's gradient reads the output
    unread = lambda x, y, name: mx.sym.sum(leaky(mx.sym.square(x), y, name), axis=1)  # noqa: E731
    assert chosen(unread).endswith(":0,2,2")  # neither
    input_read = lambda x, y, name: mx.sym.sum(leaky(mx.sym.exp(x), y, name), axis=1)  # noqa: E731
    assert chosen(input_read).endswith(":0,1,1")
    assert chosen(total).endswith(":0,f0,f0")
    assert chosen(lambda x, y, name: mx.sym.sum(total(x, y, name), axis=1)).endswith(":0,0,0")


def test_tanh_gradient_reads_the_input_since_the_output_would_change_bits() -> None:
    assert chosen(ACTIVATIONS["tanh"]) == "_backward_Activation:0,2,2"


# Plans -----------------------------------------------------------------------------------------------------------


def texts(plan: Plan) -> list[str]:
    return [mark.attrs[GRADIENT_ATTRIBUTE] for mark in plan.marks if GRADIENT_ATTRIBUTE in mark.attrs]


@pytest.mark.usefixtures("cheap_planning")
def test_plans_say_what_they_change() -> None:
    model = SMALL["nmt"]()
    plan = echo.plan(model.symbol, max_overhead=None, **model.shapes)
    assert f"{len(texts(plan))} gradients computed from fewer arrays than MXNet keeps: every bit stays" in plan.remarks


@pytest.mark.usefixtures("cheap_planning")
def test_training_with_such_a_plan() -> None:
    model = SMALL["nmt"]()
    values = random_arrays(model.symbol, model.shapes, limits=model.limits)
    wanted = requests(model.symbol, model.grad_req())
    expected = train(bind(model.symbol, values, wanted))
    optimized = echo.optimize(model.symbol, max_overhead=None, exact=True)
    got = train(bind(optimized, values, wanted))
    assert texts(optimized.plans[-1])
    again = train(bind(echo.optimize(model.symbol, plan=optimized.plans[-1]), values, wanted))
    assert_same(again, got)
    assert_same(got, expected)


@pytest.mark.usefixtures("cheap_planning")
def test_sums_of_gradients_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    training = case(CASES["tanh"]).training
    chosen = implementations(training, onednn=True)
    assert exchanged(training, chosen).implementations == chosen
    monkeypatch.setattr(implement, "accumulations", lambda *_: (True,))
    assert exchanged(training, chosen) is training


@pytest.mark.parametrize("name", [*CASES, "nmt", "lm", "densenet121"])
def test_written_into_the_training_graph_as_mxnet_binds_them(name: str) -> None:
    found = case(CASES[name]) if name in CASES else model_case(name)
    chosen = implementations(found.training, onednn=True)
    marks = gradient_marks(found.graph, found.training, chosen)
    bound = training_graph(found.graph, found.binding, mx.cpu(), marks)
    expected = replace(bound, planned_bytes=found.training.planned_bytes, implementations=chosen)
    assert chosen
    assert exchanged(found.training, chosen) == expected


@pytest.mark.usefixtures("cheap_planning")
def test_equal_nodes_are_still_one() -> None:
    """MXNet merges equal nodes, which have to have equal marks."""
    with mx.name.NameManager():
        hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=512, name="fc")
        left, right = (mx.sym.Activation(hidden, act_type="tanh", name=name) for name in ("left", "right"))
        symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(mx.sym.square(left) * mx.sym.exp(right))))
    optimized = echo.optimize(symbol, max_overhead=None)
    executor = optimized.simple_bind(mx.cpu(), data=(64, 64))
    assert len(texts(optimized.plans[-1])) == 2
    assert executor.debug_str().count("Op:_backward_Activation") == 1


def test_wrong_option() -> None:
    with pytest.raises(OptionError, match="exact: expected True or False, got 1"):
        echo.plan(mx.sym.var("data"), exact=1)


# The hook --------------------------------------------------------------------------------------------------------


MALFORMED = [
    "",
    "a",
    "a>b",
    "a:0>b",
    "a>b:",
    "a>b:0,",
    "a>b:x",
    "a>b:0,f",
    "a>b:0;1",
    "a>b:+0",
    "a>b: 0",
    "a>b:-1",
    "a>b:0x",
    "a>b:fs",
    "a>b:0,99999999999999999999,2",
]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_attributes_are_refused(text: str) -> None:
    with pytest.raises(mx.MXNetError, match=r"'under': expected OPERATOR>OPERATOR:INPUTS in __echo_gradient__"):
        run(implemented(case(CASES["tanh"]), text))


@pytest.mark.parametrize("text", ["0,3,2", "0,f1,2", "0,999999999,2"])
def test_inputs_that_are_not_there_are_refused(text: str) -> None:
    with pytest.raises(mx.MXNetError, match=r"under_backward' .*_backward_Activation.* has \d to read, expected one"):
        run(implemented(case(CASES["tanh"]), f"_backward_Activation>_backward_Activation:{text}"))


@pytest.mark.parametrize("text", ["0,2", "0,2,2,2", "0"])
def test_an_operator_reads_as_many_inputs_as_before(text: str) -> None:
    with pytest.raises(mx.MXNetError, match=r"reads 3 arrays, expected as many in __echo_gradient__, got \d"):
        run(implemented(case(CASES["tanh"]), f"_backward_Activation>_backward_Activation:{text}"))


@pytest.mark.parametrize("text", ["_backward_Activation>_backward_exp:0,1", "_backward_Activation>negative:0", "a>b:0"])
def test_exchanges_that_echo_never_makes_are_refused(text: str) -> None:
    with pytest.raises(mx.MXNetError, match=r"'under': echo does not know that '.*' may compute what"):
        run(implemented(case(CASES["tanh"]), text))


def test_another_gradient_is_left_alone() -> None:
    found = case(CASES["tanh"])
    assert_same(run(implemented(found, "_backward_softmax>_backward_softmax:7")), run(found.symbol))


def test_plans_from_files_have_no_others() -> None:
    found = case(CASES["tanh"])
    model = SMALL["nmt"]()
    plan = echo.plan(model.symbol, **model.shapes)
    for text in ("_backward_Activation>_backward_Activation:0,0,0", "_backward_Activation>_backward_sigmoid:0,1"):
        wrong = replace(plan, marks=(Mark(under(found), "Activation", {GRADIENT_ATTRIBUTE: text}),))
        with pytest.raises(GraphError, match=r"marks: no gradient of Activation .'under'. is"):
            with_marks(found.graph, wrong, FakeFrontend(found.training))
    for op in ("exp", "LeakyReLU", "softmax", "_npi_add", "Concat"):
        assert all(rule.before.startswith("_backward") for rule in known(op, {"num_args": "2"}))


@pytest.mark.parametrize("op", sorted(ops_with(lambda row: row.lighter is not None)))
def test_each_family_of_lighter_gradients_has_rules(op: str) -> None:
    assert known(op, {"num_args": "2", "act_type": "tanh"})
