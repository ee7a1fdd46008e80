"""The hook in MXNet's passes: on, off, on again; damaged libraries; errors, threads and forked children."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Iterator

import mxnet as mx
import mxnet.libinfo
import numpy as np
import pytest

from echo import native
from echo.errors import EchoError, GraphError, NativeError
from echo.frontend import install
from echo.frontend.capture import bind_without_memory, training_graph
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, infer_binding, symbol_of
from echo.ir.op_spec import PLAN_ATTRIBUTE, RANGE_ATTRIBUTE

LIBMXNET: str = mxnet.libinfo.find_lib_path()[0]
ROOT = Path(__file__).parents[2]
FOLDER = Path(next(path for path in native.__path__ if (Path(path) / "libecho_hook.so").is_file()))
SHAPES = {"data": (8, 6)}


@pytest.fixture(autouse=True)
def _hook() -> Iterator[None]:
    """The hook is on before and after each test."""
    assert install_hook() == ""
    yield
    forget()
    assert install_hook() == ""


def forget() -> None:
    """The libraries are looked up again at their next use."""
    native._load.cache_clear()
    native.planner_library.cache_clear()


def network(width: int = 16) -> mx.sym.Symbol:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=width, name="fc1")
    hidden = mx.sym.tanh(hidden, name="tanh")
    scores = mx.sym.FullyConnected(hidden, num_hidden=4, name="fc2")
    return mx.sym.MakeLoss(mx.sym.sum(scores, name="sum"), name="loss")


def marked(symbol: mx.sym.Symbol, **outputs: str) -> mx.sym.Symbol:
    """The symbol with the plan attribute on these nodes."""
    graph = graph_of(symbol)
    numbers = {node.name: number for number, node in enumerate(graph.nodes)}
    return symbol_of(graph.with_attrs({numbers[name]: {PLAN_ATTRIBUTE: text} for name, text in outputs.items()}))


def bind(symbol: mx.sym.Symbol) -> mx.executor.Executor:
    return bind_without_memory(symbol, infer_binding(symbol, SHAPES), mx.cpu())


def clones(symbol: mx.sym.Symbol) -> int:
    return bind(symbol).debug_str().count("_echo\nInputs:")


# On and off ---------------------------------------------------------------------------------------------------


def test_on_off_and_on_again() -> None:
    planned = marked(network(), tanh="0")
    for _ in range(3):
        assert native.installed()
        assert clones(planned) == 1
        native.uninstall()
        assert not native.installed()
        assert clones(planned) == 0
        native.install(LIBMXNET)


def test_installing_twice_is_harmless() -> None:
    native.install(LIBMXNET)
    native.install(LIBMXNET)
    assert clones(marked(network(), tanh="0")) == 1, "not one clone for each call"
    native.uninstall()
    native.uninstall()
    assert clones(marked(network(), tanh="0")) == 0


def test_graphs_without_a_plan_are_not_changed() -> None:
    with_hook = bind(network()).debug_str()
    native.uninstall()
    assert bind(network()).debug_str() == with_hook


def test_executors_outlive_the_hook() -> None:
    symbol = marked(network(), tanh="0")
    executor = symbol.simple_bind(mx.cpu(), **SHAPES)
    native.uninstall()
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward()
    assert np.isfinite(executor.grad_dict["fc1_weight"].asnumpy()).all()


def test_without_the_hook_nothing_is_captured() -> None:
    native.uninstall()
    with native.capture() as caught:
        bind(network())
    assert caught.graph is None
    symbol = network()
    with pytest.raises(GraphError, match="the native hook saw no training graph"):
        training_graph(graph_of(symbol), infer_binding(symbol, SHAPES), mx.cpu())


def test_a_hook_that_fails_its_check_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NativeError("the hook does not fit this MXNet: test")

    native.uninstall()
    monkeypatch.setattr(install, "check_hook", fail)
    assert install_hook() == "the hook does not fit this MXNet: test"
    assert not native.installed()
    assert clones(marked(network(), tanh="0")) == 0


# Libraries that are not there, or not what they should be -----------------------------------------------------


@pytest.fixture
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package looks for its libraries in a folder of the test."""
    native.uninstall()
    monkeypatch.setattr(native, "__path__", [str(tmp_path)])
    forget()


def errors() -> list[str]:
    """What the four ways in say."""

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
def test_what_is_not_mxnet_is_refused(path: str, reason: str) -> None:
    native.planner_library()
    native.uninstall()
    with pytest.raises(NativeError, match=f"the hook does not fit this MXNet: .*({reason})"):
        native.install(path)
    assert not native.installed()
    assert clones(marked(network(), tanh="0")) == 0


# Functions under MXNet's names that end the process: what is not MXNet of the wheels must be refused before they run.
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
def test_an_error_behind_mxnets_pass_leaks_nothing() -> None:
    """But what MXNet itself loses whenever a bind fails."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", LEAKS], capture_output=True, text=True, check=False,
                          cwd=ROOT)  # fmt: skip
    if "mallinfo2" in done.stderr:
        pytest.skip("this C library has no mallinfo2")
    assert done.returncode == 0, done.stderr[-2000:]
    ours, stock = map(float, done.stdout.split())
    assert ours < stock + 10_000


# Capturing ----------------------------------------------------------------------------------------------------


def test_capture_without_a_bind_is_none() -> None:
    with native.capture() as caught:
        pass
    assert caught.graph is None


def test_a_capture_is_that_of_its_own_block() -> None:
    with native.capture() as first:
        bind(network(16))
    with native.capture() as second:
        pass
    bind(network(24))
    with native.capture() as third:
        bind(network(32))
    widths = [caught.graph and caught.graph["nodes"][1]["shapes"] for caught in (first, second, third)]
    assert widths == [[[16, 6]], None, [[32, 6]]]


def test_the_last_of_several_binds_is_kept() -> None:
    with native.capture() as caught:
        for width in (16, 24, 32):
            bind(network(width))
    assert caught.graph["nodes"][1]["shapes"] == [[32, 6]]


def test_behind_an_error_nothing_is_read() -> None:
    read: list[Any] = []

    def interrupted() -> None:
        with native.capture(read=read.append):
            bind(network())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert read == []


def test_errors_in_the_block_pass_through() -> None:
    def fail() -> None:
        with native.capture():
            bind(network())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with native.capture() as caught:
        pass
    assert caught.graph is None


def test_names_of_all_kinds_are_read() -> None:
    name = 'quote " backslash \\ tab \t line \n bell \x07 Ü 句'
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(mx.sym.var("data"), name=name)))
    with native.capture() as caught:
        bind(symbol)
    assert name in {node["name"] for node in caught.graph["nodes"]}


def test_inference_graphs_are_captured_too() -> None:
    symbol = network()
    binding = infer_binding(symbol, SHAPES, grad_req="null")
    with native.capture() as caught:
        bind_without_memory(symbol, binding, mx.cpu())
    assert not any(node["op"].startswith("_backward") for node in caught.graph["nodes"])


# Errors inside the passes -------------------------------------------------------------------------------------


def test_errors_of_mxnet_arrive() -> None:
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.shuffle(mx.sym.var("data"))))
    for planned in (symbol, marked(symbol, **{graph_of(symbol).nodes[-2].name: "0"})):
        with pytest.raises(mx.MXNetError, match="_shuffle is non-differentiable"):
            bind(planned)
    assert clones(marked(network(), tanh="0")) == 1, "and nothing is broken then"


@pytest.mark.parametrize(
    ("symbol", "op"),
    [
        (lambda: mx.sym.random.uniform(shape=(8, 16), name="noise"), "_random_uniform"),
        (lambda: mx.sym.random.normal_like(mx.sym.var("data2", shape=(8, 16)), name="noise"), "_random_normal_like"),
        (lambda: mx.sym.sample_normal(mx.sym.var("m", shape=(8, 16)), mx.sym.var("s", shape=(8, 16)), name="noise"),
         "_sample_normal"),
    ],
)  # fmt: skip
def test_random_operators_are_refused(symbol: Callable[[], mx.sym.Symbol], op: str) -> None:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="fc")
    whole = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(hidden * symbol())))
    assert bind(whole)
    with pytest.raises(mx.MXNetError, match=rf"node 'noise' \({op}\) cannot be recomputed: it draws random"):
        bind(marked(whole, noise="0"))


@pytest.mark.parametrize("text", ["1", "0,1", "7", "-1", "x", "0x", "0;1", "0,,0", ",", "99999999999999999999", "0@",
                                  "0@x", "0@3,3", "0@4,1", "@1", "0@1,", "+0", " 0", "0 ", "0,0"])  # fmt: skip
def test_outputs_that_are_not_there_are_refused(text: str) -> None:
    with pytest.raises(mx.MXNetError, match=r"node 'tanh': expected ascending output numbers below 1, .* got"):
        bind(marked(network(), tanh=text))
    assert clones(marked(network(), tanh="0")) == 1


@pytest.mark.parametrize("position", [10, 10**8])
def test_positions_beyond_the_backward_pass_are_refused(position: int) -> None:
    with pytest.raises(mx.MXNetError, match=r"node 'tanh': expected positions below \d, or none"):
        bind(marked(network(), tanh=f"0@{position}"))


@pytest.mark.parametrize("text", ["", "x", "-2", "-1x", "+3", " 3", "3s", "9999999999"])
def test_match_ranges_that_are_none_are_refused(text: str) -> None:
    symbol = network()
    graph = graph_of(symbol)
    number = next(number for number, node in enumerate(graph.nodes) if node.name == "tanh")
    with pytest.raises(mx.MXNetError, match="node 'tanh': expected a number, -1 or -1s in __echo_match_range__"):
        bind(symbol_of(graph.with_attrs({number: {RANGE_ATTRIBUTE: text}})))


def test_plans_on_variables_mean_nothing() -> None:
    assert clones(marked(network(), fc1_weight="0", data="5")) == 0


def test_a_refused_plan_leaks_nothing() -> None:
    """A hundred refusals: the half-made clones go with them."""

    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    bad = marked(network(), fc1="0", tanh="9")
    for turn in range(300):
        with contextlib.suppress(mx.MXNetError):
            bind(bad)
        if turn == 100:
            before = resident()
    assert resident() - before < 4 << 20


# Threads and children -----------------------------------------------------------------------------------------


def test_threads_capture_their_own_graphs() -> None:
    failures: list[str] = []
    barrier = threading.Barrier(4)

    def work(width: int) -> None:
        try:
            barrier.wait(timeout=30)
            for turn in range(10):
                symbol = network(width)
                with native.capture() as caught:
                    executor = bind(marked(symbol, tanh="0") if turn % 2 else symbol)
                shapes = caught.graph["nodes"][1]["shapes"]
                names = [node["name"] for node in caught.graph["nodes"]]
                if shapes != [[width, 6]] or names.count("tanh_echo") != turn % 2:
                    failures.append(f"{width}: {shapes} {names}")
                del executor
        except Exception as error:
            failures.append(f"{width}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(8 + number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


def test_a_thread_without_a_capture_disturbs_none() -> None:
    with native.capture() as caught:
        other = threading.Thread(target=lambda: bind(network(40)))
        other.start()
        other.join(timeout=60)
    assert caught.graph is None


def test_a_forked_child_plans_and_trains() -> None:
    parent = train(marked(network(), tanh="0"))
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        with contextlib.suppress(BaseException):
            with native.capture() as caught:
                bind(marked(network(), tanh="0"))
            captured = any(node["name"] == "tanh_echo" for node in caught.graph["nodes"])
            code = 0 if captured and train(marked(network(), tanh="0")) == parent else 2
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert clones(marked(network(), tanh="0")) == 1


def train(symbol: mx.sym.Symbol) -> bytes:
    """The gradient of a step, to the last bit."""
    executor = symbol.simple_bind(mx.cpu(), **SHAPES)
    generator = np.random.RandomState(0)
    for array in executor.arg_arrays:
        array[:] = generator.normal(0, 1, array.shape)
    executor.forward(is_train=True)
    executor.backward()
    return bytes(executor.grad_dict["fc1_weight"].asnumpy().tobytes())


def test_recomputing_changes_no_bit_and_no_interface() -> None:
    plain, planned = network(), marked(network(), tanh="0", fc1="0")
    assert train(plain) == train(planned)
    assert plain.list_arguments() == planned.list_arguments()
    assert plain.list_outputs() == planned.list_outputs()


def test_errors_are_echos_own() -> None:
    assert issubclass(NativeError, EchoError)


def test_without_the_hook_pointwise_operators_are_not_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_installed", None)
    assert not native.keeps_unfused()
    with native.unfused():
        assert native.hook_library().echo_keep_unfused(0) in (0, -1), "nothing was changed"
