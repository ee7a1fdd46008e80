"""The replacements of MXNet's functions, next to those of other libraries."""

from __future__ import annotations

import functools
from typing import Any, Callable

import mxnet as mx
import pytest

import echo
from echo.runtime.cached_op import StockCachedOp
from echo.runtime.gluon import cached_op
from echo.runtime.patches import Patches


class Library:
    """It stands for MXNet's."""

    def __init__(self) -> None:
        self.function: Callable[[], list[str]] = lambda: ["stock"]


def wrapped(name: str, original: Callable[[], list[str]]) -> Callable[[], list[str]]:
    @functools.wraps(original)
    def stand_in() -> list[str]:
        return [name, *original()]

    return stand_in


ECHOS, THEIRS = (functools.partial(wrapped, name) for name in ("echo's", "theirs"))


def test_patch_is_put_once_and_taken_out() -> None:
    stand_ins, library = Patches(), Library()
    stock = library.function
    for _ in range(2):
        stand_ins.put(library, "function", ECHOS)
        assert library.function() == ["echo's", "stock"]
    for _ in range(2):
        stand_ins.take_out(library, "function")
        assert library.function is stock


def test_patches_of_others_stay_in_place() -> None:
    stand_ins, library = Patches(), Library()
    stand_ins.put(library, "function", ECHOS)
    library.function = THEIRS(library.function)
    stand_ins.take_out(library, "function")
    assert library.function() == ["theirs", "echo's", "stock"]
    stand_ins.put(library, "function", ECHOS)
    assert library.function() == ["echo's", "theirs", "echo's", "stock"]
    stand_ins.take_out(library, "function")
    assert library.function() == ["theirs", "echo's", "stock"]


def test_patch_put_for_good_stays_below_later_ones() -> None:
    stand_ins, library = Patches(), Library()
    stand_ins.put_for_good(library, "function", ECHOS)
    library.function = THEIRS(library.function)
    stand_ins.put_for_good(library, "function", ECHOS)
    assert library.function() == ["theirs", "echo's", "stock"]


def test_the_policy_from_before() -> None:
    def policy(action: Any, otherwise: Any) -> Any: ...

    stand_ins = Patches()
    assert stand_ins.switch(policy) is None
    assert stand_ins.policy is policy
    assert stand_ins.switch(None) is policy
    assert stand_ins.policy is None


def test_cached_ops_of_all_blocks() -> None:
    echo.enable()
    assert mx.nd.CachedOp is cached_op
    echo.disable()
    assert mx.nd.CachedOp is StockCachedOp


def test_foreign_cached_ops_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    class Theirs(StockCachedOp):  # type: ignore[misc, valid-type]
        pass

    monkeypatch.setattr(mx.nd, "CachedOp", Theirs)
    echo.disable()
    assert mx.nd.CachedOp is Theirs
