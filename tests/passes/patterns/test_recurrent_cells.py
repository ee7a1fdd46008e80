"""GRU cells whose reset gate stands in front of the product: which are found, and why others are not."""

from __future__ import annotations

from itertools import chain
from typing import Any, Callable

import mxnet as mx
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.graph import Entry
from echo.passes.patterns.graph_view import Fusion, View
from echo.passes.patterns.recurrent_cells import GRU_RESET, steps, sums
from tests.passes.patterns.near_misses import (
    H,
    Miss,
    Symbol,
    assert_found,
    assert_missed,
    assert_nothing,
    dense,
    found_in,
    normalized,
    same,
    sigmoid,
    tanh,
    var,
)
from tests.support.reset_gru_models import MIXES, Gates, Weights, apart, cell, halves, other_halves, parts

FORMS: dict[str, Gates] = {"halves": halves, "other halves": other_halves, "apart": apart, "parts": parts}


def gru(mix: str = "a step towards the candidate", gates: Gates = halves) -> Symbol:
    return cell(var("x"), var("h"), H, Weights("l_"), mix, gates)


def by_hand(
    product: Callable[[Symbol], Symbol] = lambda state: dense(state, H, "again"),
    update: Callable[[Symbol], Symbol] = lambda state: dense(var("h"), H, "hz"),
    active: Callable[[Symbol], Symbol] = tanh,
    gate: Callable[[Symbol], Symbol] = sigmoid,
    seen: Callable[[dict[str, Symbol]], list[Symbol]] = lambda inner: [],
) -> Symbol:
    """A cell with gates of their own: what its parts may be."""
    h = var("h")
    reset = gate(dense(var("x"), H, "xr") + dense(h, H, "hr"), name="reset")
    state = h * reset
    z = gate(dense(var("x"), H, "xz") + update(state), name="update")
    n = active(dense(var("x"), H, "xn") + product(state))
    following = h + z * (n - h)
    return mx.sym.Group([following, *seen({"reset": reset, "update": z, "state": state, "new": n})])


MISSES: dict[str, Miss] = {
    "an update gate after the reset gate": (
        lambda: by_hand(update=lambda state: dense(state, H, "again_z")),
        "a GRU cell whose update gate depends on the state after its reset gate",
    ),
    "an update gate that is read elsewhere": (
        lambda: by_hand(seen=lambda inner: [inner["update"]]), "'update', inside of the cell, is read from outside"
    ),
    "a reset gate that is read elsewhere": (
        lambda: by_hand(seen=lambda inner: [mx.sym.exp(inner["reset"])]),
        "'reset', inside of the cell, is read from outside",
    ),
}  # fmt: skip

OTHERS: dict[str, Callable[[], Symbol]] = {
    "a state that is not reset": lambda: by_hand(product=lambda state: dense(var("h"), H, "again")),
    "a candidate of another activation": lambda: by_hand(active=mx.sym.softsign),
    "gates of tanh": lambda: by_hand(gate=tanh),
    "a reset state that the candidate does not read": lambda: by_hand(
        product=lambda state: dense(var("y"), H, "again"), seen=lambda inner: [inner["state"]]
    ),
}


@pytest.mark.parametrize("gates", FORMS)
@pytest.mark.parametrize("mix", MIXES)
def test_every_way_to_write_it_is_found(mix: str, gates: str) -> None:
    assert_found(lambda: gru(mix, FORMS[gates]), GRU_RESET.name)


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_say_why(name: str) -> None:
    assert_missed(MISSES[name])


@pytest.mark.parametrize("name", OTHERS)
def test_another_structure_is_not_found(name: str) -> None:
    assert_nothing(OTHERS[name])


@pytest.mark.parametrize("around", [same, normalized, lambda x: mx.sym.BatchNorm(x, name="norm")])
def test_norm_between_product_and_gates_stays(around: Callable[[Symbol], Symbol]) -> None:
    found, missed = found_in(lambda: by_hand(product=lambda state: around(dense(state, H, "again"))))
    assert GRU_RESET.name in found
    assert not missed


def test_the_reset_state_may_be_read_elsewhere() -> None:
    assert_found(lambda: by_hand(seen=lambda inner: [inner["state"]]), GRU_RESET.name)


def fusion(**forms: Any) -> Fusion:
    with mx.name.NameManager():
        view = View(graph_of(gru(**forms)))
    found = GRU_RESET.match(view, view.graph.heads[0].node)
    assert isinstance(found, Fusion)
    return found


def test_halves_are_read_where_they_stand() -> None:
    found = fusion()
    assert [node.op for node in found.nodes] == ["_echo_gru_reset", "_echo_gru_mix"]
    assert found.nodes[0].attrs["order"] == "1"
    assert "order" not in fusion(gates=other_halves).nodes[0].attrs
    assert len(found.replaced) == 8  # the slices, two sigmoids, the product, a tanh, a difference, a product, a sum


def test_separate_gates_are_concatenated() -> None:
    assert [node.op for node in fusion(gates=apart).nodes] == ["Concat", "_echo_gru_reset", "_echo_gru_mix"]


def test_gate_that_weighs_the_state_keeps_it() -> None:
    keeps = {mix: fusion(mix=mix).nodes[0].attrs["keeps"] for mix in MIXES}
    assert [mix for mix, kept in keeps.items() if kept == "1"] == [
        "a step towards the state", "the state weighed by the gate"
    ]  # fmt: skip


def test_a_first_state_may_be_a_tanh_itself() -> None:
    """Both arrays of the mix are then, and the reset gate says which is the state."""
    for mix in MIXES:
        assert_found(lambda mix=mix: cell(var("x"), tanh(var("s")), H, Weights("l_"), mix), GRU_RESET.name)  # type: ignore[misc]


Form = Callable[[Symbol, Symbol, Symbol], Symbol]
SUMS: dict[str, Form] = {
    "the gate first": lambda z, a, b: z * a + (1 - z) * b,
    "the gate last": lambda z, a, b: b * (1 - z) + a * z,
    "ones": lambda z, a, b: z * a + (mx.sym.ones_like(z) - z) * b,
    "broadcast": lambda z, a, b: mx.sym.broadcast_add(mx.sym.broadcast_mul(z, a), mx.sym.broadcast_mul(1 - z, b)),
}
STEPS: dict[str, Form] = {
    "the state first": lambda z, a, b: b + z * (a - b),
    "the step first": lambda z, a, b: (a - b) * z + b,
    "broadcast": lambda z, a, b: mx.sym.broadcast_add(b, mx.sym.broadcast_mul(z, mx.sym.broadcast_sub(a, b))),
}
NONE: dict[str, Form] = {
    "two less the gate": lambda z, a, b: z * a + (2 - z) * b,
    "one less another gate": lambda z, a, b: z * a + (1 - mx.sym.exp(z)) * b,
    "a step away": lambda z, a, b: b + z * (b - a),
    "a step from another array": lambda z, a, b: z + z * (a - b),
    "a sum of one product": lambda z, a, b: z * a + b,
    "a difference": lambda z, a, b: z * a - (1 - z) * b,
}


def found(form: Form) -> list[tuple[str, ...]]:
    """The names of the gate, of what it weighs, and of the rest, in each way to read the symbol."""
    with mx.name.NameManager():
        view = View(graph_of(form(var("z"), var("a"), var("b"))))
    (head,) = view.graph.heads
    mixes = list(chain(sums(view, head), steps(view, head)))
    inner = {number for number, node in enumerate(view.graph.nodes) if not node.is_variable}
    assert all(mix.nodes == inner for mix in mixes)
    return [tuple(view.node(entry).name for entry in (mix.gate, mix.weighed, mix.rest)) for mix in mixes]


@pytest.mark.parametrize("form", [*SUMS.values(), *STEPS.values()], ids=[*SUMS, *(f"step: {name}" for name in STEPS)])
def test_mix_in_every_form_is_read(form: Form) -> None:
    assert found(form) == [("z", "a", "b")]


@pytest.mark.parametrize("name", NONE)
def test_lookalike_of_a_mix_is_not_found(name: str) -> None:
    assert not found(NONE[name])


def test_a_variable_is_none() -> None:
    view = View(graph_of(var("x")))
    assert not list(chain(sums(view, Entry(0)), steps(view, Entry(0))))
