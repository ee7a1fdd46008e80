"""One batch of cases in a process of its own: ``python -m fuzz.child KIND SEED COUNT``, or ``KIND PROGRAM.json``.

``KIND SEED stock`` runs a case without echo; ``KIND PROGRAM.json stock`` does so, and leaves next to the program, as a
pickle, what came out (`fuzz.elsewhere`).

What happens is told on standard output, a JSON value a line: a seed before it is tried, so that whoever waits knows
what a process died of, and what came of it; ``next`` where another process has to go on.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pickle
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

_SHRINKING = 40.0  # seconds for one fault


def main(kind: str, what: str, count: str = "") -> None:
    """Runs the cases, or the one program of a file, and tells of each."""
    out = os.fdopen(os.dup(1), "w", buffering=1)  # what MXNet prints is not to stand between
    os.dup2(2, 1)
    os.environ.setdefault("ECHO_DEBUG", "check")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")
    warnings.simplefilter("ignore")

    def tell(value: Any) -> None:
        out.write(json.dumps(value) + "\n")

    module = importlib.import_module(f"fuzz.{kind}")
    from fuzz.setting import prepare

    prepare()
    if not count:
        tell({"wrong": _checked(module, module.program_of(Path(what).read_text()))})
        return
    if count == "stock":
        _stock(module, what)
        return
    for seed in range(int(what), int(what) + int(count)):
        tell({"seed": seed})
        with contextlib.redirect_stdout(io.StringIO()):
            found = _case(module, seed)
        tell(found)
        if found["kind"] == "refused":
            # what an operator handed to oneDNN before it failed stays in its thread: the next operator there runs it,
            # on memory that is free by now, or fails as well, and so do all after it
            tell({"next": seed + 1})
            return


def _stock(module: Any, what: str) -> None:
    if what.isdigit():
        module.alone(int(what))
    else:
        run = module.stock(module.program_of(Path(what).read_text()))
        Path(what).with_suffix(".pickle").write_bytes(pickle.dumps(run))


def _case(module: Any, seed: int) -> dict[str, Any]:
    from fuzz.deepening import most_copies
    from fuzz.outcome import Refused, Undefined

    most_copies()  # of this case alone
    try:
        wrong = module.run(seed)
    except Refused:
        return {"kind": "refused"}
    except Undefined as error:
        return {"kind": "undefined", "what": str(error)}
    heavy = most_copies()
    if wrong is None:
        return {"kind": "same", "heavy": heavy}
    found: dict[str, Any] = {"kind": "wrong", "what": wrong, "heavy": heavy}
    if hasattr(module, "draw"):
        smallest = shrunk(module, seed, wrong)
        found.update(what=_checked(module, smallest) or wrong, script=module.script(seed, smallest, wrong))
    return found


def _checked(module: Any, program: Any) -> str | None:
    """The fault in a program; None if MXNet refuses it, or its own results are undefined."""
    from fuzz.outcome import Refused, Undefined

    try:
        return module.check(program)
    except (Refused, Undefined):
        return None


def shrunk(module: Any, seed: int, wrong: str) -> Any:
    """The smallest program found that fails as that of the seed does: with other numbers, more storage, or an error."""
    from fuzz.program import shrink

    end = time.monotonic() + _SHRINKING

    def kind(text: str) -> str:
        return "numbers" if "step " in text else "storage" if text.startswith("storage: ") else ""

    def fails(program: Any) -> bool:
        found = _checked(module, program)
        return found is not None and kind(found) == kind(wrong)

    return shrink(module.draw(seed), fails, lambda: time.monotonic() > end)


if __name__ == "__main__":
    random.seed(0)
    main(*sys.argv[1:])
