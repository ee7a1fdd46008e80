"""What goes wrong around transparent mode: faults inside echo, other people's patches, caches, second copies."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import mxnet as mx
import pytest
from mxnet.symbol import Symbol

import echo
from benchmarks.models import SMALL
from echo import native
from echo.estimators.cost_table import CostTable
from echo.frontend.capture import planned_megabytes
from echo.frontend.plan_key import device_key
from echo.passes.analysis import Differentiate
from echo.planning.planner import Planner

pytestmark = pytest.mark.usefixtures("cheap_planning")
ROOT = Path(__file__).resolve().parents[2]
MODEL = SMALL["nmt_large"]()
STOCK = Symbol.simple_bind, Symbol.bind


@pytest.fixture(autouse=True)
def off_afterwards() -> Iterator[None]:
    yield
    echo.disable()
    Symbol.simple_bind, Symbol.bind = STOCK


def executor() -> mx.executor.Executor:
    return MODEL.symbol.simple_bind(mx.cpu(), grad_req=MODEL.grad_req(), **MODEL.shapes)


@pytest.fixture
def plannings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each symbol that transparent mode plans, or takes from the plans that it remembers."""
    found: list[int] = []
    planned = Planner.plan

    def counted(*arguments: Any) -> Any:
        found.append(1)
        return planned(*arguments)

    monkeypatch.setattr(Planner, "plan", counted)
    return found


# Faults of echo --------------------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error()

    monkeypatch.setattr(Differentiate, "run", fail)


def test_a_warning_says_how_to_report_it_and_comes_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(monkeypatch, lambda: RuntimeError("surprise"))
    echo.enable()
    for _ in range(3):
        executor()
    (record,) = caplog.records
    assert record.getMessage() == (
        "echo: bound without a plan: EchoError: RuntimeError: surprise (in the stage differentiate). "
        "If that looks like a fault of echo, please report it with the traceback, which ECHO_STRICT=1 shows."
    )
    failing(monkeypatch, lambda: echo.GraphError("another"))
    executor()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    echo.enable()
    executor()
    assert len(caplog.records) == 3, "switched on again, it warns again"


def test_strict_raises_faults_outside_the_pipeline_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr("echo.runtime.transparent.graph_of", fail)
    echo.enable()
    assert executor().outputs
    assert "ZeroDivisionError: surprise" in caplog.text
    echo.enable(strict=True)
    with pytest.raises(ZeroDivisionError, match="surprise"):
        executor()


@pytest.mark.slow
@pytest.mark.every(2)
@pytest.mark.parametrize("bound", ["auto", 0.02])
def test_a_budget_out_of_reach_gets_the_smallest_plan(caplog: pytest.LogCaptureFixture, bound: Any) -> None:
    echo.enable(memory_budget=1000, max_overhead=bound)
    found = executor()
    (record,) = caplog.records
    reachable = int(re.findall(r"least that can be reached is ([\d,]+) bytes", record.getMessage())[0].replace(",", ""))
    assert record.getMessage().endswith("The smallest plan is used.")
    plan = echo.plan(MODEL.symbol, memory_budget=reachable, max_overhead=bound, **MODEL.shapes)
    assert plan.after.total <= reachable
    assert planned_megabytes(found) == plan.after.planned >> 20
    echo.enable(memory_budget=1000, strict=True)
    with pytest.raises(echo.BudgetError):
        executor()


def test_an_unknown_policy_is_refused_at_once() -> None:
    with pytest.raises(echo.OptionError, match="expected one of"):
        echo.enable(policy="banana")
    assert (Symbol.simple_bind, Symbol.bind) == STOCK


# Other people's patches ------------------------------------------------------------------------------------------


def patched(calls: list[str], marks: bool = False) -> Callable[..., Any]:
    """A foreign wrapper around whatever ``simple_bind`` is now."""
    before = Symbol.simple_bind

    def theirs(symbol: Symbol, *args: Any, **kwargs: Any) -> mx.executor.Executor:
        calls.append("theirs")
        return before(symbol, *args, **kwargs)

    return functools.wraps(before)(theirs) if marks else theirs


@pytest.mark.parametrize("marks", [False, True])
def test_patched_before(plannings: list[int], marks: bool) -> None:
    calls: list[str] = []
    Symbol.simple_bind = theirs = patched(calls, marks)
    stock = planned_megabytes(executor())
    with echo.enable(max_overhead=None):
        assert planned_megabytes(executor()) <= stock / 2
        assert (len(calls), len(plannings)) == (2, 1)
    assert Symbol.simple_bind is theirs
    assert planned_megabytes(executor()) == stock


@pytest.mark.parametrize("marks", [False, True])
def test_patched_after(plannings: list[int], marks: bool) -> None:
    stock = planned_megabytes(executor())
    calls: list[str] = []
    echo.enable(max_overhead=None)
    Symbol.simple_bind = theirs = patched(calls, marks)
    assert planned_megabytes(executor()) <= stock / 2
    echo.disable()
    assert Symbol.simple_bind is theirs
    assert planned_megabytes(executor()) == stock
    assert (len(calls), len(plannings)) == (2, 1)
    for _ in range(2):
        with echo.enable(max_overhead=None):
            assert planned_megabytes(executor()) <= stock / 2
        assert Symbol.simple_bind is theirs
    assert (len(calls), len(plannings)) == (4, 3), "each bind is planned once, by one of two wrappers"
    assert planned_megabytes(executor()) == stock


def test_a_patch_that_is_taken_back_over_echo(plannings: list[int]) -> None:
    Symbol.simple_bind = patched([])
    echo.enable(max_overhead=None)
    Symbol.simple_bind = STOCK[0]  # as monkeypatch does it: echo's wrapper is gone with it
    executor()
    assert not plannings
    echo.enable(max_overhead=None)
    executor()
    assert len(plannings) == 1
    echo.disable()
    assert (Symbol.simple_bind, Symbol.bind) == STOCK


def test_a_fault_below_two_wrappers_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = iter(range(100))
    failing(monkeypatch, lambda: RuntimeError(f"surprise {next(numbers)}"))
    echo.enable()
    Symbol.simple_bind = patched([])
    echo.disable()
    echo.enable()
    executor()
    assert len(caplog.records) == 1


# Caches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["a file", "below a file", "half a table"])
def test_a_cache_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    folder = tmp_path / "folder"
    monkeypatch.setenv("ECHO_CACHE_DIR", str(folder if place != "below a file" else folder / "below"))
    if place == "half a table":
        whole = CostTable(device_key(mx.cpu()))
        whole.add("relu", 1e-5)
        whole.save()
        whole.path.write_bytes(whole.path.read_bytes()[:-9])
        (folder / f"{whole.path.name}abc.tmp").write_text("{")
    else:
        folder.write_text("in the way")
    echo.enable(max_overhead=None)
    with caplog.at_level(logging.DEBUG, "echo"):
        executor()
    assert "MB planned" in caplog.text
    warnings = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    (warning,) = warnings
    said = " is ignored, and its content is made again: " if place == "half a table" else "echo: nothing is kept in "
    assert said in warning
    if place == "half a table":
        assert json.loads(whole.path.read_text())["seconds"], "written again"


# Two copies ------------------------------------------------------------------------------------------------------

TWICE = """
import sys, mxnet as mx
import echo
first = echo
from echo.runtime import transparent
echo.enable(max_overhead=None)
for name in [name for name in sys.modules if name.split(".")[0] == "echo"]:
    del sys.modules[name]
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, {other!r})
import echo
assert echo is not first and echo.__file__.startswith({other!r}), echo.__file__
hidden = mx.sym.tanh(mx.sym.sigmoid(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=9)))
symbol = mx.sym.MakeLoss(mx.sym.FullyConnected(hidden, num_hidden=9))
for call in (echo.enable, lambda: echo.optimize(symbol), lambda: echo.plan(symbol, data=(3, 4))):
    try:
        call()
        raise SystemExit("not refused")
    except echo.UnsupportedError as error:
        print(error)
import logging
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
symbol.simple_bind(mx.cpu(), data=(3, 4))
transparent.disable()
assert not hasattr(mx.sym.Symbol.simple_bind, "__wrapped__")
"""


@pytest.mark.slow
def test_a_second_copy_of_the_package_is_refused(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "echo", tmp_path / "other" / "echo", ignore=shutil.ignore_patterns("__pycache__"))
    values = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TWICE.format(other=str(tmp_path / "other"))], capture_output=True,
        text=True, timeout=120, check=False, cwd=tmp_path, env={**values, "ECHO_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("two copies of echo in one process") == 3
    assert str(tmp_path / "other") in done.stdout
    assert "INFO:echo:echo:" in done.stdout, "the first copy goes on"


def test_a_second_copy_of_the_hook_is_refused(tmp_path: Path) -> None:
    import ctypes

    from echo.frontend.install import install_hook

    folder = next(Path(path) for path in native.__path__ if (Path(path) / "libecho_hook.so").is_file())
    shutil.copy(folder / "libecho_hook.so", tmp_path / "libother.so")
    other = ctypes.CDLL(str(tmp_path / "libother.so"))
    other.echo_error.restype = ctypes.c_char_p
    mxnet = mx.libinfo.find_lib_path()[0].encode()
    assert install_hook() == ""
    assert other.echo_install(mxnet) == 1
    assert b"another copy of it" in other.echo_error()
    assert b"libecho_hook.so" in other.echo_error()
    native.uninstall()
    assert other.echo_install(mxnet) == 0
    try:
        assert f"another copy of it, {tmp_path / 'libother.so'}, has wrapped" in install_hook()
        assert echo.plan(MODEL.symbol, **MODEL.shapes).applied in ("mirror", "none")
    finally:
        assert other.echo_uninstall() == 0
    assert install_hook() == ""


def test_a_reshape_beyond_the_budget_costs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    hidden = mx.sym.var("data")
    for layer in range(4):
        hidden = mx.sym.tanh(mx.sym.FullyConnected(hidden, num_hidden=32, name=f"fc{layer}"))
    symbol = mx.sym.LinearRegressionOutput(hidden, mx.sym.var("label"))
    requests = {name: "null" if name in ("data", "label") else "write" for name in symbol.list_arguments()}
    shapes = {"data": (64, 32), "label": (64, 32)}
    larger = {name: (4096, 32) for name in shapes}
    budget = echo.plan(symbol, **shapes).before.total
    with echo.enable(memory_budget=budget):
        bound = symbol.simple_bind(mx.cpu(), grad_req=requests, **shapes)
        assert not caplog.records
        assert bound.reshape(allow_up_sizing=True, **larger).arg_dict["data"].shape == (4096, 32)
    (record,) = caplog.records
    assert record.getMessage().endswith("The smallest plan is used.")
    with echo.enable(memory_budget=budget, strict=True):
        bound = symbol.simple_bind(mx.cpu(), grad_req=requests, **shapes)
        with pytest.raises(echo.BudgetError):
            bound.reshape(allow_up_sizing=True, **larger)
