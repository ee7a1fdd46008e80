"""How a Gluon block is trained. Scripts of found faults hold this file as it is, after `fuzz.training`."""

from contextlib import nullcontext
from zlib import crc32

import mxnet as mx
import numpy as np
from mxnet import autograd

import echo
from fuzz.poison import poisoned
from fuzz.training import held, value_of


def inputs_of(shapes, how, step, size):
    """The data of a step, mostly with room for gradients; ``size`` times as much of it along the first axis."""
    found = []
    for name, (shape, kind) in shapes.items():
        shape = (shape[0] * size, *shape[1:])
        values = held(name, shape, kind, how)
        values = values if name.startswith("below") else np.roll(values, step)
        array = mx.nd.array(values, mx.cpu(how.get("context", 0)), kind)
        if not how.get("constant"):
            array.attach_grad("add" if how.get("add") else "write")
        found.append(array)
    return found


def made(make, shapes, how, size=1):
    """A block with known values in its parameters, which get their shapes from data of this size."""
    ctx = mx.cpu(how.get("context", 0))
    net = make()
    if how.get("float64"):
        net.cast("float64")
    net.initialize(ctx=ctx)
    with autograd.pause():
        net(*inputs_of(shapes, how, 0, size))  # now MXNet knows the shapes of all parameters
    # whole layers are frozen: MXNet itself is undefined for a trained bias of a frozen weight
    layers = {name: crc32(name.rpartition("_")[0].encode()) % 5 for name in net.collect_params()}
    for name, parameter in net.collect_params().items():
        values = held(name, parameter.shape, parameter.dtype, how)
        parameter.set_data(mx.nd.array(values, ctx, parameter.dtype))
        if parameter.grad_req == "null":
            continue
        if how.get("frozen") and layers[name] < 2:
            parameter.grad_req = "null"
        elif how.get("add"):
            parameter.grad_req = "add"
    return net


def train(make, shapes, how, options=None, poison=False):
    """The results of each step, with echo if ``options`` are given."""
    net, seen = made(make, shapes, how), []
    with poisoned() if poison else nullcontext():
        net.hybridize(**how.get("flags", {}))
        if options is not None:
            net = echo.optimize(net, **options)
        for number, kind in enumerate(how.get("steps", ["train", "train"])):
            seen.append(step(net, shapes, how, number, kind))
    return seen


def step(net, shapes, how, number, kind):
    """One step of a kind; its outputs, gradients and auxiliary states, and a random number drawn after it."""
    mx.random.seed(number)
    size = 2 if kind == "larger" else 1
    data = inputs_of(shapes, how, number, size)
    seen = {}
    if kind == "predict":
        outputs = several(net(*data))
    elif kind == "several":
        more = inputs_of(shapes, how, number + 1, size)
        with autograd.record():
            outputs, others = several(net(*data)), several(net(*more))
        mx.nd.waitall()
        backward(others, number)
        seen.update({f"gradient of other {at}": each.grad for at, each in enumerate(more) if each.grad is not None})
        backward(outputs, number)
    elif kind == "together":
        with autograd.record():
            outputs = several(net(*data)) + several(net(*data))
        backward(outputs, number)
    else:
        with autograd.record(train_mode=kind != "inference"):
            outputs = several(net(*data))
        if kind == "grad":
            asked = autograd.grad(outputs, data, heads(outputs, number))
            seen.update({f"asked {at}": each for at, each in enumerate(asked)})
        else:
            backward(outputs, number, retain=kind == "retain", train_mode=kind != "inference")
        if kind == "retain":
            backward(outputs, number + 1)
    mx.nd.waitall()
    seen.update({f"output {at}": each for at, each in enumerate(outputs)})
    seen.update({f"gradient of input {at}": each.grad for at, each in enumerate(data) if each.grad is not None})
    parameters = net.collect_params()
    seen.update({f"gradient {name}": each.grad() for name, each in parameters.items() if each.grad_req != "null"})
    seen.update({f"value {name}": each.data() for name, each in parameters.items() if each.grad_req == "null"})
    seen = {name: each.asnumpy() for name, each in seen.items()}
    seen["random stream"] = mx.nd.random.uniform(shape=(4,)).asnumpy()
    for each in parameters.values():
        if each.grad_req != "null" and each.grad().stype == "default":
            each.data()[:] -= 0.01 * each.grad()
    mx.nd.waitall()
    return seen


def several(outputs):
    """Outputs as a list."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def heads(outputs, number):
    """Gradients of outputs."""
    return [mx.nd.array(value_of(f"head{number}", out.shape, out.dtype), out.context, out.dtype) for out in outputs]


def backward(outputs, number, retain=False, train_mode=True):
    autograd.backward(outputs, heads(outputs, number), retain_graph=retain, train_mode=train_mode)
