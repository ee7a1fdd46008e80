"""Transparent mode with threads, forks, signals, data workers, and binds inside binds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterator

import mxnet as mx
import numpy as np
import pytest
from mxnet.symbol import Symbol

import echo
from benchmarks.models import SMALL, random_values
from echo.frontend import install
from echo.frontend.capture import planned_megabytes
from echo.frontend.mxnet_settings import MATCH_RANGE_VARIABLE, match_range
from echo.planning.planner import Planner
from echo.runtime import bind_plan
from echo.runtime.patches import PATCHES
from echo.system import files

ROOT = Path(__file__).resolve().parents[2]
MODEL = SMALL["nmt_large"]()
LIMIT = 120  # seconds after which something that waits is taken for deadlocked


@pytest.fixture(autouse=True)
def off_afterwards() -> Iterator[None]:
    yield
    echo.disable()


def executor(symbol: Symbol = MODEL.symbol) -> mx.executor.Executor:
    return symbol.simple_bind(mx.cpu(), grad_req=MODEL.grad_req(), **MODEL.shapes)


def program(script: str, tmp_path: Path, **environment: str) -> str:
    """What a process of its own prints; it cannot hang this one."""
    values = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], text=True, cwd=tmp_path, capture_output=True, timeout=LIMIT,
        check=False, env={**values, "ECHO_CACHE_DIR": str(tmp_path), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def gradients(bound: mx.executor.Executor) -> list[bytes]:
    for name, value in random_values(MODEL).items():
        bound.arg_dict[name][:] = value
    bound.forward(is_train=True)
    bound.backward()
    return [array.asnumpy().tobytes() for array in bound.grad_arrays if array is not None]


def run_together(*works: Callable[[], None]) -> None:
    """Runs these in threads that start at once; what one raises is raised here."""
    barrier, failures = threading.Barrier(len(works)), []

    def start(work: Callable[[], None]) -> None:
        try:
            barrier.wait(LIMIT)
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads), "deadlocked"
    if failures:
        raise failures[0]


# Threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("fuse", [False, True])
def test_threads_bind_at_once(fuse: bool) -> None:
    stock = executor()
    expected, megabytes = gradients(stock), planned_megabytes(stock)
    echo.enable(max_overhead=None, fuse=fuse)
    found: list[mx.executor.Executor] = []
    run_together(*[lambda: found.append(executor()) for _ in range(3)])
    assert len(found) == 3
    for bound in found:
        assert gradients(bound) == gradients(found[0])
        assert (gradients(bound) == expected) != fuse
        assert planned_megabytes(bound) <= megabytes / 2


@pytest.mark.usefixtures("cheap_planning")
def test_threads_infer_at_once_after_a_training_step() -> None:
    """Other shapes than those that were planned run as the original graph, whose CachedOp has not run before."""
    inputs = mx.nd.random.normal(shape=(20, 20, 16))
    for _ in range(8):
        block = mx.gluon.rnn.HybridSequentialRNNCell()
        block.add(mx.gluon.rnn.LSTMCell(12))
        block.add(mx.gluon.rnn.GRUCell(12))
        net = Unrolled(block)
        net.initialize()
        echo.optimize(net, max_overhead=None).hybridize()
        with mx.autograd.record():
            loss = net(inputs).sum()
        loss.backward()
        mx.nd.waitall()
        with ThreadPoolExecutor(3) as threads:
            got = list(threads.map(lambda at, net=net: net(inputs[at : at + 5]).asnumpy(), (0, 5, 10)))
        for at, array in zip((0, 5, 10), got):
            np.testing.assert_array_equal(array, net(inputs[at : at + 5]).asnumpy())


class Unrolled(mx.gluon.HybridBlock):
    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.cell.unroll(20, x, layout="NTC", merge_outputs=True)[0]


@pytest.mark.usefixtures("cheap_planning")
def test_switching_while_others_bind() -> None:
    before, wrappers = (Symbol.simple_bind, Symbol.bind), set(PATCHES._ours)
    small = mx.sym.MakeLoss(mx.sym.tanh(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3)))

    def switch() -> None:
        for _ in range(200):
            echo.enable()
            echo.disable()

    def bind() -> None:
        for _ in range(20):
            small.simple_bind(mx.cpu(), data=(2, 2))

    run_together(switch, switch, bind, bind)
    assert (Symbol.simple_bind, Symbol.bind) == before
    assert set(PATCHES._ours) <= wrappers


# Forks -----------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], object]) -> int:
    """The exit code of a forked child that does this: 0 where it gives something true, negative where it hung."""
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)
        code = 1
        with contextlib.suppress(BaseException):
            code = 0 if work() else 2
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.usefixtures("cheap_planning")
@pytest.mark.parametrize("fuse", [False, True])
def test_a_child_binds_while_another_thread_of_the_parent_holds_every_lock(
    monkeypatch: pytest.MonkeyPatch, fuse: bool
) -> None:
    monkeypatch.delenv(MATCH_RANGE_VARIABLE, raising=False)
    stock = gradients(executor())
    echo.enable(max_overhead=None, fuse=fuse)
    expected = gradients(executor())
    assert (expected == stock) != fuse
    monkeypatch.setattr(bind_plan, "PLANNER", Planner())
    monkeypatch.setattr("echo.planning.plan_cache.load", lambda *_: None)  # the child plans
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in (bind_plan.PLANNER.lock, PATCHES.lock, install._install_lock):
                stack.enter_context(lock.held())
            stack.enter_context(match_range(2))
            held.set()
            done.wait(LIMIT)

    def work() -> bool:
        if MATCH_RANGE_VARIABLE in os.environ:
            return False  # the bind that wanted it is not there
        bound = executor()
        echo.disable()
        return gradients(bound) == expected

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(LIMIT)
        assert in_child(work) == 0
        assert os.environ[MATCH_RANGE_VARIABLE] == "2"
    finally:
        done.set()
        holder.join(LIMIT)
    assert MATCH_RANGE_VARIABLE not in os.environ


def test_a_thread_may_fork_with_a_lock_in_its_hands() -> None:
    with bind_plan.PLANNER.lock.held(), match_range(2):
        code = in_child(lambda: True)
        inner = in_child(lambda: executor() is not None)
    assert (code, inner) == (0, 0)


def test_a_child_does_not_keep_the_lock_of_the_table(tmp_path: Path) -> None:
    import fcntl

    read, write = os.pipe()
    with files.locked(tmp_path / "table.json"):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # lives on, as a data worker does
            os._exit(0)
    try:
        with open(tmp_path / "table.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


# Binds inside binds ----------------------------------------------------------------------------------------------


def inner_bind() -> float:
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.tanh(mx.sym.sigmoid(mx.sym.var("w")))))
    bound = symbol.simple_bind(mx.cpu(), w=(3,))
    bound.forward(is_train=True)
    bound.backward()
    return float(bound.grad_dict["w"].asnumpy().sum())


@mx.operator.register("echo_test_binding")
class _BindingProperty(mx.operator.CustomOpProp):  # type: ignore[misc]
    """Binds in the shape inference, which planning runs, and in both passes."""

    def infer_shape(self, in_shape: Any) -> tuple[Any, Any, Any]:
        assert inner_bind() > 0
        return in_shape, [in_shape[0]], []

    def create_operator(self, *_: Any) -> mx.operator.CustomOp:
        return _Binding()


class _Binding(mx.operator.CustomOp):  # type: ignore[misc]
    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[0], req[0], in_data[0] * inner_bind())

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        self.assign(in_grad[0], req[0], out_grad[0] * inner_bind())


def foreign(width: int) -> Symbol:
    with mx.name.NameManager():
        hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=width, name="fc0")
        hidden = mx.sym.tanh(hidden) * mx.sym.sigmoid(hidden)
        hidden = mx.sym.Custom(hidden, op_type="echo_test_binding", name="foreign")
        return mx.sym.MakeLoss(mx.sym.FullyConnected(mx.sym.tanh(hidden), num_hidden=4, name="fc1"))


def steps() -> list[str]:
    found = []
    for width in (16, 24):
        bound = foreign(width).simple_bind(mx.cpu(), data=(8, 6))
        numbers = np.random.RandomState(width)
        for array in bound.arg_arrays:
            array[:] = numbers.uniform(-1, 1, array.shape)
        bound.forward(is_train=True)
        bound.backward()
        found.append(bound.grad_dict["fc0_weight"])
    return [array.asnumpy().tobytes().hex() for array in found]


@pytest.mark.slow
def test_binds_inside_of_operators(tmp_path: Path) -> None:
    """Without a wait between them, so that operators of one step run while the next graph is planned and measured."""

    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.runtime import test_concurrency as here; "
    print_steps = f"{script} print(here.steps())"
    assert program(print_steps, tmp_path) == program(print_steps, tmp_path, ECHO="1", ECHO_MAX_OVERHEAD="none")


# Signals ---------------------------------------------------------------------------------------------------------

PLANNING = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
sys.path.insert(0, {root!r})
import echo
from tests.runtime.test_concurrency import executor
from echo.policies.search import Search
choose = Search.choose
def endless(self, problem):
    print("planning", flush=True)
    while True:
        problem.evaluate(problem.choice())
Search.choose = endless
try:
    executor()
except KeyboardInterrupt:
    print("interrupted", flush=True)
Search.choose = choose
other = threading.Thread(target=lambda: print(executor() is not None), daemon=True)
other.start()
other.join({limit})
print(executor() is not None)
"""


def planning(tmp_path: Path) -> subprocess.Popen[str]:
    """A process that plans without end."""
    values = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PLANNING.format(root=str(ROOT), limit=LIMIT)], text=True, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**values, "ECHO": "1", "ECHO_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "planning\n"
    return process


@pytest.mark.slow
def test_an_interrupt_ends_planning_and_releases_all_locks(tmp_path: Path) -> None:
    process = planning(tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=2 * LIMIT)
    assert out.splitlines() == ["interrupted", "True", "True"], err
    assert "WARNING" not in err


@pytest.mark.slow
def test_a_termination_ends_the_process(tmp_path: Path) -> None:
    process = planning(tmp_path)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT)
    assert process.returncode == -signal.SIGTERM


# Data workers ----------------------------------------------------------------------------------------------------

WORKERS = """
import sys
sys.path.insert(0, {root!r})
import hashlib, numpy as np, mxnet as mx
from tests.runtime.test_concurrency import MODEL, executor, gradients, planned_megabytes
numbers = np.random.RandomState(0).uniform(size=(32, 3)).astype("float32")
loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(numbers), 8, num_workers=2)
digest = hashlib.sha256()
for batch in loader:
    digest.update(batch.asnumpy().tobytes())
    for value in gradients(executor()):
        digest.update(value)
    for more in loader:
        digest.update(more.asnumpy().tobytes())
print(digest.hexdigest(), planned_megabytes(executor()))
"""


@pytest.mark.slow
def test_data_workers(tmp_path: Path) -> None:
    script = WORKERS.format(root=str(ROOT))
    stock, megabytes = program(script, tmp_path).split()
    found, less = program(script, tmp_path, ECHO="1", ECHO_MAX_OVERHEAD="none", ECHO_FUSE="0").split()
    assert found == stock
    assert int(less) <= int(megabytes) / 2
