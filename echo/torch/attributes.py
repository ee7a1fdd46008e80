"""Attributes of MXNet's operators: strings in a symbol's JSON, read by the signatures of the functions that take them.

The function of an operator takes its inputs by position and its attributes by keyword. Annotations say how the text of
an attribute is read, and which values are known.
"""

from __future__ import annotations

import ast
import functools
import inspect
from typing import Any, Callable, Mapping, Optional, Tuple

import torch

Function = Callable[..., Any]
Shape = Tuple[int, ...]
Ends = Tuple[Optional[int], ...]  # of slices

# What changes no value: choices of algorithms and storage, and the number of inputs.
_IGNORED = frozenset({"cudnn_off", "cudnn_tune", "cudnn_algo_verbose", "workspace", "sparse_grad", "num_args", "ctx",
                      "is_int", "force_deterministic"})  # fmt: skip
_SUPPLIED = frozenset({"training", "like"})  # keywords that the graph gives, and no attribute


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "1")


def _ends(text: str) -> Ends:
    found = ast.literal_eval(text.replace("L", ""))
    found = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    if not all(item is None or type(item) is int for item in found):
        raise ValueError(text)
    return found


def _shape(text: str) -> Shape:
    found = _ends(text)
    if None in found:
        raise ValueError(text)
    return found  # type: ignore[return-value]


def _dtype(text: str) -> torch.dtype:
    found = getattr(torch, text, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(text)
    return found


_READERS: Mapping[str, Callable[[str], Any]] = {
    "int": int, "float": float, "bool": _bool, "str": str, "Shape": _shape, "Ends": _ends, "torch.dtype": _dtype,
}  # fmt: skip


def _read(annotation: str, text: str) -> Any:
    if annotation.endswith(" | None"):
        return None if text == "None" else _read(annotation[: -len(" | None")], text)
    if annotation.startswith("Literal["):
        known = ast.literal_eval(annotation[len("Literal") :])
        readers = {str(value): value for value in known}
        if text not in readers:
            raise ValueError(text)
        return readers[text]
    return _READERS[annotation](text)


@functools.lru_cache(maxsize=None)
def parameters(function: Function) -> Mapping[str, inspect.Parameter]:
    """The parameters of an operator's function; one of torch's own without a signature takes inputs only."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {"inputs": inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)}


def attributes_of(function: Function) -> dict[str, inspect.Parameter]:
    """The parameters of an operator's function that attributes give."""
    return {name: item for name, item in parameters(function).items()
            if item.kind is inspect.Parameter.KEYWORD_ONLY and name not in _SUPPLIED}  # fmt: skip


def read_attributes(function: Function, texts: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The keyword arguments for an operator's function, and what is wrong with the attributes."""
    known, values, faults = attributes_of(function), {}, []
    for name, text in texts.items():
        if name.startswith("__") or (name in _IGNORED and name not in known):
            continue
        if name not in known:
            faults.append(f"attribute {name}={text!r} is unknown")
            continue
        annotation = str(known[name].annotation)
        try:
            values[name] = _read(annotation, text)
        except (ValueError, SyntaxError):
            faults.append(f"attribute {name}: expected {annotation}, got {text!r}")
    absent = [name for name, item in known.items() if item.default is inspect.Parameter.empty and name not in texts]
    return values, faults + [f"attribute {name} is missing" for name in absent]
