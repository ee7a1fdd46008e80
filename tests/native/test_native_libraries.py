"""Native libraries that are missing, damaged or of another version, and libraries that are not MXNet."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

from echo import native
from echo.errors import NativeError
from echo.frontend.install import install_hook
from tests.support.hooked_network import LIBMXNET, clones, forget, marked, network

pytestmark = pytest.mark.usefixtures("hook_on")

ROOT = Path(__file__).parents[2]
FOLDER = Path(next(path for path in native.__path__ if (Path(path) / "libecho_hook.so").is_file()))


@pytest.fixture
def _empty_folder(hook_on: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package looks for its libraries in a folder of the test."""
    native.uninstall()
    monkeypatch.setattr(native, "__path__", [str(tmp_path)])
    forget()


def errors() -> list[str]:
    """The errors of the four ways in."""

    def capture() -> None:
        with native.capture():
            pass

    found = []
    ways: list[Callable[[], Any]] = [lambda: native.install(LIBMXNET), capture, native.planner_library]
    for way in ways:
        with pytest.raises(NativeError) as caught:
            way()
        found.append(str(caught.value))
    reason = install_hook()
    assert reason == found[0]
    return found


@pytest.mark.parametrize("name", ["counter", "hook", "planner"])
def test_installed_library_has_no_test_mode(name: str) -> None:
    """Memory is overwritten and plans are recorded by `fuzz/poison.cc` only."""
    content = (FOLDER / f"libecho_{name}.so").read_bytes()
    assert not [word for word in (b"echo_poison", b"echo_recorded") if word in content]


@pytest.mark.usefixtures("_empty_folder")
def test_missing_library() -> None:
    hook, capture, planner = errors()
    assert hook == capture
    for name, text in (("libecho_hook.so", hook), ("libecho_planner.so", planner)):
        assert text.startswith(f"{name} is not installed")
        assert "apt-get install g++" in text
        assert "reinstall mxnet-echo" in text
    assert not native.installed()


@pytest.mark.usefixtures("_empty_folder")
@pytest.mark.parametrize("content", [b"", b"garbage", b"\x7fELF" + bytes(200)], ids=["empty", "text", "cut"])
def test_damaged_library(tmp_path: Path, content: bytes) -> None:
    for name in ("libecho_hook.so", "libecho_planner.so"):
        (tmp_path / name).write_bytes(content)
    for text in errors():
        assert text.startswith(str(tmp_path))
        assert re.search(r"is damaged|cannot be loaded", text)
        assert "reinstall mxnet-echo" in text


@pytest.mark.parametrize("part", [0.03, 0.5])
@pytest.mark.parametrize("name", ["libecho_hook.so", "libecho_planner.so"])
def test_library_cut_in_the_middle(tmp_path: Path, name: str, part: float) -> None:
    """In a process of its own: the loader of the system reads past the end of such a file, and is killed."""
    whole = (FOLDER / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(part * len(whole))])
    code = (
        "from echo import native\nfrom echo.errors import NativeError\n"
        f"native.__path__ = [{str(tmp_path)!r}]\n"
        f"try: native._load({name!r})\nexcept NativeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, f"exit status {done.returncode} {done.stderr[-300:]}"
    assert re.search(r"(is damaged|cannot be loaded), reinstall mxnet-echo", done.stdout)


@pytest.mark.usefixtures("_empty_folder")
def test_library_of_another_version(tmp_path: Path) -> None:
    """Each in the other's place: they load, and have none of the functions."""
    shutil.copy(FOLDER / "libecho_hook.so", tmp_path / "libecho_planner.so")
    shutil.copy(FOLDER / "libecho_planner.so", tmp_path / "libecho_hook.so")
    hook, capture, planner = errors()
    assert "has no function echo_error, reinstall mxnet-echo" in hook
    assert "has no function echo_capture_begin, reinstall mxnet-echo" in capture
    assert "has no function echo_planner_new, reinstall mxnet-echo" in planner


@pytest.mark.usefixtures("_empty_folder")
def test_library_that_comes_back_is_used(tmp_path: Path) -> None:
    errors()
    for name in ("libecho_hook.so", "libecho_planner.so"):
        shutil.copy(FOLDER / name, tmp_path / name)
    assert install_hook() == ""
    assert clones(marked(network(), tanh="0")) == 1
    native.uninstall()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/nowhere/libmxnet.so", "is not loaded in this process"),
        (str(FOLDER / "libecho_planner.so"), "does not export"),
        ("", "libmxnet.so does not export|is not loaded"),
    ],
)
def test_library_that_is_not_mxnet_raises_native_error(path: str, reason: str) -> None:
    native.planner_library()
    native.uninstall()
    with pytest.raises(NativeError, match=f"the hook does not fit this MXNet: .*({reason})"):
        native.install(path)
    assert not native.installed()
    assert clones(marked(network(), tanh="0")) == 0


# Functions under MXNet's names that end the process: other libraries must be refused before they run.
IMPOSTOR = """
#include <cstdlib>
#define TRAP(number, name) \\
  extern "C" void trap##number() __asm__(name); \\
  extern "C" void trap##number() { std::abort(); }
"""
EXPORTED = re.compile(r'resolve\(lib, "(\w+)"')


@pytest.fixture(scope="module")
def impostor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to build with")
    folder = tmp_path_factory.mktemp("impostor")
    names = EXPORTED.findall((ROOT / "echo" / "native" / "hook" / "mxnet_api.cc").read_text())
    assert len(names) >= 8
    traps = "".join(f'TRAP({number}, "{name}")\n' for number, name in enumerate(names))
    (folder / "mxnet.cc").write_text(IMPOSTOR + traps)
    made = folder / "libmxnet.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(folder / "mxnet.cc"), "-o", str(made)], check=True)
    return made


INSTALL = """
import ctypes, sys
from echo import native
from echo.errors import NativeError
loaded = ctypes.CDLL(sys.argv[1])
try:
    native.install(sys.argv[1])
except NativeError as error:
    print(error)
print(native.installed())
"""


@pytest.mark.parametrize("strip", [False, True])
def test_mxnet_of_another_compiler_is_refused(impostor: Path, strip: bool, tmp_path: Path) -> None:
    """Its memory may be laid out otherwise, under the same names; nothing of it is called, read or written."""
    path = Path(shutil.copy(impostor, tmp_path / "libmxnet.so"))
    expected = "the hook does not fit this MXNet: it was built by GCC: "
    if strip:
        if shutil.which("objcopy") is None:
            pytest.skip("there is no objcopy to strip with")
        subprocess.run(["objcopy", "-R", ".comment", str(path)], check=True)
        expected = "the hook does not fit this MXNet: it does not say which compiler built it"
    done = subprocess.run(
        [sys.executable, "-c", INSTALL, str(path)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(expected)
    assert done.stdout.endswith("\nFalse\n")


LEAKS = """
import ctypes
import mxnet as mx
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, infer_binding, symbol_of
from echo.frontend.capture import bind_without_memory
from echo.ir.op_spec import PLAN_ATTRIBUTE

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ord small maps mapped most free used rest keep".split()]

heap = ctypes.CDLL(None).mallinfo2
heap.restype = Heap

def leaked(action):
    for _ in range(10):
        action()
    before = heap().used
    for _ in range(50):
        action()
    return (heap().used - before) / 50

def failing(bind):
    def action():
        try:
            bind()
        except Exception:
            return
        raise AssertionError("it was bound")
    return action

x = mx.sym.Variable("data")
for i in range(40):
    x = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=8, name=f"fc{i}"), act_type="tanh", name=f"a{i}")
assert install_hook() == ""
graph = graph_of(x)
number = next(number for number, node in enumerate(graph.nodes) if node.name == "a5")
bad = symbol_of(graph.with_attrs({number: {PLAN_ATTRIBUTE: "0@999999"}}))
binding = infer_binding(bad, {"data": (4, 8)})
wrong = x + mx.sym.Variable("w", shape=(77, 77))
print(leaked(failing(lambda: bind_without_memory(bad, binding, mx.cpu()))))
print(leaked(failing(lambda: wrong.simple_bind(mx.cpu(), data=(4, 8)))))
"""


@pytest.mark.slow
def test_an_error_after_mxnets_pass_leaks_nothing() -> None:
    """But what MXNet itself loses whenever a bind fails."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", LEAKS], capture_output=True, text=True, check=False,
                          cwd=ROOT)  # fmt: skip
    if "mallinfo2" in done.stderr:
        pytest.skip("this C library has no mallinfo2")
    assert done.returncode == 0, done.stderr[-2000:]
    ours, stock = map(float, done.stdout.split())
    assert ours < stock + 10_000
