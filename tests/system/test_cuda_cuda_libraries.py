"""CUDA libraries of NVIDIA's pip wheels, as stubs of the same layout: those loaded, in order, and those left out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from echo.system import cuda
from echo.system.cuda import load_for, of_wheels
from tests.support.stub_libraries import ASKED, mxnet, stub, wheels

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

# The result of load_for, the libraries in the process then, and whether libmxnet.so can be loaded.
PROGRAM = """
import ctypes, re, sys
from pathlib import Path
from echo.system.cuda import load_for
site, library = sys.argv[1:3]
sys.path.insert(0, site)
missing = load_for(Path(library))
lines = Path("/proc/self/maps").read_text().splitlines()
print(missing)
print(sorted({line.split("/", 1)[1] for line in lines if "/nvidia/" in line}))
ctypes.CDLL(library)
print("loaded", *(ctypes.CDLL(name).number_libcudart() for name in sys.argv[3:]))
"""


def loaded(site: Path, library: Path, *names: str, **environment: str) -> tuple[str, list[str], str]:
    """The output of `PROGRAM`; the last line is empty if libmxnet.so cannot be loaded."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, site, library, *names], capture_output=True, text=True,
                          timeout=60, check=False, env={"PATH": "/usr/bin:/bin", **environment})  # fmt: skip
    lines = [*done.stdout.splitlines(), ""]
    assert len(lines) >= 3, done.stderr
    paths = lines[1].strip("[]").replace("'", "").split(", ")
    return lines[0], [Path(path).name for path in paths if path], lines[2]


@pytest.mark.every(3)
@pytest.mark.parametrize("wheel", sorted(ASKED))
def test_all_that_a_wheel_asks_for_is_loaded(wheel: str, tmp_path: Path) -> None:
    """Those that they need of each other come first: no folder is on any path, as in NVIDIA's oldest wheels."""
    driver = stub(tmp_path / "driver" / "libcuda.so.1", 1)
    names = [name for name in ASKED[wheel] if name != "libcuda.so.1"]
    made = wheels(tmp_path / "site", names)
    library = mxnet(tmp_path / "site", [driver, *(made[name] for name in names)])
    missing, paths, said = loaded(tmp_path / "site", library, LD_LIBRARY_PATH=str(driver.parent))
    assert missing == ""
    assert set(paths) == set(made)
    assert said == "loaded"


def test_library_on_the_loaders_path_is_left_to_it(tmp_path: Path) -> None:
    made = wheels(tmp_path / "site", ["libcudart.so.11.0", "libcublas.so.11"])
    own = stub(tmp_path / "cuda" / "libcudart.so.11.0", 5)
    library = mxnet(tmp_path / "site", [made[name] for name in ("libcudart.so.11.0", "libcublas.so.11")])
    environment = {"LD_LIBRARY_PATH": str(own.parent)}
    missing, paths, said = loaded(tmp_path / "site", library, "libcudart.so.11.0", **environment)
    assert (missing, paths, said) == ("", ["libcublas.so.11", "libcublasLt.so.11"], "loaded 5")


def test_library_on_the_rpath_is_left_to_the_loader(tmp_path: Path) -> None:
    made = wheels(tmp_path / "site", ["libcudart.so.11.0"])
    stub(tmp_path / "site" / "mxnet" / "libcudart.so.11.0", 7)
    library = mxnet(tmp_path / "site", list(made.values()), "-Wl,-rpath,$ORIGIN")
    assert loaded(tmp_path / "site", library, "libcudart.so.11.0") == ("", [], "loaded 7")


def test_library_that_is_not_needed_is_not_loaded(tmp_path: Path) -> None:
    """Other wheels of NVIDIA's, as torch brings them, next to a wheel without CUDA."""
    wheels(tmp_path / "site", ["libcudart.so.12", "libcublas.so.12"])
    assert loaded(tmp_path / "site", mxnet(tmp_path / "site", [])) == ("", [], "loaded")


def test_first_library_not_found_is_named(tmp_path: Path) -> None:
    made = wheels(tmp_path / "elsewhere", ["libcublas.so.11", "libcudart.so.11.0"])
    driver = stub(tmp_path / "elsewhere" / "libcuda.so.1", 1)
    wheels(tmp_path / "site", ["libcudart.so.11.0"])
    library = mxnet(tmp_path / "site", [made["libcudart.so.11.0"], made["libcublas.so.11"], driver])
    assert loaded(tmp_path / "site", library) == ("libcublas.so.11", ["libcudart.so.11.0"], "")
    wheels(tmp_path / "site", ["libcublas.so.11"])
    assert loaded(tmp_path / "site", library)[0] == "libcuda.so.1"


def test_missing_library_that_is_not_of_cuda_is_left_to_the_loader(tmp_path: Path) -> None:
    other = stub(tmp_path / "elsewhere" / "libgfortran.so.3", 1)
    assert loaded(tmp_path / "site", mxnet(tmp_path / "site", [other])) == ("", [], "")


def test_library_is_found_under_messages_in_another_language() -> None:
    german = "libcudart.so.11.0: Kann die Shared-Object-Datei nicht öffnen: Datei oder Verzeichnis nicht gefunden"
    found = cuda._NOT_FOUND.match(german)
    assert found is not None
    assert found[1] == "libcudart.so.11.0"
    assert cuda._NOT_FOUND.match("/usr/lib/libcudart.so.11.0: file too short") is None


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x02\x01", b"text " * 100])
def test_a_damaged_library_counts_as_missing(content: bytes, tmp_path: Path) -> None:
    made = wheels(tmp_path / "site", ["libcudart.so.11.0"])
    library = mxnet(tmp_path / "site", list(made.values()))
    made["libcudart.so.11.0"].write_bytes(content)
    assert loaded(tmp_path / "site", library)[0] == "libcudart.so.11.0"


def test_libraries_that_need_each_other_end(tmp_path: Path) -> None:
    first = stub(tmp_path / "site" / "nvidia" / "cublas" / "lib" / "libcublas.so.11", 1)
    second = stub(tmp_path / "site" / "nvidia" / "cudnn" / "lib" / "libcudnn.so.8", 1, [first])
    stub(first, 1, [second])
    assert loaded(tmp_path / "site", mxnet(tmp_path / "site", [first]))[0] == "libcublas.so.11"


def test_no_library_is_the_callers_fault(tmp_path: Path) -> None:
    (tmp_path / "libmxnet.so").write_bytes(b"no library")
    with pytest.raises(OSError, match="expected a shared library"):
        load_for(tmp_path / "libmxnet.so")
    with pytest.raises(OSError, match="missing"):
        load_for(tmp_path / "missing.so")


def test_the_first_of_several_wheels_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "two"):
        lib = tmp_path / folder / "nvidia" / "cublas" / "lib"
        lib.mkdir(parents=True)
        (lib / "libcublas.so.11").touch()
        (lib / "notes.txt").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "absent"), str(tmp_path / "two"), str(tmp_path / "one")])
    assert of_wheels() == {"libcublas.so.11": tmp_path / "two" / "nvidia" / "cublas" / "lib" / "libcublas.so.11"}
