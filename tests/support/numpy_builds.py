"""Symbols around each recomputable operator of MXNet's numpy interface, for the tests of operators."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx

Symbol = mx.sym.Symbol
Build = Callable[[Symbol, Symbol, str], Symbol]
inner, public, extension = mx.sym.numpy._internal, mx.sym.numpy._op, mx.sym.npx


def of(op: Callable[..., Symbol], inputs: str = "x", **attrs: Any) -> Build:
    """The operator on these inputs: x, y, p (x squared plus a half), c (a column of y), r and s (x and y rounded)."""

    def build(x: Symbol, y: Symbol, name: str) -> Symbol:
        values = {
            "x": x,
            "y": y,
            "p": mx.sym.square(x) + 0.5,
            "c": mx.sym.slice_axis(y, axis=1, begin=0, end=1),
            "r": mx.sym.round(x),
            "s": mx.sym.round(y),
            "b": mx.sym.reshape(x, shape=(8, 12, 6)),
            "one": mx.sym.expand_dims(x, axis=1),
        }
        given = [values[key].as_np_ndarray() for key in inputs.split()]
        return op(*given, name=name, **attrs).as_nd_ndarray()

    return build


def compared(op: Callable[..., Symbol], inputs: str = "r s", **attrs: Any) -> Build:
    """A comparison, read by the gradient of what it chooses."""

    def build(x: Symbol, y: Symbol, name: str) -> Symbol:
        condition = of(op, inputs, **attrs)(x, y, name).as_np_ndarray()
        return inner.where(condition, x.as_np_ndarray(), y.as_np_ndarray(), name="chosen").as_nd_ndarray()

    return build


def chosen(op: Callable[..., Symbol], inputs: str, **attrs: Any) -> Build:
    """A choice by a condition that depends on x."""

    def build(x: Symbol, y: Symbol, name: str) -> Symbol:
        condition = inner.greater_scalar(x.as_np_ndarray(), scalar=0.0)
        values = {"x": x.as_np_ndarray(), "y": y.as_np_ndarray()}
        return op(condition, *(values[key] for key in inputs.split()), name=name, **attrs).as_nd_ndarray()

    return build


NUMPY_BUILDS: dict[str, Build] = {
    # one element at a time
    "_npx_relu": of(extension.relu),
    "_npx_sigmoid": of(extension.sigmoid),
    "_npi_tanh": of(inner.tanh),
    "_npi_exp": of(inner.exp),
    "_npi_expm1": of(inner.expm1),
    "_npi_log": of(inner.log, "p"),
    "_npi_log1p": of(inner.log1p, "p"),
    "_npi_log2": of(inner.log2, "p"),
    "_npi_log10": of(inner.log10, "p"),
    "_npi_sqrt": of(inner.sqrt, "p"),
    "_npi_cbrt": of(inner.cbrt, "p"),
    "_npi_square": of(inner.square),
    "_npi_absolute": of(inner.absolute),
    "_npi_sign": of(inner.sign),
    "_npi_negative": of(inner.negative),
    "_npi_reciprocal": of(inner.reciprocal, "p"),
    "_npi_sin": of(inner.sin),
    "_npi_cos": of(inner.cos),
    "_npi_arctan": of(inner.arctan),
    "_np_copy": of(public.copy),
    "_npi_add": of(inner.add, "x c"),
    "_npi_subtract": of(inner.subtract, "x c"),
    "_npi_multiply": of(inner.multiply, "x c"),
    "_npi_true_divide": of(inner.true_divide, "x p"),
    "_npi_power": of(inner.power, "p c"),
    "_npi_add_scalar": of(inner.add_scalar, scalar=0.3),
    "_npi_subtract_scalar": of(inner.subtract_scalar, scalar=0.3),
    "_npi_rsubtract_scalar": of(inner.rsubtract_scalar, scalar=0.3),
    "_npi_multiply_scalar": of(inner.multiply_scalar, scalar=0.3),
    "_npi_true_divide_scalar": of(inner.true_divide_scalar, scalar=0.3),
    "_npi_rtrue_divide_scalar": of(inner.rtrue_divide_scalar, "p", scalar=0.3),
    "_npi_power_scalar": of(inner.power_scalar, "p", scalar=1.3),
    "_npi_rpower_scalar": of(inner.rpower_scalar, scalar=1.3),
    "_npi_where": chosen(inner.where, "x y"),
    "_npi_where_lscalar": chosen(inner.where_lscalar, "x", scalar=0.3),
    "_npi_where_rscalar": chosen(inner.where_rscalar, "x", scalar=0.3),
    "_npi_equal": compared(inner.equal),
    "_npi_not_equal": compared(inner.not_equal),
    "_npi_greater": compared(inner.greater),
    "_npi_greater_equal": compared(inner.greater_equal),
    "_npi_less": compared(inner.less),
    "_npi_less_equal": compared(inner.less_equal),
    "_npi_equal_scalar": compared(inner.equal_scalar, "r", scalar=1.0),
    "_npi_not_equal_scalar": compared(inner.not_equal_scalar, "r", scalar=1.0),
    "_npi_greater_scalar": compared(inner.greater_scalar, "r", scalar=1.0),
    "_npi_greater_equal_scalar": compared(inner.greater_equal_scalar, "r", scalar=1.0),
    "_npi_less_scalar": compared(inner.less_scalar, "r", scalar=1.0),
    "_npi_less_equal_scalar": compared(inner.less_equal_scalar, "r", scalar=1.0),
    # reduced
    "_np_sum": of(public.sum, axis=1, keepdims=True),
    "_npi_mean": of(inner.mean, axis=0),
    "_np_max": of(public.max, axis=1),
    "_np_min": of(public.min, axis=1),
    "_np_prod": of(public.prod, axis=0),
    # moved
    "_np_transpose": of(public.transpose),
    "_np_moveaxis": of(public.moveaxis, "b", source=0, destination=2),
    "_np_reshape": of(public.reshape, newshape=(4, -1)),
    "_npx_reshape": of(extension.reshape, newshape=(4, -1)),
    "_np_squeeze": of(public.squeeze, "one"),
    "_npi_concatenate": of(inner.concatenate, "x y x", axis=1),
    "_npi_stack": of(inner.stack, "x y x", axis=1),
    "_npi_broadcast_to": of(inner.broadcast_to, "c", shape=(8, 40)),
    "_npi_flip": of(inner.flip, axis=1),
    "_split_v2": lambda x, y, name: mx.sym._internal._split_v2(x, indices=(), axis=1, sections=3, name=name),
}
NUMPY_HEAVY_BUILDS: dict[str, Build] = {
    "_np_dot": lambda x, y, name: of(public.dot, "x y")(x, mx.sym.transpose(y), name),
    "_npi_matmul": lambda x, y, name: of(inner.matmul, "x y")(x, mx.sym.transpose(y), name),
    "_npi_tensordot": of(inner.tensordot, "x y", a_axes_summed=(1,), b_axes_summed=(1,)),
}
