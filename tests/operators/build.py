"""A small training graph around one operator: maps before it, readers after it, and later maps of the same sizes.

Every input of the operator under test is made by light operators, so that it is no variable and can be recomputed.
After the operator come its readers, and after those *fillers*: maps of each size that the operator reads or writes.
They take over every chunk of memory that a recomputed map gives back, in the forward pass and in the backward pass,
before the operator's gradient runs: an old address has another value by then.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from tests.operators.case import Case
from tests.operators.graph import UNDER, Built, Ref, Setting, Shape, normal, weights
from tests.operators.inputs import input_of


def _read(built: Built, output: Ref, shape: Shape, kind: str, setting: Setting, number: int, blocked: bool) -> Ref:
    """The mean of what readers make of an output."""
    name = f"out{number}"
    if blocked:
        output = built.add("BlockGrad", f"{name}_block", [output])
    if kind != setting.dtype:
        output = built.add("Cast", f"{name}_cast", [output], dtype=setting.dtype)
    if setting.consumer == "pool" and len(shape) == 4 and min(shape[2:]) > 1:
        output = built.add("Pooling", f"{name}_pool", [output], kernel=(2, 2), stride=(2, 2), pool_type="max")
    elif setting.consumer == "heavy":
        if len(shape) == 4:
            weight = built.variable(f"{name}_weight", (8, shape[1], 3, 3), weights)
            built.roles["heavy reader"].append(f"{name}_conv")
            output = built.add("Convolution", f"{name}_conv", [output, weight], kernel=(3, 3), pad=(1, 1), num_filter=8,
                               no_bias=True)  # fmt: skip
        else:
            size = int(np.prod(shape[1:]))
            weight = built.variable(f"{name}_weight", (6, size), weights)
            built.roles["heavy reader"].append(f"{name}_dense")
            output = built.add("FullyConnected", f"{name}_dense", [output, weight], num_hidden=6, no_bias=True)
    else:
        built.roles["reader"] += [f"{name}_mul", f"{name}_tanh", f"{name}_sin"]
        output = built.add("_mul_scalar", f"{name}_mul", [output], scalar=0.5)
        output = built.add("sin", f"{name}_sin", [built.add("tanh", f"{name}_tanh", [output])])
        probe = built.variable(f"{name}_probe", shape, normal, setting.dtype)
        output = built.add("elemwise_mul", f"{name}_product", [output, probe])
    return built.add("mean", f"{name}_mean", [output])


def _filler(built: Built, shape: Shape, mean: Ref, number: int, dtype: str) -> Ref:
    """Some maps of this shape that depend on the mean, and their mean."""
    name = f"fill{number}"
    scalar = built.add("Reshape", f"{name}_scalar", [mean], shape=(1,) * len(shape)) if len(shape) != 1 else mean
    map_ = built.variable(f"{name}_var", shape, normal, dtype)
    map_ = built.add("broadcast_add", f"{name}_add", [map_, scalar])
    for step in range(4):
        map_ = built.add("exp", f"{name}_exp{step}", [map_])
        map_ = built.add("sin", f"{name}_sin{step}", [map_])
        map_ = built.add("_mul_scalar", f"{name}_mul{step}", [map_], scalar=1.5)
    return built.add("mean", f"{name}_mean", [map_])


@functools.lru_cache(maxsize=None)
def outputs_of(case: Case, setting: Setting) -> tuple[tuple[Shape, str], ...]:
    """Shapes and types of the operator's outputs, as MXNet infers them."""
    if case.outputs:
        return tuple((shape, setting.dtype) for shape in case.outputs)
    built = Built()
    case.under(built, [input_of(built, position, given, setting) for position, given in enumerate(case.inputs)])
    built.heads = [Ref(len(built.nodes) - 1)]
    inner = built.symbol().get_internals()
    _, shapes, _ = inner._infer_shape_impl(False)
    _, types, _ = inner.infer_type()
    if shapes is None:
        raise ValueError(f"{case}: MXNet does not infer the shapes")
    found = [(tuple(shape), np.dtype(kind).name) for name, shape, kind in zip(inner.list_outputs(), shapes, types)
             if name.startswith(f"{UNDER}_")]  # fmt: skip
    return tuple(found)


def build(case: Case, setting: Setting, blocked: bool = False) -> Built:
    """The graph. ``blocked``: no gradient goes through the operator, which has none."""
    outputs = outputs_of(case, replace(setting, masked="numbers" if setting.masked else ""))
    built = Built()
    inputs = [input_of(built, position, given, setting) for position, given in enumerate(case.inputs)]
    node = case.under(built, inputs)
    means = [
        _read(built, Ref(node.node, index), *outputs[index], setting, index, blocked) for index in range(len(outputs))
    ]
    maps = {given.shape_of(setting.channels) for given in case.inputs if given.kind not in "=lav"}
    for position, (given, ref) in enumerate(zip(case.inputs, inputs)):
        if (setting.shared or blocked) and given.kind in ("x", "p", "u", "g", "spd", "tri"):
            name = f"next{position}"
            probe = built.variable(f"{name}_probe", given.shape_of(setting.channels), normal, setting.dtype)
            product = built.add("elemwise_mul", f"{name}_product", [ref, probe])
            means.append(built.add("mean", f"{name}_mean", [product]))
    mean = means[0]
    for number, other in enumerate(means[1:]):
        mean = built.add("elemwise_add", f"mean{number}", [mean, other])
    built.heads = [mean] if case.outputs else []
    if case.outputs:  # then MXNet plans no memory for what depends on them
        mean = built.variable("start", (1,), normal, setting.dtype)
    for number, shape in enumerate(sorted(maps | {shape for shape, _ in outputs})):
        mean = _filler(built, shape, mean, number, setting.dtype)
    built.heads.append(mean)
    return built
