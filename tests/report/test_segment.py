"""Segments: which operators are in them, what becomes of their maps, and how they are laid out."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import pytest

import echo
from echo.errors import GraphError
from echo.report.profile import Profile
from echo.report.segment import FREED, HEAVY, RECOMPUTED, STASHED, Segment

pytestmark = pytest.mark.usefixtures("cheap_planning")


def chain(light: int = 3) -> mx.sym.Symbol:
    """Layers with some light operators after each, the last one before the loss."""
    with mx.name.NameManager():
        data = mx.sym.var("data")
        for layer in range(2):
            data = mx.sym.FullyConnected(data, num_hidden=32, name=f"fc{layer}")
            for number in range(light):
                data = mx.sym.Activation(data, act_type="tanh", name=f"tanh{layer}_{number}")
        return mx.sym.MakeLoss(mx.sym.FullyConnected(data, num_hidden=4, name="last"), name="loss")


def profiled(symbol: mx.sym.Symbol, **options: Any) -> Profile:
    made: Profile = echo.profile(symbol, compare="echo", fuse=False, data=(16, 8), **options)
    return made


def drawn(symbol: mx.sym.Symbol, **options: Any) -> Segment:
    found = profiled(symbol, **options).segment
    assert found is not None
    return found


def test_segment_is_drawn_between_its_heavy_operators() -> None:
    found = drawn(chain(), policy="all", max_overhead=None)
    roles = {each.name: each.role for each in found.operators}
    assert [name for name, role in roles.items() if role == HEAVY] == ["fc0", "fc1"]
    assert [name for name, role in roles.items() if role == RECOMPUTED] == [f"tanh0_{number}" for number in range(3)]
    assert found.whole == 3
    assert [(found.operators[a].name, found.operators[b].name) for a, b in found.edges] == [
        ("fc0", "tanh0_0"),
        ("tanh0_0", "tanh0_1"),
        ("tanh0_1", "tanh0_2"),
        ("tanh0_2", "fc1"),
    ]
    assert [each.rank for each in found.operators] == list(range(5))
    assert all(each.read for each in found.operators if each.role == RECOMPUTED)  # by the gradients of tanh


def test_maps_without_recomputation_are_stashed_or_freed() -> None:
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=32, name="fc")
    data = mx.sym.Activation((data + 1) * 2, act_type="relu", name="relu")
    symbol = mx.sym.MakeLoss(mx.sym.FullyConnected(data, num_hidden=4, name="last"), name="loss")
    found = drawn(symbol, policy="none")
    roles = {each.op: (each.role, each.read) for each in found.operators}
    assert roles["Activation"] == (STASHED, True)
    assert roles["_plus_scalar"] == (FREED, False)


def test_large_segment_is_drawn_around_its_largest_map() -> None:
    found = drawn(chain(light=40), policy="all", max_overhead=None)
    assert found.whole == 40
    assert sum(each.role != HEAVY for each in found.operators) == 20


def test_alike_operators_are_one() -> None:
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=32, name="fc")
    parts = [mx.sym.Activation(data, act_type="tanh", name=f"tanh{number}") for number in range(3)]
    parts.append(mx.sym.Activation(data, act_type="sigmoid", name="sigmoid"))
    joined = mx.sym.Concat(*parts, dim=1, name="joined")
    symbol = mx.sym.MakeLoss(mx.sym.FullyConnected(joined, num_hidden=4, name="last"), name="loss")
    counts = {each.name: (each.count, each.bytes) for each in drawn(symbol, policy="none").operators}
    assert counts["sigmoid"] == (1, 16 * 32 * 4)
    assert counts["joined"] == (1, 4 * 16 * 32 * 4)


def test_operators_stand_below_what_they_read_and_next_to_each_other() -> None:
    found = drawn(chain(), policy="all", max_overhead=None)
    assert all(found.operators[a].rank < found.operators[b].rank for a, b in found.edges)
    places = [(each.rank, each.place) for each in found.operators]
    assert len(set(places)) == len(places)
    assert all(0 < place < 1 for _, place in places)


def test_a_graph_without_light_operators_has_none() -> None:
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="only")
    assert profiled(symbol).segment is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edges": [[0, 99]]}, "expected edges between its operators"),
        ({"edges": [[1, 0]]}, "expected edges between its operators"),
        ({"operators": [{"name": "x"}]}, "not a profile"),
    ],
)
def test_segment_in_a_file_is_read_and_checked(change: dict[str, Any], message: str) -> None:
    profile = profiled(chain())
    value = profile.to_json()
    assert Profile.from_json(value) == profile
    with pytest.raises(GraphError, match=message):
        Profile.from_json({**value, "segment": {**value["segment"], **change}})
    del value["segment"]  # as earlier versions wrote it
    assert Profile.from_json(value).segment is None
