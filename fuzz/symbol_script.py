"""A program of symbols as a script that needs nothing but echo."""

from __future__ import annotations

from typing import Any

from fuzz import storage, training
from fuzz.program import Program

SCRIPT = '''"""Found by the fuzzer of symbols, seed {seed}: {what}"""
import os
os.environ.update(OMP_NUM_THREADS="1", MXNET_SUBGRAPH_VERBOSE="0")
import echo
from fuzz.deepening import start
{training}


{storage}

var = mx.sym.var
{source}
symbol = mx.sym.Group(heads)
requests, how, options = {requests!r}, {how!r}, {options!r}
start(how)
expected = train(symbol, requests, how)
wrong = differences(trained(echo.optimize(symbol, **options), requests, how), expected, options.get("fuse", True))
for name, off in wrong.items():
    print(name, off)
grown = how.get("storage") and storage_growth(
    lambda: train(symbol, requests, how), lambda: train(echo.optimize(symbol, **options), requests, how),
    how.get("context", 0))
print(grown or "storage does not grow")
raise SystemExit(1 if wrong or grown else 0)
'''


def code_of(module: Any) -> str:
    """The code of a module after its docstring."""
    with open(module.__file__, encoding="utf-8") as file:
        return file.read().partition('"""\n')[2].strip()


def script(seed: int, program: Program, what: str) -> str:
    """A script that shows what is wrong, and needs nothing but echo."""
    code, more = map(code_of, (training, storage))
    what = what.replace("\\", "/").replace('"', "'")
    return SCRIPT.format(seed=seed, what=what, training=code, storage=more, source=program.source(),
                         requests=program.requests, how=program.how, options=program.options)  # fmt: skip
