"""The fuzzers of symbols and blocks: the same program for the same seed, faults found, shrunk and written down."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import echo
from echo.frontend.install import install_hook
from fuzz import blocks, symbols
from fuzz.__main__ import Batch, run_batches
from fuzz.child import shrunk
from fuzz.drawing import is_wide
from fuzz.outcome import Refused, Undefined
from fuzz.program import Line, Program, argument, smaller

pytestmark = pytest.mark.usefixtures("cheap_planning")
BOTH = pytest.mark.parametrize("kind", [symbols, blocks], ids=["symbols", "blocks"])


@pytest.fixture(autouse=True)
def hook() -> None:
    assert install_hook() == ""


@BOTH
def test_equal_seeds_draw_equal_programs(kind: ModuleType) -> None:
    drawn = [kind.draw(seed) for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert Program.from_json(drawn[1].to_json()) == drawn[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["symbols", "blocks"])
def test_first_twelve_programs_train_without_differences(kind: str) -> None:
    """In processes of their own: MXNet itself leaves some programs with memory in disorder."""
    seen: dict[int, str] = {}
    run_batches(kind, 0, 12, math.inf, lambda _, seed, outcome: seen.update({seed: outcome["kind"]}))
    assert sorted(seen) == list(range(12))
    assert "wrong" not in seen.values(), seen
    assert list(seen.values()).count("same") > 8


@pytest.mark.slow
def test_another_process_goes_on_after_a_refused_program() -> None:
    seen: dict[int, str] = {}
    done = Batch("blocks", 0, 60, math.inf).run(lambda _, seed, outcome: seen.update({seed: outcome["kind"]}))
    assert done == len(seen) < 60
    assert [seed for seed, kind in seen.items() if kind == "refused"] == [done - 1]


def test_smaller_programs_have_less_in_them() -> None:
    program = symbols.draw(3)
    for candidate in smaller(program):
        assert candidate != program
        assert len(candidate.needed()) <= len(program.needed())


@pytest.mark.slow
def test_fault_is_found_shrunk_and_written_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    optimize = echo.optimize

    def wrong(symbol: Any, **options: Any) -> Any:
        """Loses every tanh."""
        text = symbol.tojson(remove_amp_cast=False).replace('"op": "tanh"', '"op": "sigmoid"')
        return optimize(symbols.mx.sym.load_json(text), **options)

    drawn = ((seed, symbols.draw(seed)) for seed in range(30, 100))
    # what cannot be recomputed is an error of the option
    fit = (seed for seed, program in drawn if "mx.sym.tanh(" in program.source() and "recompute" not in program.options)
    seed = next(seed for seed in fit if not _refused(seed))
    monkeypatch.setattr(echo, "optimize", wrong)
    found = symbols.run(seed)
    assert found is not None
    assert "step 0" in found
    smallest = shrunk(symbols, seed, found)
    assert "tanh" in smallest.source()
    assert len(smallest.needed()) <= 3
    script = tmp_path / "fault.py"
    script.write_text(symbols.script(seed, smallest, found))
    # it shows what echo does, which is right
    subprocess.run([sys.executable, str(script)], check=True, timeout=300)


def _refused(seed: int) -> bool:
    try:
        symbols.run(seed)
    except (Refused, Undefined):
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["symbols", "blocks"])
def test_driver_finds_no_differences_and_writes_json(kind: str, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "fuzz", "--minutes", "0.6", "--kinds", kind, "--json", str(result)]
    done = subprocess.run([*command, "--found", str(tmp_path / "found"), "--seed", "7"], capture_output=True, text=True,
                          check=False, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert f" {kind}: 0 differences" in done.stdout
    assert json.loads(result.read_text())["outcomes"][kind]["same"] > 5


@pytest.mark.slow
def test_process_that_dies_is_a_fault(tmp_path: Path) -> None:
    program = (
        "import os, sys; from fuzz import __main__ as driver; from fuzz import symbols\n"
        "symbols.run = lambda seed: os.kill(os.getpid(), 11)\n"
        "from fuzz import child; child.main('symbols', '5', '1')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode < 0 or "Segmentation" in done.stderr
    assert json.loads(done.stdout.splitlines()[0]) == {"seed": 5}


def sigmoids(layers: int) -> Program:
    shape = (64, 16, 16, 16)
    lines = [argument("data0", shape)]
    for _ in range(layers):
        at = len(lines)
        conv = f"mx.sym.Convolution({{0}}, kernel=(3, 3), pad=(1, 1), num_filter=16, name='conv{at}')"
        lines.append(Line(conv, (at - 1,), shape))
        lines.append(Line(f"mx.sym.BatchNorm({{0}}, fix_gamma=False, name='norm{at}')", (at,), shape))
        lines.append(Line("mx.sym.Activation({0}, act_type='sigmoid')", (at + 1,), shape))
    return Program(tuple(lines), (len(lines) - 1,), options={"fuse": False, "max_overhead": None}, how={"storage": 1})


def test_storage_that_does_not_grow_is_no_fault() -> None:
    assert symbols.check(sigmoids(4)) is None


@pytest.mark.slow
def test_storage_that_grows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo.passes.analysis.with_layout_copies", lambda training, _: training)  # copies do not count
    monkeypatch.setattr("echo.passes.analysis.copied", lambda *_: frozenset())
    found = symbols.check(sigmoids(5))
    assert found is not None
    assert found.startswith("storage: ")


@BOTH
def test_storage_is_counted_of_large_programs_that_may_not_grow(kind: Any) -> None:
    wide = kind.draw(next(seed for seed in range(100) if is_wide(seed)))
    assert wide.how["storage"]
    assert not wide.options["fuse"]
    assert "recompute" not in wide.options
    assert "storage" not in kind.draw(0).how


def test_products_of_wide_maps_have_no_weights_of_gigabytes() -> None:
    """Four products of 8192 by 8192 took this program beyond the time for one case."""
    shapes, _, _ = symbols.symbol_of(symbols.draw(225152579)).infer_shape()
    assert max(map(math.prod, shapes)) <= 1 << 24
