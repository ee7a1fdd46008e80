"""How kernels.ptx is made: its stamp, and what is read of the assembler; `test_cuda_ptx` looks at the file itself."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from echo.kernels.cuda import ptx
from echo.kernels.cuda.ptx import PtxError

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


def test_the_first_line_follows_names_and_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cuda"
    folder.mkdir()
    monkeypatch.setattr(ptx, "HERE", folder)
    (tmp_path / "formulas.h").write_text("0")
    (folder / "kernels.cu").write_text("a")
    (folder / "one.cuh").write_text("b")
    (folder / "notes.txt").write_text("c")
    assert [path.name for path in ptx.sources()] == ["formulas.h", "kernels.cu", "one.cuh"]
    seen = {ptx.first_line()}
    (folder / "one.cuh").rename(folder / "two.cuh")
    seen.add(ptx.first_line())
    (folder / "two.cuh").write_text("bb")
    seen.add(ptx.first_line())
    (tmp_path / "formulas.h").write_text("1")
    seen.add(ptx.first_line())
    assert len(seen) == 4
    (folder / "notes.txt").write_text("other")
    assert ptx.first_line() in seen


def test_comments_go_and_the_version_is_stamped() -> None:
    text = "// a comment\n.version 7.8\n\n  mov.u32   %r1, 0; // why\n.target sm_50\n"
    assert ptx._stripped(text) == f".version {ptx.VERSION}\nmov.u32 %r1, 0;\n.target sm_50\n"
    for wrong in ("", ".version 1\n.version 2\n"):
        with pytest.raises(PtxError, match=r"expected one line with a version, got [02]"):
            ptx._stripped(wrong)


def test_registers_and_spills_are_read(assembler: str) -> None:
    assert ptx.assemble(assembler, ptx.PTX, "sm_80") == {"one": (32, 12), "two": (7, 0)}
    with pytest.raises(PtxError, match="no such thing"):
        ptx.assemble(assembler, ptx.PTX, "sm_50")
    assert ptx.known_architectures(assembler) == ["sm_50", "sm_80"]


def test_spills_are_reported(assembler: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not ptx.report({"sm_80": assembler})
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
