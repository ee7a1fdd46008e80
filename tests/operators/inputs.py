"""Before the operator under test: what makes its inputs."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from echo.ir.graph import Entry, fused_node
from tests.operators.case import Input
from tests.operators.graph import Built, Draw, Ref, Setting, Shape, below, normal, weights


def _light(built: Built, name: str, shape: Shape, dtype: str) -> Ref:
    values = built.variable(f"{name}_var", shape, normal, dtype)
    built.roles["input"] += [f"{name}_exp", f"{name}_sin"]
    return built.add("sin", f"{name}_sin", [built.add("exp", f"{name}_exp", [values])])


def _conv(built: Built, name: str, shape: Shape, normed: bool) -> Ref:
    """Maps in the layouts of oneDNN, which depend on the number of channels."""
    channels = shape[1]
    images = built.variable(f"{name}_var", (shape[0], 3, *shape[2:]), normal)
    weight = built.variable(f"{name}_weight", (channels, 3, 3, 3), weights)
    conv = built.add("Convolution", f"{name}_conv", [images, weight], kernel=(3, 3), pad=(1, 1), num_filter=channels,
                     no_bias=True)  # fmt: skip
    built.roles["heavy input"].append(f"{name}_conv")
    if not normed:
        return conv
    rest = [built.variable(f"{name}_{part}", (channels,), weights) for part in ("gamma", "beta")]
    rest += [built.variable(f"{name}_{part}", (channels,), lambda _, shape: np.ones(shape)) for part in ("mean", "std")]
    norm = built.add("BatchNorm", f"{name}_norm", [conv, *rest], fix_gamma=False)
    built.roles["input"] += [f"{name}_norm", f"{name}_relu"]
    return built.add("Activation", f"{name}_relu", [norm], act_type="relu")


def _dense(built: Built, name: str, shape: Shape) -> Ref:
    values = built.variable(f"{name}_var", (shape[0], 5), normal)
    inputs = [values, built.variable(f"{name}_weight", (shape[1], 5), weights),
              built.variable(f"{name}_bias", (shape[1],), weights)]  # fmt: skip
    built.roles["heavy input"].append(f"{name}_dense")
    return built.add("FullyConnected", f"{name}_dense", inputs, num_hidden=shape[1])


def _dropped(built: Built, name: str, map_: Ref, masked: str) -> Ref:
    if not masked:
        return map_
    built.roles["masked"].append(f"{name}_drop")
    if masked == "numbers":
        return built.add("Dropout", f"{name}_drop", [map_], p=0.4)
    ones = built.add("ones_like", f"{name}_ones", [map_])
    mask = built.add("Dropout", f"{name}_mask", [ones], p=0.4)
    bits = built.add("_echo_pack_mask", f"{name}_bits", [mask], **fused_node("pack_mask", "", [Entry(0)]).attrs)
    inputs = [map_, bits, Ref(bits.node, 1)]
    return built.add("_echo_apply_mask", f"{name}_drop", inputs, **fused_node("apply_mask", "", [Entry(0)] * 3).attrs)


# The operators that make a map of a kind from values in (-1, 1): (operator, attributes) in a row.
_TAILS: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]] = {
    "x": [],
    "p": [("exp", {})],
    "u": [("_mul_scalar", {"scalar": 0.9})],
    "g": [("exp", {}), ("_plus_scalar", {"scalar": 1})],
    "b": [("_greater_scalar", {"scalar": 0})],
}


def _tail(kind: Input, dtype: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
    if kind.kind in _TAILS:
        return _TAILS[kind.kind]
    integer = "int64" if kind.kind == "k" else "int32"
    whole = [("sigmoid", {}), ("_mul_scalar", {"scalar": kind.limit}), ("BlockGrad", {}), ("Cast", {"dtype": integer})]
    return [*whole, ("Cast", {"dtype": dtype})] if kind.kind == "i" else whole


def _matrix(built: Built, name: str, map_: Ref, kind: str, shape: Shape) -> Ref:
    """Symmetric and positive definite, or lower triangular with a positive diagonal."""
    eye = np.broadcast_to(np.eye(shape[-1]), shape)
    dtype = built.variables[f"{name}_var"][1]
    unit = built.variable(f"{name}_eye", shape, lambda *_: 2 * eye, dtype, trained=False)
    names = {"spd": ("_linalg_gemm2",), "tri": ("elemwise_mul",)}[kind]
    if kind == "spd":
        map_ = built.add("_linalg_gemm2", f"{name}_{names[0]}", [map_, map_], transpose_b=True)
    else:
        lower = built.variable(f"{name}_low", shape, lambda *_: np.tril(np.ones(shape), -1), dtype, trained=False)
        map_ = built.add("elemwise_mul", f"{name}_{names[0]}", [map_, lower])
    built.roles["input"] += [f"{name}_{names[0]}", f"{name}_unit"]
    return built.add("elemwise_add", f"{name}_unit", [map_, unit])


def input_of(built: Built, position: int, given: Input, setting: Setting) -> Ref:
    name, shape = f"in{position}", given.shape_of(setting.channels)
    if given.kind == "=":
        dtype = given.dtype or setting.dtype
        return built.variable(name, shape, lambda *_: np.array(given.values), dtype, trained=False)
    if given.kind == "l":
        return built.variable(name, shape, below(given.limit), setting.dtype, trained=False)
    if given.kind in "va" or (given.kind == "w" and setting.producer != "light"):
        draw: Draw = (lambda _, shape: np.ones(shape)) if given.kind == "a" else weights
        return built.variable(name, shape, draw, given.dtype or setting.dtype)
    images = given.kind == "x" and len(shape) == 4 and setting.producer in ("conv", "plain conv")
    if images:
        map_ = _conv(built, name, shape, setting.producer == "conv")
    elif given.kind == "x" and len(shape) == 2 and setting.producer == "dense":
        map_ = _dense(built, name, shape)
    else:
        map_ = _light(built, name, shape, setting.dtype)
    if given.kind == "x":
        map_ = _dropped(built, name, map_, setting.masked)
    if given.kind in ("spd", "tri"):
        return _matrix(built, name, map_, given.kind, shape)
    for step, (op, attrs) in enumerate(_tail(given if given.kind != "w" else Input("x", shape), setting.dtype)):
        built.roles["input"].append(f"{name}_{op}{step}")
        map_ = built.add(op, f"{name}_{op}{step}", [map_], **attrs)
    return map_
