"""The hook in MXNet's passes: on, off, on again, and captures of the graphs that MXNet binds."""

from __future__ import annotations

import json
from typing import Any

import mxnet as mx
import mxnet.libinfo
import numpy as np
import pytest

from echo import native
from echo.errors import EchoError, GraphError, NativeError
from echo.frontend import install
from echo.frontend.capture import bind_without_memory, training_graph
from echo.frontend.install import install_hook
from echo.frontend.symbols import graph_of, infer_binding
from tests.support.hooked_network import LIBMXNET, SHAPES, bind, clones, marked, network, train

pytestmark = pytest.mark.usefixtures("hook_on")


def second_shapes(graph: Any) -> Any:
    """The shapes of the second node's outputs."""
    _, second, *_ = native.captured_nodes(graph)
    return second.kind["shapes"]


# On and off ---------------------------------------------------------------------------------------------------


def test_hook_switched_off_and_on_clones_again() -> None:
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


def test_capture_without_the_hook_has_no_graph() -> None:
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
    widths = [caught.graph and second_shapes(caught.graph) for caught in (first, second, third)]
    assert widths == [[[16, 6]], None, [[32, 6]]]


def test_the_last_of_several_binds_is_kept() -> None:
    with native.capture() as caught:
        for width in (16, 24, 32):
            bind(network(width))
    assert second_shapes(caught.graph) == [[32, 6]]


def test_interrupted_capture_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(json, "loads", read.append)

    def interrupted() -> None:
        with native.capture():
            bind(network())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert read == []


def test_equal_nodes_are_written_as_one_kind() -> None:
    data = mx.sym.var("data")
    for _ in range(50):
        data = mx.sym.tanh(data)
    with native.capture() as caught:
        bind_without_memory(data, infer_binding(data, {"data": (4, 3)}), mx.cpu())
    nodes = list(native.captured_nodes(caught.graph))
    assert sum(node.kind["op"] == "tanh" for node in nodes) == 50
    assert sum(kind["op"] == "tanh" for kind in caught.graph["kinds"]) == 1


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
    assert name in {node.name for node in native.captured_nodes(caught.graph)}


def test_inference_graphs_are_captured_too() -> None:
    symbol = network()
    binding = infer_binding(symbol, SHAPES, grad_req="null")
    with native.capture() as caught:
        bind_without_memory(symbol, binding, mx.cpu())
    assert not any(node.kind["op"].startswith("_backward") for node in native.captured_nodes(caught.graph))


# Threads and children -----------------------------------------------------------------------------------------


def test_recomputing_changes_no_bit_and_no_interface() -> None:
    plain, planned = network(), marked(network(), tanh="0", fc1="0")
    assert train(plain) == train(planned)
    assert plain.list_arguments() == planned.list_arguments()
    assert plain.list_outputs() == planned.list_outputs()


def test_errors_are_echos_own() -> None:
    assert issubclass(NativeError, EchoError)


def test_unfused_without_the_hook_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_installed", None)
    assert not native.keeps_unfused()
    with native.unfused():
        assert native.hook_library().echo_keep_unfused(0) in (0, -1), "nothing was changed"
