"""For which attributes of a node something holds."""

from __future__ import annotations

from echo.ir.op_spec import ALWAYS, NEVER, unless, unless_set, when, when_set


def test_a_value_of_an_attribute() -> None:
    first = when("pool_type", "max", "max", "avg")
    assert first({"pool_type": "avg"})
    assert not first({"pool_type": "sum"})
    assert first({})
    assert not when("mode", "training", "always")({"p": "always"})


def test_all_values_but_these() -> None:
    other = unless("mode", "training", "always")
    assert other({})
    assert other({"mode": "training"})
    assert not other({"mode": "always"})


def test_flags() -> None:
    for text in ("True", "true", "TRUE", "1"):
        assert when_set("use_length")({"use_length": text})
        assert not unless_set("use_length")({"use_length": text})
    assert not when_set("use_length")({})
    assert unless_set("use_length")({"use_length": "false"})
    assert when_set("fix_gamma", "True")({})
    assert not unless_set("fix_gamma", "True")({})


def test_any_attributes() -> None:
    for attrs in ({}, {"": ""}, {"mode": "always"}):
        assert ALWAYS(attrs)
        assert not NEVER(attrs)


def test_the_user_is_shown_the_value() -> None:
    assert when("pool_type", "max", "max").shown({}) == "pool_type=max"
    assert when("pool_type", "max", "max").shown({"pool_type": "avg"}) == "pool_type=avg"
