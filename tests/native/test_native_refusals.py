"""Errors inside MXNet's passes arrive and leak nothing; threads and forked children have the hook too."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Callable

import mxnet as mx
import mxnet.libinfo
import pytest

from echo import native
from echo.frontend.symbols import graph_of, symbol_of
from echo.ir.op_spec import RANGE_ATTRIBUTE
from tests.support.hooked_network import bind, clones, marked, network, train

pytestmark = pytest.mark.usefixtures("hook_on")


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
                nodes = list(native.captured_nodes(caught.graph))
                shapes, names = nodes[1].kind["shapes"], [node.name for node in nodes]
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
            captured = any(node.name == "tanh_echo" for node in native.captured_nodes(caught.graph))
            code = 0 if captured and train(marked(network(), tanh="0")) == parent else 2
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert clones(marked(network(), tanh="0")) == 1
