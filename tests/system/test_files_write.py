"""Files that a user names are written in one step: the old content or the new one, links and devices stay."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator

import pytest

from echo.report import export
from echo.report.profile import Profile
from echo.system.files import write_in_one_step
from tests.report.profiles import made_up


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Lets the process write files of ``size`` bytes at most, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_file_is_written_in_one_step_or_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_in_one_step(path, b"old")
    write_in_one_step(str(path), b"new")
    assert path.read_bytes() == b"new"

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_in_one_step(path, b"newer")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("plan.json", b"new")]


def test_full_disk_keeps_the_old_file_and_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"old")
    with file_size_limit(8), pytest.raises(OSError, match="too large") as raised:
        write_in_one_step(path, "longer than eight bytes")
    assert raised.value.filename == str(path)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("plan.json", b"old")]


def test_link_stays_and_its_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    path, link = tmp_path / "plan.json", tmp_path / "link.json"
    path.write_bytes(b"old")
    path.chmod(0o600)
    link.symlink_to(path)
    write_in_one_step(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_fifo_is_written_to_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_in_one_step(path, b"plan")
    assert os.read(reader, 100) == b"plan"
    os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_standard_output_that_leads_to_a_file_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    code = "from echo.system.files import write_in_one_step; write_in_one_step('/dev/stdout', 'plan')"
    with open(path, "wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
        assert os.fstat(file.fileno()).st_ino == path.stat().st_ino
    assert path.read_text(encoding="utf-8") == "plan"
    assert Path("/dev/stdout").is_symlink()


@pytest.mark.parametrize(
    "save",
    [Profile.save, export.save_trace, export.save_torch_snapshot, lambda profile, path: profile.plan.save(path)],
    ids=["profile", "trace", "torch_snapshot", "plan"],
)
def test_full_disk_keeps_a_saved_file(save: Callable[[Profile, Path], object], tmp_path: Path) -> None:
    path, profile = tmp_path / "file", made_up(40)
    save(profile, path)
    old = path.read_bytes()
    with file_size_limit(8), pytest.raises(OSError, match="too large"):
        save(profile, path)
    assert path.read_bytes() == old
