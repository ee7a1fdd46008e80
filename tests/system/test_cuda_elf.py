"""What shared libraries ask for, against readelf's answer and on damaged files."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from echo.system.cuda import wanted_by

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def library(folder: Path, *flags: str) -> Path:
    made = folder / "libthis.so"
    (folder / "this.c").write_text("int number(void) { return 7; }\n")
    subprocess.run(["g++", "-shared", "-fPIC", *flags, "-o", made, folder / "this.c"], check=True, timeout=60)
    return made


@needs_compiler
def test_needed_libraries_are_those_of_readelf(tmp_path: Path) -> None:
    made = library(tmp_path, "-Wl,--no-as-needed", "-ldl", "-lpthread", "-lrt")
    said = subprocess.run(["readelf", "-d", made], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", said)
    assert len(needed) > 3
    assert wanted_by(made) == (tuple(needed), ())


@needs_compiler
@pytest.mark.parametrize("tag", ["--enable-new-dtags", "--disable-new-dtags"])
def test_folders_of_its_own(tmp_path: Path, tag: str) -> None:
    made = library(tmp_path, f"-Wl,{tag},-rpath,$ORIGIN/lib:${{ORIGIN}}:/opt/cuda/lib64")
    assert wanted_by(made).folders == (tmp_path / "lib", tmp_path, Path("/opt/cuda/lib64"))


@needs_compiler
def test_a_static_program_wants_nothing(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    made = tmp_path / "main"
    subprocess.run(["g++", "-static", "-o", made, tmp_path / "main.c"], check=True, timeout=60)
    assert wanted_by(made) == ((), ())


@needs_compiler
def test_damaged_files_are_told_apart_from_libraries(tmp_path: Path) -> None:
    """Cut off anywhere, or with any byte of the tables turned: an answer or a ValueError, in no time."""
    whole = library(tmp_path).read_bytes()
    damaged = tmp_path / "damaged.so"
    kinds = set()
    for end in range(0, len(whole), 97):
        damaged.write_bytes(whole[:end])
        kinds.add(answer(damaged))
    for place in range(16, 700, 3):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        kinds.add(answer(damaged))
    assert kinds == {"error", "answer"}


def answer(path: Path) -> str:
    try:
        wanted_by(path)
    except ValueError:
        return "error"
    return "answer"


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(200), b"import mxnet\n" * 20])
def test_file_without_library_raises_value_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.so"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"expected a shared library.*some\.so"):
        wanted_by(path)
