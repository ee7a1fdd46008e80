"""How a symbol is trained and two runs are compared. Scripts of found faults hold this file as it is."""

import contextlib
import logging
import zlib

import mxnet as mx
import numpy as np

from fuzz.poison import poisoned

NOISE = np.random.RandomState(0).normal(0, 0.3, 16411)
TOLERANCE = 2e-5  # of the largest element, where operators are fused
_WEAK = {"float16": 2e-2, "float64": 2e-5}


class Keeps(mx.operator.CustomOp):
    """Multiplies by itself, and reads in backward what it kept of forward's input."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.kept = in_data[0]
        self.assign(out_data[0], req[0], in_data[0] * in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], 2 * self.kept * out_grad[0])


@mx.operator.register("fuzz_keeps")
class KeepsProp(mx.operator.CustomOpProp):
    """Of `Keeps`."""

    def create_operator(self, ctx, shapes, dtypes):
        return Keeps()


def value_of(name, shape, kind):
    """The values of an argument: noise that depends on its name; whole numbers below N if it is called ``below N``."""
    size = int(np.prod(shape, dtype=np.int64))
    noise = np.resize(np.roll(NOISE, zlib.crc32(name.encode()) % NOISE.size), size).reshape(shape)
    if name.startswith("below"):
        noise = np.floor(np.abs(noise) * 1000) % int(name[5:].partition("_")[0])
    elif name.endswith(("gamma", "var")):
        noise = 1 + np.abs(noise)
    return noise.astype("float32").astype(kind)  # the same numbers in float64


def held(name, shape, kind, how):
    """The values of an argument of this name in such a program: `value_of` it, of a third of them many times that."""
    values = value_of(name, shape, kind)
    if values.dtype.kind == "f" and not name.startswith("below") and zlib.crc32(name.encode()) % 3 == 0:
        values = (values.astype("float64") * how.get("magnitude", 1)).astype("float32").astype(kind)
    return nudged(values, how)


def nudged(values, how):
    """The values, changed up and down by this part of them."""
    if "nudge" not in how:
        return values
    signs = np.random.RandomState(how["directions"]).choice((-1, 1), values.shape)
    return (values * (1 + how["nudge"] * signs)).astype(values.dtype)


def bound(symbol, requests, how):
    """An executor with values in all its arrays; gradients start as ones."""
    ctx = mx.cpu(how.get("context", 0))
    names = symbol.list_arguments()
    wanted = {name: "null" if name.startswith("below") else requests.get(name, "write") for name in names}
    types, _, aux_types = symbol.infer_type()
    if how.get("bind") == "arrays":
        shapes, _, aux_shapes = symbol.infer_shape()
        args = {name: mx.nd.zeros(shape, ctx, kind) for name, shape, kind in zip(names, shapes, types)}
        grads = {name: mx.nd.zeros(a.shape, ctx, a.dtype) for name, a in args.items() if wanted[name] != "null"}
        states = [mx.nd.zeros(shape, ctx, kind) for shape, kind in zip(aux_shapes, aux_types)]
        executor = symbol.bind(ctx, args, grads, wanted, states)
    else:
        kinds = {name: kind for name, kind in zip(names, types) if kind is not np.float32}
        executor = symbol.simple_bind(ctx, grad_req=wanted, type_dict=kinds or None)
    for arrays in (executor.arg_dict, executor.aux_dict):
        for name, array in arrays.items():
            array[:] = held(name, array.shape, array.dtype, how)
    for gradient in executor.grad_arrays:
        if gradient is not None and gradient.stype == "default":
            gradient[:] = 1
    return executor


def train(symbol, requests, how):
    """Every output, gradient and auxiliary state of each step, and a random number drawn after it."""
    executor, seen = bound(symbol, requests, how), []
    for step in range(how.get("steps", 2)):
        mx.random.seed(step)
        if how.get("predicts") and step:
            executor.forward(is_train=False)
            mx.nd.waitall()  # or MXNet itself may run it in the mode of the next pass
        executor.forward(is_train=True)
        given = [mx.nd.array(value_of(f"head{step}", out.shape, out.dtype), out.context, out.dtype)
                 for out in executor.outputs]  # fmt: skip
        executor.backward(given)
        mx.nd.waitall()
        found = {f"output {number}": array for number, array in enumerate(executor.outputs)}
        found.update({f"gradient {name}": array for name, array in executor.grad_dict.items() if array is not None})
        found.update({f"aux {name}": array for name, array in executor.aux_dict.items()})
        seen.append({name: array.asnumpy() for name, array in found.items()})
        seen[-1]["random stream"] = mx.nd.random.uniform(shape=(4,)).asnumpy()
        for name, gradient in executor.grad_dict.items():
            if gradient is not None and gradient.stype == "default":
                executor.arg_dict[name][:] -= 0.01 * gradient
    return seen


def trained(symbol, requests, how):
    """As `train`; with "poison" on memory that is overwritten as soon as nothing reads it any more."""
    with poisoned() if how.get("poison") else contextlib.nullcontext():
        return train(symbol, requests, how)


def differences(got, expected, fused, everywhere=False):
    """Of the first step that differs, or of all: the names of the arrays, with how far they are off."""
    found = {}
    for step, (mine, its) in enumerate(zip(got, expected)):
        wrong = {name: distance(mine[name], its[name], fused) for name in its}
        wrong = {f"step {step}: {name}": how for name, how in wrong.items()
                 if how and not (fused and rounded_away(mine[name], its[name], its))}  # fmt: skip
        found.update(wrong)
        if wrong and not everywhere:
            return wrong
    return found if len(got) == len(expected) else {"steps": f"{len(got)} instead of {len(expected)}"}


def rounded_away(mine, its, step):
    """Whether all numbers of an array are smaller than float32 rounds the largest one of the step by.

    Where gates are nearly 1, MXNet's gradients are such numbers, or zeros: it takes the gates from 1.
    """
    if mine.shape != its.shape or its.dtype != np.float32:
        return False
    numbers = [each[np.isfinite(each)] for each in step.values() if each.dtype.kind == "f"]
    most = max((float(np.abs(each).max()) for each in numbers if each.size), default=0.0)
    return bool((np.maximum(np.abs(mine), np.abs(its)) <= 2.0**-24 * most).all())


def distance(mine, its, fused):
    """How far an array is from what is expected, as text; empty where it is near enough."""
    if (mine.shape, mine.dtype) != (its.shape, its.dtype):
        return f"{mine.dtype}{list(mine.shape)} instead of {its.dtype}{list(its.shape)}"
    if mine.tobytes() == its.tobytes():
        return ""
    if mine.dtype.kind != "f":
        return "other numbers"
    nans = np.isnan(its)
    if np.array_equal(nans, np.isnan(mine)) and mine[~nans].tobytes() == its[~nans].tobytes():
        return ""  # NaN has many bit patterns
    off, gone = largest(mine, its), lost(mine, its)
    if fused and not gone and off <= max(TOLERANCE, _WEAK.get(its.dtype.name, 0)):
        return ""
    return f"{off:.1e} of the largest element" + (f", {gone} NaN" if gone else "")


def largest(mine, its):
    """How far an element is off at most, as part of the largest that is expected; NaN where that is no number."""
    with np.errstate(all="ignore"):
        off = np.abs(mine.astype("d") - its.astype("d"))
        return float(np.nanmax(off / max(float(np.abs(its).max()), 1e-30))) if np.isfinite(off).any() else np.nan


def lost(mine, its):
    """How many numbers are NaNs instead."""
    return int((np.isnan(mine) & ~np.isnan(its)).sum())


class Warnings(logging.Handler):
    """Keeps what echo warns of."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())
