"""What `mxecho doctor` says of pages, pictures and energy."""

from __future__ import annotations

import importlib.util

import pytest

from echo.cli import extras
from echo.cli.fact import FINE


def test_what_is_missing_is_said_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise LookupError("CPU energy: this user may not read it; to allow it: sudo something")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(extras, "Rapl", refuse)
    facts = {fact.name: fact for fact in extras.extras()}
    assert [fact.value for fact in facts.values()] == [False] * 3
    assert facts["pages and pictures"].remark == "pip install 'mxnet-echo[report]'"
    assert facts["the policy exact"].remark == "pip install 'mxnet-echo[exact]'"
    assert facts["energy of CPUs"].remark == "this user may not read it; to allow it: sudo something"
    assert {fact.state for fact in facts.values()} == {FINE}, "echo saves as much without them"


def test_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(extras, "Rapl", lambda: None)
    assert [(fact.value, fact.remark) for fact in extras.extras()] == [(True, ""), (True, ""), (True, "by RAPL")]
