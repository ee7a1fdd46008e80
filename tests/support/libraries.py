"""The native libraries, built in another way than they are installed, under a command and its children."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]


def compiler() -> str:
    """GCC's C++ compiler.

    Raises:
        LookupError: there is none.
    """
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None or shutil.which("cmake") is None:
        raise LookupError("g++ and cmake are needed: sudo apt install g++ cmake (or python -m pip install cmake)")
    return found


NATIVE, KERNELS = ("echo_hook", "echo_planner", "echo_counter"), ("echo_kernels",)
ALL = (*NATIVE, *KERNELS)


def build(name: Path, flags: str, options: Sequence[str] = (), targets: Sequence[str] = ALL) -> Path:
    """The folder with the libraries that are built with these flags of the compiler and options of CMake.

    They are built in a folder of this name in ``build``. Those that are no ``targets`` are taken as they are installed.

    Raises:
        subprocess.CalledProcessError: a build failed, and said why.
    """
    made = ROOT / "build" / name
    installed = made.with_name(f"{made.name}-libraries")
    settings = {"CXX_COMPILER": compiler(), "CXX_FLAGS": f"-O1 -g {flags}", "BUILD_TYPE": "None"}
    defined = [f"-DCMAKE_{name}={value}" for name, value in settings.items()]
    command = ["cmake", "-S", str(ROOT), "-B", str(made), *defined, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    command = ["cmake", "--build", str(made), "--parallel", "2", "--target", *targets]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    installed.mkdir(exist_ok=True)
    for library in made.glob("libecho_*.so"):
        shutil.copy(library, installed)
    return installed


def environment(libraries: Path) -> Mapping[str, str]:
    """The variables under which a command takes the libraries of a folder."""
    paths = [str(ROOT / "tests" / "site"), os.environ.get("PYTHONPATH", "")]
    return {"ECHO_LIBRARIES": str(libraries), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
