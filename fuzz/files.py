"""Damaged and edited plan and cache files: refused, made again, or the same bits; never anything else.

A case takes a plan that echo made, changes it (as a value whose digest is not checked, as bytes of a file, or as bytes
of echo's caches), trains two steps with what comes of it, and compares every bit with stock MXNet.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import echo
from echo.errors import EchoError
from echo.plans.plan import Plan
from echo.runtime import bind_plan
from fuzz import file_edits
from fuzz.deepening import deepening
from fuzz.file_models import MODELS, RUNNERS, differs, graph, train

_GOT = re.compile(r"bytes planned, got ([\d,]+)")


class Setup(NamedTuple):
    """The symbol and options that a plan was made for."""

    model: str
    runner: str
    options: tuple[tuple[str, Any], ...]


_OPTIONS = (
    {"policy": "all", "max_overhead": None, "fuse": False},
    {"policy": "search", "max_overhead": None, "fuse": False},
    {"policy": "search", "fuse": False},
    {"policy": "search", "max_overhead": None},
    {"policy": "search", "max_time": 1.5, "fuse": False},
    {"policy": "search", "max_time": 4.0, "fuse": False},
)
SETUPS = tuple(
    Setup(model, runner, tuple(options.items())) for model in MODELS for runner in RUNNERS for options in _OPTIONS
)


def alone(seed: int) -> None:
    """The training of a case without echo."""
    setup = random.Random(seed).choice(SETUPS)
    stock(setup.model, setup.runner)


def run(seed: int) -> str | None:
    """One random case; returns its fault, or None."""
    rng = random.Random(seed)
    setup = rng.choice(SETUPS)
    kind = rng.choices((edited_value, damaged_file, damaged_cache, odd_cache), (70, 15, 12, 3))[0]
    options = dict(setup.options)
    with deepening({"deep": "free"} if "max_time" in options else {}):
        wrong = kind(rng, setup)
    return None if wrong is None else f"{kind.__name__} {setup.model}, {setup.runner}, {options}: {wrong}"


def edited_value(rng: random.Random, setup: Setup) -> str | None:
    """A plan with other values in it, as if its digest were right."""
    value = json.loads(whole(setup))
    done = file_edits.edit(rng, value, graph(setup.model))
    return outcome(setup, value, "; ".join(done))


def outcome(setup: Setup, value: Any, what: str) -> str | None:
    """The fault in the use of a changed plan; None if it is refused, or the same."""
    for _ in range(2):
        try:
            plan = Plan.from_json(json.loads(json.dumps(value)))
            close = not plan.exact
            got = train(setup.model, setup.runner, {"plan": plan, **({} if plan.fused else {"fuse": False})})
        except EchoError as error:
            found = _GOT.search(str(error))
            if found is None:
                return None
            value["after"]["planned"] = int(found.group(1).replace(",", ""))  # as whoever edits it would do
        except Exception as error:
            return f"{type(error).__name__}: {error} ({what})"
        else:
            wrong = differs(got, stock(setup.model, setup.runner), close)
            return f"{wrong} ({what})" if wrong else None
    return f"refused for its bytes twice ({what})"


def damaged_file(rng: random.Random, setup: Setup) -> str | None:
    """A file that `Plan.save` wrote, with other bytes: refused, or the plan that it was."""
    plan = made(setup)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        data, what = file_edits.damage(rng, path.read_bytes())
        path.write_bytes(data)
        try:
            loaded = echo.load_plan(path)
        except EchoError:
            return None
        except Exception as error:
            return f"{type(error).__name__}: {error} ({what})"
    return None if loaded == plan else f"another plan ({what})"


def damaged_cache(rng: random.Random, setup: Setup) -> str | None:
    """Files of echo's caches with other bytes: the same plan, made again if it has to be, or the same bits."""
    with _folder() as folder:
        files = _filled(folder, setup)
        path = rng.choice(files)
        data, what = file_edits.damage(rng, path.read_bytes())
        path.write_bytes(data)
        return _trained(setup, what)


def odd_cache(rng: random.Random, setup: Setup) -> str | None:
    """Replaces a file of echo's caches by something else, or by a file that others can write to."""
    with _folder() as folder:
        path = rng.choice(_filled(folder, setup))
        what = file_edits.replace_by_something_else(rng, path)
        return _trained(setup, what)


def _trained(setup: Setup, what: str) -> str | None:
    options = dict(setup.options)
    try:
        got = train(setup.model, setup.runner, options)
    except Exception as error:
        return f"{type(error).__name__}: {error} ({what})"
    wrong = differs(got, stock(setup.model, setup.runner), options.get("fuse", True))
    return f"{wrong} ({what})" if wrong else None


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder for echo's caches, and echo as if it had just started."""
    before = os.environ.get("ECHO_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ECHO_CACHE_DIR"] = folder
        forget()
        try:
            yield Path(folder)
        finally:
            forget()
            if before is None:
                del os.environ["ECHO_CACHE_DIR"]
            else:
                os.environ["ECHO_CACHE_DIR"] = before


def forget() -> None:
    """As if another process had started."""
    bind_plan.PLANNER.forget()


@lru_cache(maxsize=None)
def _cache_of(setup: Setup) -> dict[str, bytes]:
    """The files that echo leaves in an empty folder."""
    with _folder() as folder:
        train(setup.model, setup.runner, dict(setup.options))
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.json")}


def _filled(folder: Path, setup: Setup) -> list[Path]:
    files = _cache_of(setup)
    os.environ["ECHO_CACHE_DIR"] = str(folder)  # `_cache_of` has put its own away
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o600)
    return sorted(folder / name for name in files)


@lru_cache(maxsize=None)
def stock(model: str, runner: str) -> Any:
    """The results of stock MXNet."""
    return train(model, runner, None)


@lru_cache(maxsize=None)
def made(setup: Setup) -> Plan:
    """The plan that echo makes."""
    plans: list[Plan] = []
    train(setup.model, setup.runner, dict(setup.options), plans)
    return plans[-1]


@lru_cache(maxsize=None)
def whole(setup: Setup) -> str:
    """That plan as JSON."""
    return json.dumps(made(setup).to_json())
