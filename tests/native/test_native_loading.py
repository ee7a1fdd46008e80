"""Libraries are found in the first folder that has them, and refused where they are not whole."""

from __future__ import annotations

import ctypes
import shutil
import sys
from pathlib import Path

import pytest

from echo import native
from echo.errors import NativeError
from echo.native import function, load

NAME = "libecho_planner.so"


@pytest.fixture(scope="module")
def built() -> Path:
    return next(path for folder in native.__path__ if (path := Path(folder) / NAME).is_file())


def test_the_first_folder_counts(built: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    shutil.copy(built, second / NAME)
    assert load(NAME, [str(first), str(second)])._name == str(second / NAME)
    shutil.copy(built, first / NAME)
    assert load(NAME, [str(first), str(second)])._name == str(first / NAME)


def test_a_library_that_is_nowhere(tmp_path: Path) -> None:
    with pytest.raises(NativeError, match=f"{NAME} is not installed"):
        load(NAME, [str(tmp_path)])


@pytest.mark.parametrize("damage", ["cut", "text", "short"])
def test_a_library_that_is_not_whole(damage: str, built: Path, tmp_path: Path) -> None:
    whole = built.read_bytes()
    damaged = {"cut": whole[:-1], "text": b"#!" + whole[2:], "short": whole[:40]}[damage]
    (tmp_path / NAME).write_bytes(damaged)
    with pytest.raises(NativeError, match="cannot be loaded, reinstall mxnet-echo: the file is damaged"):
        load(NAME, [str(tmp_path)])


def test_a_library_that_the_system_refuses(built: Path, tmp_path: Path) -> None:
    whole = bytearray(built.read_bytes())
    whole[18:20] = b"\xff\xff"  # another machine
    (tmp_path / NAME).write_bytes(whole)
    with pytest.raises(NativeError, match=f"{NAME} cannot be loaded, reinstall mxnet-echo: "):
        load(NAME, [str(tmp_path)])


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's names")
def test_functions_have_their_types() -> None:
    library = ctypes.CDLL("libm.so.6")
    assert function(library, "sqrt", ctypes.c_double, ctypes.c_double)(9) == 3.0
    with pytest.raises(NativeError, match=r"libm\.so\.6 has no function no_such_function, reinstall mxnet-echo"):
        function(library, "no_such_function", None)
