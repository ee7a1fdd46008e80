"""Faults of wheels and archives of sources are found before they are released."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Iterable

from tests.support.release import NEEDED, SOURCES, faults

PLATFORM = "manylinux_2_28_x86_64"


def built(folder: Path, inside: Iterable[str], packed: Iterable[str], platform: str = PLATFORM) -> tuple[Path, Path]:
    """A wheel and an archive with empty files of these names."""
    wheel = folder / f"mxnet_echo-1.0-py3-none-{platform}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in inside:
            archive.writestr(name, "")
    sources = folder / "mxnet_echo-1.0.tar.gz"
    with tarfile.open(sources, "w:gz") as tar:
        for name in packed:
            tar.addfile(tarfile.TarInfo(f"mxnet_echo-1.0/{name}"), io.BytesIO())
    return wheel, sources


def test_whole_release_has_no_faults(tmp_path: Path) -> None:
    assert faults(*built(tmp_path, NEEDED, SOURCES), PLATFORM) == []


def test_missing_file_is_named(tmp_path: Path) -> None:
    hook = "echo/native/libecho_hook.so"
    found = faults(*built(tmp_path, NEEDED - {hook}, SOURCES - {"LICENSE"}), PLATFORM)
    assert found == [
        f"mxnet_echo-1.0-py3-none-{PLATFORM}.whl lacks {hook} (is there a C++ compiler?)",
        "mxnet_echo-1.0.tar.gz lacks LICENSE",
    ]


def test_a_second_libgomp_and_built_files_in_the_sources_are_named(tmp_path: Path) -> None:
    grafted = "mxnet_echo.libs/libgomp-a34b3233.so.1"
    found = faults(*built(tmp_path, NEEDED | {grafted}, SOURCES | {"echo/native/libecho_hook.so"}), PLATFORM)
    assert [fault.split(" brings ")[1].split(",")[0] for fault in found] == [grafted, "echo/native/libecho_hook.so"]


def test_a_wheel_for_this_machine_alone_is_refused(tmp_path: Path) -> None:
    (found,) = faults(*built(tmp_path, NEEDED, SOURCES, "linux_x86_64"), PLATFORM)
    assert found.startswith(f"expected a wheel NAME-VERSION-py3-none-{PLATFORM}.whl, got ")


def test_test_mode_in_a_library_is_named(tmp_path: Path) -> None:
    hook = "echo/native/libecho_hook.so"
    wheel, sources = built(tmp_path, NEEDED - {hook}, SOURCES)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(hook, b"\0echo_poison\0")
    assert faults(wheel, sources, PLATFORM) == [f"{wheel.name}: {hook} has the test mode of fuzz/poison.cc"]
