"""What does the package cost a Python program that does not use it? Interpreter starts, side by side.

    python -m benchmarks.startup [--rounds 200]

Two environments of the same interpreter, one with the two files that an installation puts into site-packages. The cases
start in turn, so that a slow moment of the machine hits all of them. ``start_ms`` is the median time of a start that
does nothing, ``added_ms`` the median of the differences to the start without the package in the same round. Below the
noise of a whole start (``spread_ms``, between the quartiles) lies ``file_ms``: the median time that Python takes for
echo_startup.pth alone, measured inside of as many fresh processes, and without the package for a .pth file that holds
a comment. Writes results/startup.json.
"""

from __future__ import annotations

import compileall
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import parser, save

ROOT = Path(__file__).resolve().parents[1]
WITHOUT, UNSET, ON = "no package", "ECHO unset", "ECHO=1, mxnet never imported"
FILE = """
import site, sys, time
sys.path.append(sys.argv[1])
started = time.perf_counter()
site.addpackage(sys.argv[1], sys.argv[2], set())
print(time.perf_counter() - started)
"""


def environment(folder: Path, package: bool) -> Path:
    """Makes a virtual environment without pip, and with echo's two files where ``package``; its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    if package:  # as CMakeLists.txt installs them, and pip compiles them
        shutil.copy(ROOT / "startup" / "echo_startup.pth", site)
        shutil.copy(ROOT / "echo" / "startup.py", site / "_echo_startup.py")
        compileall.compile_dir(site, quiet=1)
    else:
        (folder / "comment.pth").write_text("# nothing to do\n", encoding="utf-8")
    return site


def variables(case: str) -> dict[str, str]:
    """The environment variables of a case."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("ECHO", "PYTHON"))}
    return {**plain, "ECHO": "1"} if case == ON else plain


def start(python: Path, case: str) -> float:
    """Seconds of an interpreter that starts and ends."""
    started = time.perf_counter()
    subprocess.run([str(python), "-c", "pass"], env=variables(case), check=True)
    return time.perf_counter() - started


def read(python: Path, file: Path, case: str) -> float:
    """Seconds that Python takes for a .pth file, where it has not read it before."""
    command = [str(python), "-S", "-c", FILE, str(file.parent), file.name]
    return float(subprocess.run(command, env=variables(case), check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measures all cases."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=200)
    rounds = options.parse_args().rounds
    with tempfile.TemporaryDirectory() as text:
        folders = {name: Path(text) / name for name in ("without", "with")}
        sites = {name: environment(folder, name == "with") for name, folder in folders.items()}
        pythons = {name: folder / "bin" / "python" for name, folder in folders.items()}
        cases = {WITHOUT: "without", UNSET: "with", ON: "with"}
        files = {case: sites["with"] / "echo_startup.pth" for case in cases}
        files[WITHOUT] = folders["without"] / "comment.pth"
        starts: dict[str, list[float]] = {case: [] for case in cases}
        reads: dict[str, list[float]] = {case: [] for case in cases}
        for number in range(-3, rounds):  # the first ones fill the caches of the file system
            for case in list(cases)[:: 1 if number % 2 else -1]:
                seconds = start(pythons[cases[case]], case)
                if number >= 0:
                    starts[case].append(seconds)
                    reads[case].append(read(pythons[cases[case]], files[case], case))
    rows = []
    for case, seconds in starts.items():
        added = statistics.median(mine - none for mine, none in zip(seconds, starts[WITHOUT]))
        quarter, half, three_quarters = statistics.quantiles(seconds, n=4)
        row = {"case": case, "rounds": rounds, "start_ms": 1e3 * half, "spread_ms": 1e3 * (three_quarters - quarter)}
        row.update(added_ms=1e3 * added, file_ms=1e3 * statistics.median(reads[case]))
        rows.append(row)
        print(
            f"{case}: {row['start_ms']:.2f} ms, spread {row['spread_ms']:.2f} ms, added {row['added_ms']:+.3f} ms, "
            f"the file {row['file_ms']:.3f} ms"
        )
    print("written:", save("startup", rows).name)


if __name__ == "__main__":
    main()
