"""Without the library of kernels nothing is fused: the plan says why, and every bit stays."""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Callable

import mxnet as mx
import pytest

import echo
from echo import kernels, native
from echo.errors import PlanError
from echo.frontend import framework, install
from echo.kernels import library
from tests.kernels.cuda_emulation import Emulated
from tests.kernels.cuda_emulation import built as built_emulation
from tests.support.fused_models import EXAMPLES
from tests.support.training import Record, assert_same, bind, random_arrays, train

ROOT = Path(__file__).parents[2]
EXAMPLE = EXAMPLES["lstm layer"]()
pytestmark = pytest.mark.usefixtures("cheap_planning")


def built(name: str) -> Path:
    folders = (*kernels.__path__, *native.__path__)
    return next(path for path in (Path(folder) / name for folder in folders) if path.is_file())


LIBRARY = built("libecho_kernels.so")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder instead of the one that holds the kernels, in a process that has loaded none."""
    assert install.extension_blocker() == "", "this is what the process goes on with"
    found = tmp_path / "kernels"
    found.mkdir()
    again = functools.lru_cache(maxsize=None)
    monkeypatch.setattr(kernels, "__path__", [str(found)])
    monkeypatch.setattr(library, "kernels_library", again(library.kernels_library.__wrapped__))
    monkeypatch.setattr(framework, "extension_blocker", again(install.extension_blocker.__wrapped__))
    return found


def trained(symbol: mx.sym.Symbol) -> Record:
    return train(bind(symbol, random_arrays(EXAMPLE.symbol, EXAMPLE.shapes)), steps=2)


def check_unfused(*reasons: str) -> None:
    """By hand, strictly, and in transparent mode."""
    expected = trained(EXAMPLE.symbol)
    optimized = echo.optimize(EXAMPLE.symbol, strict=True, max_overhead=None)
    assert_same(trained(optimized), expected)
    (plan,) = optimized.plans
    (note,) = (note for note in plan.remarks if note.startswith("no operator is fused: "))
    assert all(reason in note for reason in reasons)
    assert not plan.fused
    assert plan.recomputed, "the rest of echo works"
    for strict in (False, True):
        with echo.enable(strict=strict, max_overhead=None):
            assert_same(trained(EXAMPLE.symbol), expected)


def test_a_missing_library(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "echo"):
        check_unfused("libecho_kernels.so is not installed; it is built by a C++ compiler")
    assert not caplog.records


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda library: b"",
    "text": lambda library: b"not a library\n",
    "header alone": lambda library: library[:64],
    "cut off": lambda library: library[: len(library) // 2],
    "another machine": lambda library: library[:18] + b"\xb7\x00" + library[20:],
}


@pytest.mark.every(2)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_library(folder: Path, damage: str) -> None:
    (folder / LIBRARY.name).write_bytes(DAMAGE[damage](LIBRARY.read_bytes()))
    check_unfused(f"{folder / LIBRARY.name} cannot be loaded, reinstall mxnet-echo")


def test_another_library_in_its_place(folder: Path) -> None:
    shutil.copy(built("libecho_planner.so"), folder / LIBRARY.name)
    check_unfused(f"{folder / LIBRARY.name} has no function echo_cuda_places, reinstall mxnet-echo")


def test_fusion_comes_back_with_the_library(folder: Path) -> None:
    check_unfused("is not installed")
    kernels.__path__[:] = [str(LIBRARY.parent)]
    library.kernels_library.cache_clear()
    framework.extension_blocker.cache_clear()
    assert echo.plan(EXAMPLE.symbol, grad_req="write", **EXAMPLE.shapes).fused


FAILING_GPUS = {
    "an old driver": (0, {"module": 222, "version": 8000}, "supports CUDA 8.0 and refuses the kernels, which need 9.0"),
    "kernels that are not compiled": (0, {"module": 218}, "the compiler's log"),
    "no memory": (0, {"module": 2}, "loading sum_rows_f32: FAKE_ERROR"),
    "launches that fail": (0, {"fails": 719}, "launching sum_rows_f32: FAKE_FAILED"),
    "a device that is not there": (9, {}, "opening a device: FAKE_ERROR"),
}


@pytest.mark.every(3)
@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")
@pytest.mark.parametrize("name", FAILING_GPUS)
def test_a_gpu_that_does_not_run_the_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a context of that device would have it: nothing is fused, one note says why, and no step fails."""
    number, settings, reason = FAILING_GPUS[name]
    emulated = Emulated(built_emulation().driver, built_emulation().kernels)
    device_blocker = functools.lru_cache(maxsize=None)(install.device_blocker.__wrapped__)
    monkeypatch.setattr(framework, "device_blocker", lambda ctx: device_blocker(mx.gpu(number)))
    emulated.set(**settings)
    emulated.driver.fake_new_contexts()
    try:
        check_unfused(f"the kernels do not run on gpu({number}): ", reason)
    finally:
        emulated.set(module=0, fails=0, version=12000)


def test_a_cpu_needs_no_driver() -> None:
    assert install.device_blocker(mx.cpu()) == ""


def test_a_plan_with_fused_operators_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(framework, "extension_blocker", install.extension_blocker)
        plan = echo.plan(EXAMPLE.symbol, grad_req="write", **EXAMPLE.shapes)
    assert plan.fused
    with pytest.raises(PlanError, match=r"the plan has fused operators: libecho_kernels\.so is not installed"):
        echo.plan(EXAMPLE.symbol, grad_req="write", plan=plan, **EXAMPLE.shapes)


def test_plans_of_a_process_that_has_them_are_not_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the disk, or in memory."""
    with monkeypatch.context() as patch:
        patch.setattr(framework, "extension_blocker", install.extension_blocker)
        assert echo.plan(EXAMPLE.symbol, grad_req="write", **EXAMPLE.shapes).fused
    check_unfused("is not installed")


# In processes of their own -----------------------------------------------------------------------------------------


def printed(code: str, tmp_path: Path, **environment: str) -> object:
    """The last line that a program prints, as JSON."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    head = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", head + textwrap.dedent(code)], capture_output=True, text=True,
        timeout=120, check=False, cwd=tmp_path, env={**clean, "ECHO_CACHE_DIR": str(tmp_path), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_library_of_another_echo(tmp_path: Path) -> None:
    code = """
        import json
        import echo
        from echo.frontend import install
        install.READS = {**install.READS, "kernel_of_tomorrow": ("1", "1", "1")}
        from tests.support.fused_models import EXAMPLES
        example = EXAMPLES["lstm layer"]()
        plan = echo.plan(example.symbol, grad_req="write", strict=True, **example.shapes)
        print(json.dumps([len(plan.fused), [note for note in plan.remarks if note.startswith("no operator")]]))
    """
    (count, notes) = printed(code, tmp_path)  # type: ignore[misc]
    assert count == 0
    (note,) = notes
    assert note.endswith("is of another echo, reinstall mxnet-echo: it has no kernel 'kernel_of_tomorrow'")


@pytest.mark.slow
@pytest.mark.parametrize(("fuse", "loaded"), [("0", False), ("1", True)])
def test_kernels_are_loaded_only_if_fusion_is_on(tmp_path: Path, fuse: str, loaded: bool) -> None:
    code = """
        import json
        from pathlib import Path
        import mxnet as mx
        from tests.support.fused_models import EXAMPLES
        example = EXAMPLES["lstm layer"]()
        executor = example.symbol.simple_bind(mx.cpu(), **example.shapes)
        print(json.dumps([type(executor).__name__, "libecho_kernels" in Path("/proc/self/maps").read_text()]))
    """
    found = printed(code, tmp_path, ECHO="1", ECHO_MAX_OVERHEAD="none", ECHO_FUSE=fuse)
    assert found == ["PlannedExecutor", loaded]
