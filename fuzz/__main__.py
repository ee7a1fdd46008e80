"""``python -m fuzz --minutes 3``: fresh seeds until the time is over; 1 where something differs.

Cases run in batches, each in a process of its own, two at a time. A process that dies, or hangs, is a fault of the
seed that it was at. Each fault leaves a small script in the folder of ``--found``.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom
from typing import Any

KINDS = {"symbols": 200, "blocks": 100, "files": 200}  # with the cases of a batch
_SHARES = {"symbols": 6, "blocks": 3, "files": 1}  # of the batches
_HANGS = 120.0  # seconds without a word
_STOCK_RUNS = 40  # of a case that ended the process: a heap that MXNet itself damages ends one in fifteen of them
_WORKERS = 2


@dataclass
class Tally:
    """The results of the cases of one kind so far.

    In ``deep`` of them compute-heavy operators ran twice, ``copies`` of these in all.
    """

    cases: int = 0
    deep: int = 0
    copies: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, Any]] = field(default_factory=list)


class Batch:
    """A child with a range of seeds; its lines go to the tally as they come."""

    def __init__(self, kind: str, first: int, count: int, end: float) -> None:
        self.kind, self.seed, self.end = kind, first, end
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by `run`
        self.child = subprocess.Popen(
            [sys.executable, "-m", "fuzz.child", kind, str(first), str(count)],
            stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def run(self, tell: Any) -> int | None:
        """Waits for the child; ``tell(kind, seed, outcome)`` hears of each case. The seed to go on at, if any."""
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        reader.start()
        with self.errors:
            try:
                return self._follow(lines, tell)
            finally:
                self.child.wait()
                reader.join()
                if self.child.stdout:
                    self.child.stdout.close()

    def _follow(self, lines: queue.Queue[str | None], tell: Any) -> int | None:
        at_work = False
        while True:
            try:
                line = lines.get(timeout=_HANGS)
            except queue.Empty:
                self.child.kill()
                tell(self.kind, self.seed, {"kind": "wrong", "what": f"no answer within {_HANGS:.0f} s"})
                return None
            if line is None:
                break
            value = json.loads(line)
            if "next" in value:
                return int(value["next"])
            if "seed" in value:
                self.seed, at_work = value["seed"], True
                continue
            at_work = False
            tell(self.kind, self.seed, value)
            if time.monotonic() > self.end:
                self.child.kill()
                return None
        status = self.child.wait()
        if at_work or status:
            tell(self.kind, self.seed, self._died(status))
        return None

    def _died(self, status: int) -> dict[str, Any]:
        """The outcome where the process ended.

        Refused where it ends without echo, too; unrepeated where the case alone does not end it: MXNet has operators
        that write beyond their arrays, and the process of a later case may die of it.
        """
        self.errors.seek(0)
        said = [line for line in self.errors.read().splitlines() if line.strip()][-1:]
        what = f"the process ended with {status}: {''.join(said)}"
        if status:  # negative, or 255 from MXNet's own handler of signals
            if self._ends("stock", _STOCK_RUNS):
                return {"kind": "refused"}
            if not self._ends("1", 2):
                return {"kind": "unrepeated", "what": what}
        return {"kind": "wrong", "what": what}

    def _ends(self, how: str, runs: int) -> bool:
        """Whether a process of this case alone ends early, in one of so many."""
        command = [sys.executable, "-m", "fuzz.child", self.kind, str(self.seed), how]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
        return any(subprocess.run(command, **quiet).returncode != 0 for _ in range(runs))  # type: ignore[call-overload]

    def _read(self, lines: queue.Queue[str | None]) -> None:
        for line in self.child.stdout or ():
            lines.put(line)
        lines.put(None)


def run_batches(kind: str, first: int, count: int, end: float, tell: Any) -> None:
    """Runs a range of seeds, in one process or, where MXNet leaves one in disorder, in several."""
    at: int | None = first
    while at is not None and at < first + count and time.monotonic() < end:
        at = Batch(kind, at, first + count - at, end).run(tell)


class Driver:
    """Batches of all kinds, each with fresh seeds, until the time is over."""

    def __init__(self, kinds: list[str], minutes: float, found: Path, first: int) -> None:
        self.tallies = {kind: Tally() for kind in kinds}
        self.start = time.monotonic()
        self.end = self.start + 60 * minutes
        self.found, self.next = found, first
        self._lock = threading.Lock()
        self._given: Counter[str] = Counter()

    def run(self) -> None:
        """Fills the tallies."""
        workers = [threading.Thread(target=self._work) for _ in range(_WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def _work(self) -> None:
        while time.monotonic() < self.end:
            with self._lock:
                kind = min(self.tallies, key=lambda name: self._given[name] / _SHARES[name])
                self._given[kind] += 1
                first, self.next = self.next, self.next + KINDS[kind]
            run_batches(kind, first, KINDS[kind], self.end, self._tell)

    def _tell(self, kind: str, seed: int, outcome: dict[str, Any]) -> None:
        with self._lock:
            tally = self.tallies[kind]
            tally.cases += 1
            tally.outcomes[outcome["kind"]] += 1
            tally.deep += bool(outcome.get("heavy"))
            tally.copies += outcome.get("heavy", 0)
            if outcome["kind"] == "wrong":
                self._keep(kind, seed, outcome)
            elif "what" in outcome:
                tally.faults.append({"seed": seed, outcome["kind"]: outcome["what"]})
            if sys.stderr.isatty():
                print(f"\r{self.line()}, {self.end - time.monotonic():.0f} s left ", end="", file=sys.stderr)

    def _keep(self, kind: str, seed: int, outcome: dict[str, Any]) -> None:
        fault = {"seed": seed, "what": outcome["what"]}
        if "script" in outcome:
            self.found.mkdir(parents=True, exist_ok=True)
            path = self.found / f"{kind}_{seed}.py"
            path.write_text(outcome["script"], encoding="utf-8")
            fault["script"] = str(path)
        self.tallies[kind].faults.append(fault)
        print(f"{kind}, seed {seed}: {outcome['what']}" + (f" ({fault['script']})" if "script" in fault else ""))
        print(f"  again: python -m fuzz.child {kind} {seed} 1", flush=True)

    @property
    def wrong(self) -> int:
        """How many cases differ."""
        return sum(tally.outcomes["wrong"] for tally in self.tallies.values())

    def line(self) -> str:
        """All in one line."""
        cases = ", ".join(f"{tally.cases} {kind}" for kind, tally in self.tallies.items())
        return f"{cases}: {self.wrong} differences"


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    there = [name for name in KINDS if find_spec(f"fuzz.{name}")]
    parser.add_argument("--kinds", nargs="+", choices=there, default=there)
    parser.add_argument("--seed", type=int, help="the first seed; by default one that was never tried")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"), help="where scripts of faults go")
    parser.add_argument("--json", type=Path, help="where the result goes")
    given = parser.parse_args()
    first = SystemRandom().randrange(10**9) if given.seed is None else given.seed
    driver = Driver(given.kinds, given.minutes, given.found, first)
    driver.run()
    if sys.stderr.isatty():
        print(file=sys.stderr)
    outcomes = {kind: dict(tally.outcomes) for kind, tally in driver.tallies.items()}
    undefined, unrepeated = (
        sum(found.get(kind, 0) for found in outcomes.values()) for kind in ("undefined", "unrepeated")
    )
    others = f"{undefined} that MXNet itself leaves undefined, {unrepeated} deaths that a case alone does not repeat"
    print(f"{driver.line()} ({others}, seeds from {first})")
    deep = {kind: {"cases": tally.deep, "copies": tally.copies} for kind, tally in driver.tallies.items()}
    twice = ", ".join(f"{each['copies']} in {each['cases']} {kind}" for kind, each in deep.items())
    print(f"compute-heavy operators that ran twice: {twice}")
    if given.json:
        found = {kind: tally.faults for kind, tally in driver.tallies.items()}
        result = {
            "first_seed": first,
            "seconds": time.monotonic() - driver.start,
            "outcomes": outcomes,
            "heavy": deep,
            "found": found,
        }
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if driver.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
