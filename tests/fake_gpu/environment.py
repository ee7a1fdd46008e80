"""The fake device made ready for a CUDA wheel of MXNet: libraries, emulated kernels, environment variables.

::

    python -m tests.fake_gpu.environment FOLDER WHEELS

builds it into FOLDER, and lays its libraries out below WHEELS as NVIDIA's pip wheels do, for a Python that has that
folder on ``sys.path``; ``WHEELS/variables.sh`` sets the variables that a shell needs for it.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path

from tests.fake_gpu.libraries import build
from tests.kernels.cuda_emulation import built
from tests.support.stub_libraries import WHEELS

SETTINGS = {
    "FAKE_CUDA_DEVICES": "2",
    "FAKE_CUDA_GEMM": "1",
    "FAKE_CUDA_LAZY": "1",
    "MXNET_CUDNN_LIB_CHECKING": "0",
    "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
}
_DRIVER = re.compile(r"lib(cuda|fakecuda_core)\.so")


def libmxnet() -> Path:
    """The libmxnet.so of this Python, which cannot be imported before its CUDA libraries are there.

    Raises:
        SystemExit: there is none.
    """
    spec = importlib.util.find_spec("mxnet")
    if spec is None or spec.origin is None:
        sys.exit("error: expected MXNet's CUDA wheel in this environment, found none: pip install mxnet-cu112==1.9.1")
    return Path(spec.origin).with_name("libmxnet.so")


def prepare(folder: Path) -> dict[str, str]:
    """Builds the device into a folder; the environment variables of a process that runs on it.

    Raises:
        SystemExit: this Python has no MXNet.
        RuntimeError: a compiler failed; the message has what it printed.
    """
    build(libmxnet(), folder)
    shutil.copy(built().kernels, folder / "kernels.so")
    return {**SETTINGS, "LD_LIBRARY_PATH": str(folder), "FAKE_CUDA_KERNELS": str(folder / "kernels.so")}


def lay_out(folder: Path, site: Path) -> None:
    """Puts the device's libraries where NVIDIA's pip wheels have theirs, and those of the driver into ``driver``."""
    shutil.rmtree(site, ignore_errors=True)
    for library in folder.glob("lib*.so*"):
        of_driver = _DRIVER.match(library.name)
        place = site / "driver" if of_driver else site / "nvidia" / WHEELS[library.name.split(".")[0]] / "lib"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)


def main() -> int:
    """Builds both folders; 2 where they are not given."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    folder, site = (Path(text).resolve() for text in sys.argv[1:])
    variables = prepare(folder)
    lay_out(folder, site)
    variables.update(LD_LIBRARY_PATH=str(site / "driver"), PYTHONPATH=str(site))
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    (site / "variables.sh").write_text("".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
