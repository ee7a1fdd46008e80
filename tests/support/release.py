"""Checks the output of `make wheels`: is it complete, does it run on old machines, and what does it bring along?

    python tests/support/release.py FOLDER PLATFORM

FOLDER holds the sources and the wheel. Prints what auditwheel says of the wheel, and writes ``NAME-VERSION.cdx.json``
next to it: a software bill of materials (CycloneDX) of the wheel, its requirements and those of the extra ``report``,
as they are installed today. MXNet is not in there: which of its wheels is taken is the user's choice.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

NATIVE = {"echo/kernels/libecho_kernels.so"} | {
    f"echo/native/libecho_{name}.so" for name in ("counter", "hook", "planner")
}
NEEDED = NATIVE | {"echo_startup.pth", "_echo_startup.py", "echo/py.typed", "echo/report/page.html.jinja"}
SOURCES = {
    *("CMakeLists.txt", "Makefile", "CHANGELOG.md", "LICENSE", "tests/conftest.py"),
    "echo/kernels/cuda/lstm.cuh",
}


def faults(wheel: Path, sources: Path, platform: str) -> list[str]:
    """The faults of them, each in one line."""
    contents = zipfile.ZipFile(wheel)
    inside = set(contents.namelist())
    with tarfile.open(sources) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    found = [f"{wheel.name} lacks {name} (is there a C++ compiler?)" for name in sorted(NEEDED - inside)]
    found += [f"{sources.name} lacks {name}" for name in sorted(SOURCES - packed)]
    if not wheel.name.endswith(f"-py3-none-{platform}.whl"):
        found.append(f"expected a wheel NAME-VERSION-py3-none-{platform}.whl, got {wheel.name}")
    shared = {name for name in inside if ".so" in name}
    found += [f"{wheel.name} brings {name}, which is not asked for" for name in sorted(shared - NATIVE)]
    found += [
        f"{wheel.name}: {name} has the test mode of fuzz/poison.cc"
        for name in sorted(shared)
        if b"echo_poison" in contents.read(name)
    ]
    found += [
        f"{sources.name} brings {name}, which was built" for name in sorted(packed) if name.endswith((".so", ".whl"))
    ]
    return found


def kernels_faults(wheel: Path) -> list[str]:
    """The files of PTX that the kernels' library of a wheel lacks in the wheel, or that it does not know."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        library = ctypes.CDLL(archive.extract("echo/kernels/libecho_kernels.so", folder))
        library.echo_cuda_ptx_files.restype = ctypes.c_char_p
        known = {f"echo/kernels/ptx/{name}" for name in library.echo_cuda_ptx_files().decode().split()}
        packed = {name for name in archive.namelist() if name.endswith(".ptx")}
    found = [f"{wheel.name} lacks {name}: make ptx" for name in sorted(known - packed)]
    return found + [f"{wheel.name} brings {name}, which is of other sources" for name in sorted(packed - known)]


def bill(wheel: Path, extra: str) -> dict[str, Any]:
    """The software bill of materials of a wheel with this extra, installed into an environment of its own.

    Raises:
        subprocess.CalledProcessError: it cannot be installed, or read.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        python = str(Path(folder) / "bin" / "python")
        install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, f"{wheel}[{extra}]"], check=True)
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", python]
        result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    (own,) = (part for part in result["components"] if part["name"] == "mxnet-echo")
    result["components"].remove(own)
    own.pop("externalReferences", None)  # the folder in which it was built
    result["metadata"]["component"] = own
    return result


def main(folder: Path, platform: str) -> int:
    """Writes the bill, prints what was found; 1 where something is wrong."""
    (wheel,), (sources,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    if found := faults(wheel, sources, platform) or kernels_faults(wheel):
        print(*(f"error: {fault}" for fault in found), sep="\n", file=sys.stderr)
        return 1
    subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], check=True)
    parts = bill(wheel, "report")
    name, version, *_ = wheel.name.split("-")
    path = folder / f"{name}-{version}.cdx.json"
    path.write_text(json.dumps(parts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"\n{sources}, {wheel}: the native libraries and the start-up files inside")
    print(f"{path}: {parts['bomFormat']} {parts['specVersion']}, {len(parts['components'])} requirements")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
