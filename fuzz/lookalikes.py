"""Code that looks almost like what is fused: templates of operators with another axis, other operands, equal names."""

from __future__ import annotations

import random
import re
from typing import Callable, Mapping

OF_PATTERNS = ("softmax", "Dropout", "Cell", "transpose_b", "random", "LayerNorm")  # words of what is fused


def _axis(rng: random.Random, _: re.Match[str]) -> str:
    return f"axis={rng.randint(-3, 3)}"


def _axes(rng: random.Random, found: re.Match[str]) -> str:
    axes = found[1].split(",")
    return f"axes=({', '.join(str(axis) for axis in rng.sample(range(len(axes)), len(axes)))})"


def _softmax(rng: random.Random, _: re.Match[str]) -> str:
    option = rng.choice((f"axis={rng.randint(-2, 2)}", "temperature=2.0", "dtype='float64'"))
    return f"mx.sym.softmax(**dict({option}), data="


# The changes, by a pattern for the place in a template; a program whose shapes MXNet does not infer is dropped anyway.
_CHANGES: Mapping[str, Callable[[random.Random, re.Match[str]], str]] = {
    r"\baxis=-?\d": _axis,
    r"\bdim=-?\d": lambda rng, _: f"dim={rng.randint(0, 2)}",
    r"\baxes=\(([\d, ]+)\)": _axes,
    r"\btranspose_b=True": lambda rng, _: "transpose_b=False",
    r"\{0\}": lambda rng, _: rng.choice(
        ("{1}", "mx.sym.identity({0})", "mx.sym.BlockGrad({0})", "mx.sym.flip({0}, axis=0)")
    ),
    r"\{1\}": lambda rng, _: rng.choice(("{0}", "mx.sym.flip({1}, axis=1)", "(2 * {1})")),
    r"mx\.sym\.softmax\((?!data|\*)": _softmax,
    r"mx\.sym\.Dropout\((?!name)": lambda rng, _: (
        f"mx.sym.Dropout(name='{rng.choice(('same', 'a_echo_b', 'a_echo_c'))}', data="
    ),
    r"layout='TNC'": lambda rng, _: "layout='NTC'",
    r"mx\.sym\.random\.uniform\(0, 0\.1, shape=(<shape>)\)": lambda rng, found: (
        f"mx.sym.np.random.{rng.choice(('gumbel', 'exponential', 'logistic'))}(size={found[1]}).as_nd_ndarray()"
    ),
    r"\+ 1, use_sequence_length": lambda rng, _: "* 0.5 + 1, use_sequence_length",
}


def lookalike(rng: random.Random, code: str) -> str:
    """The template with one or two changes; itself where it has no place for one."""
    for _ in range(rng.randint(1, 2)):
        places = [(found, change) for pattern, change in _CHANGES.items() for found in re.finditer(pattern, code)]
        if places:
            found, change = rng.choice(places)
            code = code[: found.start()] + change(rng, found) + code[found.end() :]
    return code
