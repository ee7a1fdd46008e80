"""Changes to plans as values, and to files as bytes."""

from __future__ import annotations

import copy
import os
import random
from pathlib import Path
from typing import Any, Callable

from echo.ir.gradient_rules import known
from echo.ir.graph import Graph
from echo.ir.op_spec import GRADIENT_ATTRIBUTE, MIRROR_ATTRIBUTE, PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.ir.ops import spec

_JUNK = (None, True, False, 0, 1, -1, 2**31, 2**63, 0.5, 1e308, "", "0", "hook", [], [[]], {}, {"a": 1})
_RANGES = ("-1", "-1s", "-2", "0", "1", "2", "16", "64", "2147483647", "99999999999", "", "x", " 1")
Edit = Callable[[random.Random, Any, Graph], str]


def edit(rng: random.Random, value: Any, graph: Graph) -> list[str]:
    """Changes a plan in place; returns a description of the change."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        done.append(rng.choices(*_EDITS)[0](rng, value, graph))
    return done


def _operators(graph: Graph) -> list[int]:
    return [number for number, node in enumerate(graph.nodes) if not node.is_variable]


def outputs_text(rng: random.Random) -> str:
    """Outputs and positions, mostly such as there can be."""
    outputs = sorted(rng.sample(range(5), rng.choice((1, 1, 1, 2, 3)))) if rng.random() < 0.4 else [0]
    text = ",".join(map(str, outputs))
    if rng.random() < 0.4:
        splits = sorted(rng.sample(range(rng.choice((2, 10, 60, 10**6))), rng.choice((1, 1, 2))))
        text += "@" + ",".join(map(str, splits))
    return text


def _marks(value: Any) -> list[Any]:
    marks = value.get("marks") if isinstance(value, dict) else None
    whole = isinstance(marks, list) and all(isinstance(mark, list) and len(mark) == 3 for mark in marks)
    return marks if whole and all(isinstance(mark[2], dict) for mark in marks) else []  # type: ignore[return-value]


def _put(value: Any, number: int, op: str, attrs: dict[str, str]) -> None:
    marks = _marks(value)
    own = next((mark for mark in marks if mark[0] == number), None)
    if own is None:
        marks.append([number, op, dict(attrs)])
        marks.sort(key=lambda mark: mark[0] if isinstance(mark[0], int) else -1)
    else:
        own[2].update(attrs)


def _range_of(value: Any) -> dict[str, str]:
    texts = [mark[2][RANGE_ATTRIBUTE] for mark in _marks(value) if RANGE_ATTRIBUTE in mark[2]]
    return {RANGE_ATTRIBUTE: texts[0]} if texts else {}


def _add_mark(rng: random.Random, value: Any, graph: Graph) -> str:
    number = rng.choice(_operators(graph))
    if rng.random() < 0.1:
        attrs = {MIRROR_ATTRIBUTE: "True"}
        value["applied"] = rng.choice(("mirror", "hook"))
    else:
        attrs = {PLAN_ATTRIBUTE: outputs_text(rng), **_range_of(value)}
    if rng.random() < 0.5:
        value["applied"] = "hook"
    _put(value, number, graph.nodes[number].op, attrs)
    return f"{attrs} at {graph.nodes[number].name} ({graph.nodes[number].op})"


def _choose_again(rng: random.Random, value: Any, graph: Graph) -> str:
    """Another choice, as another policy might make it: most of these are plans."""
    share, splits, beyond = rng.random(), rng.random() < 0.5, rng.random() < 0.2
    value["applied"], range_ = "hook", _range_of(value)
    for mark in _marks(value):
        mark[2].pop(PLAN_ATTRIBUTE, None)
        mark[2].pop(RANGE_ATTRIBUTE, None)
    chosen = []
    for number in _operators(graph):
        op = graph.nodes[number].op
        known = spec(op)
        if rng.random() < share and (
            beyond or (known.safety.recomputable and (not known.cost.heavy or rng.random() < 0.3))
        ):
            count = graph.num_outputs(number) if known.safety.every_output else 1
            text = ",".join(map(str, sorted(rng.sample(range(count), rng.randint(1, count)))))
            if splits and rng.random() < 0.5:
                text += "@" + ",".join(map(str, sorted(rng.sample(range(1, 40), rng.randint(1, 3)))))
            _put(value, number, op, {PLAN_ATTRIBUTE: text, **range_})
            chosen.append(f"{graph.nodes[number].name} {text}")
    value["marks"] = [mark for mark in _marks(value) if mark[2]]
    if not chosen:
        value["match_range"] = None
    return f"recomputes {', '.join(chosen)}"


def _subset(rng: random.Random, value: Any, graph: Graph) -> str:
    """Some of what is recomputed, from other positions on: nearly all of these are plans."""
    share, splits, dropped = rng.random(), rng.choice((0.0, 0.5)), []
    for mark in _marks(value):
        if PLAN_ATTRIBUTE not in mark[2]:
            continue
        if rng.random() > share:
            dropped.append(mark[0])
            del mark[2][PLAN_ATTRIBUTE]
            mark[2].pop(RANGE_ATTRIBUTE, None)
        elif rng.random() < splits and isinstance(mark[2][PLAN_ATTRIBUTE], str):
            positions = ",".join(map(str, sorted(rng.sample(range(1, 30), rng.randint(1, 3)))))
            mark[2][PLAN_ATTRIBUTE] = mark[2][PLAN_ATTRIBUTE].partition("@")[0] + "@" + positions
    value["marks"] = [mark for mark in _marks(value) if mark[2]]
    return f"no longer recomputes {dropped}"


def _change_text(rng: random.Random, value: Any, graph: Graph) -> str:
    texts = [(mark, name) for mark in _marks(value) for name in mark[2] if isinstance(mark[2][name], str)]
    if not texts:
        return _add_mark(rng, value, graph)
    mark, name = rng.choice(texts)
    text = list(mark[2][name])
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(len(text) + 1)
        text[place : place + rng.choice((0, 1))] = rng.choice(["", *"0123456789,@->:fs x+"])
    mark[2][name] = "".join(text)
    return f"{name} = {mark[2][name]!r} at {mark[0]}"


def _drop_mark(rng: random.Random, value: Any, graph: Graph) -> str:
    marks = _marks(value)
    return f"drops {marks.pop(rng.randrange(len(marks)))}" if marks else _add_mark(rng, value, graph)


def _move_mark(rng: random.Random, value: Any, graph: Graph) -> str:
    marks = _marks(value)
    if not marks:
        return _add_mark(rng, value, graph)
    mark = rng.choice(marks)
    before = mark[0]
    alike = [number for number in _operators(graph) if graph.nodes[number].op == mark[1]]
    mark[0] = rng.choice(alike or _operators(graph))
    if rng.random() < 0.5:
        mark[1] = graph.nodes[mark[0]].op
    marks.sort(key=lambda mark: mark[0] if isinstance(mark[0], int) else -1)
    return f"moves the mark of {before} to {mark[0]}"


def _change_range(rng: random.Random, value: Any, graph: Graph) -> str:
    text = rng.choice(_RANGES)
    for mark in _marks(value):
        if rng.random() < 0.95:
            mark[2][RANGE_ATTRIBUTE] = text
    digits = text.rstrip("s").strip()
    if digits.lstrip("-").isdigit():
        value["match_range"] = int(digits)
    return f"match range {text!r}"


def _gradient(rng: random.Random, value: Any, graph: Graph) -> str:
    number = rng.choice(_operators(graph))
    node = graph.nodes[rng.choice(_operators(graph))] if rng.random() < 0.3 else graph.nodes[number]
    texts = sorted(rule.text for rule in known(node.op, node.attrs))
    text = rng.choice(texts or ["_backward_Activation>_backward_Activation:0,2,2"])
    _put(value, number, graph.nodes[number].op, {GRADIENT_ATTRIBUTE: text})
    return f"a gradient of {node.op} at {graph.nodes[number].name}"


def _junk(rng: random.Random, value: Any, graph: Graph) -> str:
    place, key, path = value, rng.choice(list(value)), []
    while True:
        path.append(key)
        inner = place[key]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.2:
            break
        place, key = inner, rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
    place[key] = copy.deepcopy(rng.choice(_JUNK))
    return f"{path} = {place[key]!r}"


def _twice(rng: random.Random, value: Any, graph: Graph) -> str:
    marks = _marks(value)
    if not marks:
        return _add_mark(rng, value, graph)
    mark = rng.choice(marks)
    marks.insert(rng.randrange(len(marks) + 1), [mark[0], mark[1], dict(mark[2])])
    return f"twice {mark}"


def damage(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """Other bytes, and what was done."""
    found, done = bytearray(data), []
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        place = rng.randrange(len(found) + 1)
        how = rng.choices(("flip", "cut", "delete", "insert", "copy", "digit"), (60, 5, 8, 8, 5, 14))[0]
        if how == "flip" and place < len(found):
            found[place] ^= 1 << rng.randrange(8)
        elif how == "cut":
            del found[place:]
        elif how == "delete":
            del found[place : place + rng.randint(1, 40)]
        elif how == "insert":
            found[place:place] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))
        elif how == "copy":
            found[place:place] = found[rng.randrange(len(found) + 1) :][: rng.randint(1, 200)]
        elif how == "digit":
            digits = [at for at, byte in enumerate(found) if 48 <= byte < 58]
            if digits:
                found[rng.choice(digits)] = rng.randrange(48, 58)
        done.append(f"{how} at {place}")
    return bytes(found), ", ".join(done)


def replace_by_something_else(rng: random.Random, path: Path) -> str:
    """Replaces a file by something that is no file of this user's."""
    how = rng.choice(("fifo", "folder", "link", "device", "mode", "owner", "lock"))
    if how == "mode":
        path.chmod(rng.choice((0o666, 0o620, 0o602)))
    elif how == "owner" and os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    elif how == "lock":
        os.mkfifo(path.with_suffix(".lock"))
    elif how in ("fifo", "folder", "link", "device"):
        data = path.read_bytes()
        path.unlink()
        if how == "fifo":
            os.mkfifo(path)
        elif how == "folder":
            path.mkdir()
        elif how == "device":
            path.symlink_to("/dev/zero")
        else:
            other = path.with_suffix(".other")
            other.write_bytes(data)
            path.symlink_to(other)
    return how


_EDITS: tuple[tuple[Edit, ...], tuple[int, ...]] = (
    (_subset, _add_mark, _choose_again, _change_text, _drop_mark, _move_mark, _change_range, _gradient, _junk, _twice),
    (30, 30, 15, 15, 5, 5, 8, 8, 10, 3),
)
