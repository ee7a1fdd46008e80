"""The memory that is dead after each node, of plans written by hand."""

from __future__ import annotations

from typing import Any, Iterator

import mxnet as mx
import numpy as np
import pytest

from echo.frontend.install import install_hook
from fuzz import dead_chunks
from fuzz.dead_chunks import TALLY, Pass, Plan, lost


@pytest.fixture(autouse=True)
def tally() -> Iterator[None]:
    """Nothing else is counted here."""
    before = TALLY.filled, list(TALLY.faults)
    yield
    TALLY.filled, TALLY.faults[:] = before


def plan(storage: tuple[int, ...] = (-1, 0, 1, 0), adds_in_place: bool = False, **changes: Any) -> Plan:
    """x -> a -> b -> c: each node reads the one before; chunk 0 holds a, later c, which the user reads."""
    names = ["x", "a", "b", "c"]
    nodes: list[Any] = [[name, k, [k - 1], [], k + 1] for k, name in enumerate(names)]
    nodes[0] = None  # a variable
    value = {
        "first": 1, "end": 4, "nodes": nodes, "storage": list(storage), "dtypes": [0, 0, 0, 0], "missing": [],
        "sums": [], "outputs": [3], "counts": [1, 1, 1, 1], **changes,
    }  # fmt: skip
    return Plan(value, adds_in_place, False)


def test_a_chunk_is_dead_after_its_last_reader() -> None:
    assert plan().dead == {2: (0,), 3: (1,)}
    assert plan(storage=(-1, 0, 1, 2)).dead == {2: (0,), 3: (1,)}


def test_chunk_that_a_later_pass_reads_lives_on() -> None:
    assert plan(counts=[1, 2, 1, 1]).dead == {3: (1,)}


def test_shapes_alone_are_no_reads() -> None:
    """Input -1 - e stands for entry e of which only the shape is looked at."""
    nodes = [None, ["a", 1, [0], [], 2], ["b", 2, [-2], [], 3], ["c", 3, [2], [], 4]]
    assert plan(nodes=nodes, storage=(-1, 0, 1, 2)).dead[1] == (0,)


def test_a_term_that_is_added_in_place_lies_in_the_sum() -> None:
    assert plan(sums=[[2, 1]], adds_in_place=True).storage == [-1, 0, 0, 0]
    assert plan(sums=[[2, 1]]).storage == [-1, 0, 1, 0]


def test_outputs_that_are_not_there_are_faults() -> None:
    plan(missing=["clone"])
    assert TALLY.faults[-1] == "'clone' reads an output that is not there"


def test_labels_are_those_of_monitors() -> None:
    assert set(plan().labels) == {"a_output", "b_output", "c_output"}
    nodes = [None, ["a", 1, [0], ["mean", "var"], 3], ["b", 3, [1], [], 4]]
    assert set(plan(nodes=nodes, end=3, outputs=[3]).labels) == {"a_mean", "a_var", "b_output"}


def handle(array: Any) -> int:
    """An array of its own in the same memory, as a monitor is handed one."""
    view = array.reshape(array.shape)
    address, view.handle = view.handle.value, None
    return int(address)


def test_chunk_without_readers_is_overwritten() -> None:
    assert install_hook() == ""
    arrays = {name: mx.nd.ones((4,)) for name in "abc"}
    walk = Pass(plan())
    for name in "abc":
        assert walk.begins_again(f"{name}_output") is False
        walk.see(f"{name}_output", handle(arrays[name]))
        mx.nd.waitall()
        seen = {key: bool(np.isnan(array.asnumpy()).all()) for key, array in arrays.items()}
        assert seen == {"a": name in "bc", "b": name == "c", "c": False}
    assert walk.begins_again("a_output")
    assert walk.begins_again("other_output") is None
    walk.overwrite_all()
    mx.nd.waitall()
    assert np.isnan(arrays["c"].asnumpy()).all()


def test_integers_become_large() -> None:
    assert install_hook() == ""
    array = mx.nd.ones((4,), dtype="int32")
    walk = Pass(plan(dtypes=[0, 4, 0, 0]))
    walk.see("a_output", handle(array))
    walk.overwrite_all()
    mx.nd.waitall()
    assert (array.asnumpy() == 0x7F7F7F7F).all()


def test_forgotten_pass_overwrites_nothing() -> None:
    array = mx.nd.ones((4,))
    walk, before = Pass(plan()), TALLY.filled
    walk.see("a_output", handle(array))
    walk.forget()
    walk.overwrite_all()
    lost(handle(array), "stray")
    assert (array.asnumpy() == 1).all()
    assert TALLY.filled == before
    assert TALLY.faults[-1] == "'stray' is in no memory plan that is known"
    assert dead_chunks.TALLY is TALLY
