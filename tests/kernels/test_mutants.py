"""The checks catch wrong kernels: each of these bugs, compiled into a library of its own, fails them."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import shutil
import signal
import subprocess
import traceback
from pathlib import Path
from typing import Any, Iterator

import pytest

from echo.kernels import library
from tests.kernels.attention_forms import FORMS, check_form
from tests.kernels.cases import check_case, check_draws, check_reqs, draw
from tests.kernels.large_scores import SIZES as SCORES
from tests.kernels.large_scores import VARIANTS, check_large_scores
from tests.kernels.table import BUGS, MORE, PARAMS, SMALL
from tests.support import kernel_calls
from tests.support.kernel_calls import ADD, call

SOURCES = Path(__file__).parents[2] / "echo" / "kernels"
COMPILER = shutil.which("g++")
_PASSED, _CAUGHT, _ERROR = 0, 3, 4  # how a child ends


def compile_all(sources: Path, into: Path, files: list[Path]) -> None:
    """Objects of these files; one process takes them all, which is quicker than one each."""
    command = [COMPILER or "", "-std=c++17", "-O1", "-fPIC", "-I", str(sources / "include"), "-I", str(sources), "-c"]
    subprocess.run([*command, *map(str, files)], cwd=into, check=True)


def link(objects: list[Path], library_file: Path) -> None:
    subprocess.run([COMPILER or "", "-shared", *map(str, objects), "-o", str(library_file)], check=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Objects of the right sources."""
    if COMPILER is None:
        pytest.skip("there is no g++ to build wrong kernels with")
    folder = tmp_path_factory.mktemp("objects")
    compile_all(SOURCES, folder, [*SOURCES.glob("*.cc"), *SOURCES.glob("cpu/*.cc")])
    return folder


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes `call` use another library, until the test ends."""

    def use_library(file: Path) -> None:
        monkeypatch.setattr(library, "kernels_library", functools.partial(ctypes.CDLL, str(file)))
        kernel_calls.of_backend.cache_clear()

    yield use_library
    kernel_calls.of_backend.cache_clear()


def check_kernel(name: str) -> None:
    if name == "attention":
        for form in FORMS:
            check_form(call, form, "float32")
    if name == "draw_mask":
        check_draws(call)
    sizes = [SMALL[name], *MORE.get(name, [])]
    for params, absent, dims in itertools.product(PARAMS.get(name, [{}]), (False, True), sizes):
        case = draw(name, dims, seed=3, absent=absent, **params)
        check_case(case, call)
        check_reqs(case, [0 if array is None else ADD for array in case.inputs], call)
    for size, variant in itertools.product(SCORES, VARIANTS) if name == "attention" else ():
        check_large_scores(call, size, "float32", variant)


def is_caught(name: str) -> bool:
    """Whether a check fails. It runs in a child, whose memory a wrong kernel may damage; that it dies of it counts."""
    if (pid := os.fork()) == 0:
        signal.alarm(300)  # a child that hangs is ended by it
        status = _ERROR
        try:
            check_kernel(name)
            status = _PASSED
        except AssertionError:
            status = _CAUGHT
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in {_PASSED, _CAUGHT, *(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS))}
    return status != _PASSED


@pytest.mark.slow
def test_a_right_kernel_is_not_caught(built: Path, tmp_path: Path, use: Any) -> None:
    link(list(built.glob("*.o")), tmp_path / "right.so")
    use(tmp_path / "right.so")
    assert not is_caught("bias_act")


@pytest.mark.slow
def test_the_right_sources_pass(built: Path, tmp_path: Path, use: Any) -> None:
    link(list(built.glob("*.o")), tmp_path / "right.so")
    use(tmp_path / "right.so")
    for name in SMALL:
        check_kernel(name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file", "text", "instead"), BUGS, ids=[f"{bug[0]}-{k}" for k, bug in enumerate(BUGS)])
def test_bugs_are_caught(name: str, file: str, text: str, instead: str, built: Path, tmp_path: Path, use: Any) -> None:
    wrong = tmp_path / "kernels"
    shutil.copytree(SOURCES, wrong, ignore=shutil.ignore_patterns("*.py", "*.so", "__pycache__"))
    source = wrong / "cpu" / file
    assert text in source.read_text(), "the source has changed: so must this bug"
    source.write_text(source.read_text().replace(text, instead))
    # functions of the headers in the list are always inlined, so that no other file's copy of it takes its place
    users = [source] if file.endswith(".cc") else [wrong / "cpu" / f"{name}.cc"]
    compile_all(wrong, tmp_path, users)
    objects = {path.name: path for folder in (built, tmp_path) for path in folder.glob("*.o")}
    link(list(objects.values()), tmp_path / "wrong.so")
    use(tmp_path / "wrong.so")
    assert is_caught(name)
