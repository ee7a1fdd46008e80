"""Operators whose gradients can be handed less, each under the name "under" in a small training graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx

from echo.frontend.symbols import symbol_of
from echo.ir.gradient_rules import gradient_rules, known
from echo.ir.op_spec import GRADIENT_ATTRIBUTE
from tests.support.cases import Case, case_of
from tests.support.numpy_builds import inner, of
from tests.support.operator_builds import Build, as_batch, as_images, image, many, symbol_with, unary
from tests.support.training import Record, bind, random_arrays, train

Symbol = mx.sym.Symbol


def shaped(shape: tuple[int, ...], op: Callable[..., Symbol], **attrs: Any) -> Build:
    return lambda x, y, name: op(mx.sym.reshape(x, shape=shape), name=name, **attrs)


def between_convolutions(op: Callable[..., Symbol], **attrs: Any) -> Build:
    """Cases in which oneDNN lays arrays out in its own way."""

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
    """On maps that nothing else reads: it may write its output over its input."""
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


def apply_gradient_rules(case: Case, text: str) -> Symbol:
    return symbol_of(case.graph.with_attrs({under(case): {GRADIENT_ATTRIBUTE: text}}))


def run(symbol: Symbol, dtype: str = "float32", grad_req: str = "write") -> Record:
    return train(bind(symbol, random_arrays(symbol, {"data": (8, 72)}, dtype), grad_req))


def applicable(case: Case) -> list[str]:
    """The one that is chosen, and what would be chosen were other gradients to read other things."""
    chosen = gradient_rules(case.training, onednn=True)[under(case)].text
    node = case.graph.nodes[under(case)]
    if node.op == "LeakyReLU" and node.attrs["act_type"] == "leaky" and float(node.attrs.get("slope", "0.25")) >= 0:
        return sorted(rule.text for rule in known(node.op, node.attrs))
    if node.op == "Activation" and node.attrs["act_type"] == "sigmoid":
        return sorted(rule.text for rule in known(node.op, node.attrs))
    if node.op.startswith("_npi_"):
        return [chosen, chosen.replace("f0", "0")]
    return [chosen]


def chosen(build: Build) -> str:
    found = case(build)
    rule = gradient_rules(found.training, onednn=True).get(under(found))
    if rule is None:
        return ""
    assert rule in known(found.graph.nodes[under(found)].op, found.graph.nodes[under(found)].attrs)
    return rule.text.partition(">")[2]
