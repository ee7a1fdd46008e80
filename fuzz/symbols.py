"""Random symbols: what an optimized executor computes is what MXNet's own computes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import Counter
from typing import Any, Iterator

import mxnet as mx

import echo
from echo.frontend.mxnet_settings import match_range
from fuzz import elsewhere, storage, training
from fuzz.deepening import deepened
from fuzz.drawing import draw as draw
from fuzz.drawing import scope
from fuzz.exact import comparable, dropout_in_single, symbol_in_float64, without_single
from fuzz.judgement import verdict
from fuzz.options import unmet
from fuzz.outcome import NUDGES, Refused
from fuzz.program import Program
from fuzz.symbol_script import script as script

# Beginnings of warnings that say nothing of a fault.
EXPECTED = ("echo: policy ilp: stopped", "echo: planning stopped", "echo: nothing is kept in")
RANGES = (1, 2, 4, 64, 0)  # match ranges under which stock MXNet is asked as well
# Of so many terms, or more, MXNet by default adds a gradient up in another way, which may lose one where the array is
# an output, too.
_IN_PLACE = 8


def symbol_of(program: Program) -> Any:
    """Builds the symbol of a program.

    Raises:
        Refused: MXNet does not know such a symbol.
    """
    names = scope()
    try:
        with mx.name.NameManager():
            exec(program.source(), names)
            heads = names["heads"]
            return mx.sym.Group(heads) if len(heads) > 1 else heads[0]
    except Exception as error:
        raise Refused(str(error)) from error


program_of = Program.from_json


@deepened
def check(program: Program) -> str | None:
    """The fault of echo in this program; None without one.

    Raises:
        Refused: MXNet itself does not run it.
        Undefined: MXNet itself computes now this, now that.
    """
    symbol = symbol_of(program)
    try:
        expected = training.train(symbol, program.requests, program.how)
    except (mx.MXNetError, RuntimeError, TypeError) as error:
        raise Refused(str(error)) from error
    fused = program.options.get("fuse", True)
    warnings = training.Warnings()
    logging.getLogger("echo").addHandler(warnings)
    try:
        got = training.trained(echo.optimize(symbol, **program.options), program.requests, program.how)
    except (echo.BudgetError, echo.OptionError):
        return None
    except echo.TimeLimitError as error:
        return unmet(program.options, error)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
    finally:
        logging.getLogger("echo").removeHandler(warnings)
    wrong = training.differences(got, expected, fused)
    if not wrong:
        said = next((f"warning: {text}" for text in warnings.texts if not text.startswith(EXPECTED)), None)
        return said or _growth(symbol, program) or None
    nudged = (training.train(symbol, program.requests, {**program.how, **nudge}) for nudge in NUDGES)
    exact = _exact(program) if fused else ()
    return verdict(wrong, got, expected, _others(symbol, program), nudged if fused else (), exact)


def _growth(symbol: Any, program: Program) -> str:
    if not program.how.get("storage"):
        return ""
    requests, how = program.requests, {**program.how, "poison": 0}
    return storage.storage_growth(
        lambda: training.train(symbol, requests, how),
        lambda: training.trained(echo.optimize(symbol, **program.options), requests, how),
        how.get("context", 0),
    )


def _others(symbol: Any, program: Program) -> Iterator[Any]:
    """The same without echo, under other match ranges, and where gradients are summed one way only."""
    for value in RANGES:
        with match_range(value):
            yield training.train(symbol, program.requests, program.how)
    yield training.trained(symbol, program.requests, program.how)
    if _most_readers(symbol) >= _IN_PLACE:
        yield from elsewhere.stock_run("symbols", program, MXNET_EXEC_INPLACE_GRAD_SUM_CAP="1000000")


def _most_readers(symbol: Any) -> int:
    """How often the array that is read most is read, by nodes and as an output."""
    graph = json.loads(symbol.tojson(remove_amp_cast=False))
    entries = [tuple(entry[:2]) for entry in (*(e for node in graph["nodes"] for e in node["inputs"]), *graph["heads"])]
    return max(Counter(entries).values())


def _exact(program: Program) -> Iterator[Any]:
    """The same in float64, where that is to be had."""
    if not comparable(program):
        return
    with contextlib.suppress(Refused, mx.MXNetError, RuntimeError, TypeError, ValueError), dropout_in_single():
        symbol = symbol_in_float64(symbol_of(without_single(program)))
        yield training.train(symbol, program.requests, program.how)


def alone(seed: int) -> None:
    """The program of a seed without echo: where that ends the process, too, MXNet is at fault."""
    stock(draw(seed))


def stock(program: Program) -> Any:
    """The results of a program without echo; None if MXNet refuses it."""
    with contextlib.suppress(Refused, mx.MXNetError, RuntimeError, TypeError):
        return training.train(symbol_of(program), program.requests, program.how)
    return None


def run(seed: int) -> str | None:
    """The fault of echo in the program of a seed."""
    return check(draw(seed))


os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")
