"""How PTX is compiled, and what is read of the assembler; `test_cuda_ptx` looks at the PTX itself."""

from __future__ import annotations

import re
import shutil
import stat
import sys
from pathlib import Path

import pytest

from echo.errors import KernelError
from tests.support import ptx
from tests.support.ptx import PtxError, ptx_files

packed = ptx.put  # before a test patches it

ASSEMBLER = """#!/bin/sh
case "$1" in --help) echo "'sm_50','sm_80','sm_999'"; exit 0;; esac
case "$1" in -arch=sm_50) echo "no such thing" >&2; exit 1;; esac
cat >&2 <<'TEXT'
ptxas info    : Compiling entry function 'one' for 'sm_80'
ptxas info    : Function properties for one
    0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 32 registers
ptxas info    : Compiling entry function 'two' for 'sm_80'
ptxas info    : Used 7 registers
TEXT
"""


@pytest.fixture
def assembler(tmp_path: Path) -> str:
    """Something that speaks as ptxas does."""
    path = tmp_path / "ptxas"
    path.write_text(ASSEMBLER)
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


def test_a_family_is_compiled_once(tmp_path: Path) -> None:
    path = ptx.put("rnn", tmp_path)
    assert re.fullmatch(r"rnn-[0-9a-f]{16}\.ptx", path.name)
    path.write_text("// mine\n// end\n")
    assert ptx.put("rnn", tmp_path).read_text() == "// mine\n// end\n"
    newer = tmp_path / "rnn-0123456789abcdef.ptx"  # of other sources
    newer.write_text("// other\n// end\n")
    assert ptx.put("rnn", tmp_path) == path
    path.write_text("// cut off")
    again = ptx.put("rnn", tmp_path).read_text()  # NVRTC may number a few registers otherwise than at the build
    assert again.endswith("// end\n")
    assert kernels_of(again) == kernels_of(ptx.texts()["rnn"]) != []


def kernels_of(text: str) -> list[str]:
    return re.findall(r"\.entry (\w+)", text)


def test_unknown_family_and_folder_that_cannot_be_written_raise(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"NVRTC does not compile the CUDA kernels of nonsense: .*nonsense\.cuh"):
        ptx.put("nonsense", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelError, match=r"file: PTX cannot be written there: Not a directory"):
        ptx.put("rnn", tmp_path / "file")


def test_main_removes_files_of_other_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx, "FOLDER", tmp_path)
    monkeypatch.setattr(ptx, "put", lambda family: Path(shutil.copy(packed(family), tmp_path)))
    monkeypatch.setattr(sys, "argv", ["ptx.py"])
    (tmp_path / "rnn-0123456789abcdef.ptx").write_text("")
    assert ptx.main() == 0
    assert {path.name for path in tmp_path.iterdir()} == {packed(family).name for family in ptx_files()}


def test_registers_and_spills_are_read(assembler: str) -> None:
    assert ptx.assemble(assembler, Path("any.ptx"), "sm_80") == {"one": (32, 12), "two": (7, 0)}
    with pytest.raises(PtxError, match="no such thing"):
        ptx.assemble(assembler, Path("any.ptx"), "sm_50")
    assert ptx.known_architectures(assembler) == ["sm_50", "sm_80"]


def test_spills_are_reported(assembler: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not ptx.report({"sm_80": assembler}, [Path("any.ptx")])
    said = capsys.readouterr().out
    assert "sm_80: 2 kernels, 32 registers at most (one), spills {'one': 12}" in said
    assert "no ptxas here knows them (`make sass` installs one): sm_50, " in said


def test_each_architecture_has_the_first_assembler_that_knows_it(
    assembler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_text(ASSEMBLER.replace("'sm_50',", "'sm_90',"))
    other.chmod(0o755)
    monkeypatch.setattr(ptx, "tools", lambda name: {"ptxas": [str(other), assembler]}[name])
    assert ptx.assemblers() == {"sm_50": assembler, "sm_80": str(other), "sm_90": str(other)}


def test_tools_are_on_the_path_and_in_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "somewhere" / "toolbox"
    (package / "bin").mkdir(parents=True)
    for folder in (tmp_path, package / "bin"):
        (folder / "ptxas").write_text("#!/bin/sh\n")
        (folder / "ptxas").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(ptx, "PACKAGES", {"toolbox": "bin", "not_there.at_all": "bin"})
    assert ptx.tools("ptxas") == [str(tmp_path / "ptxas"), str(package / "bin" / "ptxas")]
    assert ptx.tools("nvdisasm") == []
