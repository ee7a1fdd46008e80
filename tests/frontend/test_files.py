"""Symbols from files: what MXNet saved, and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import mxnet as mx
import pytest

from echo.errors import GraphError
from echo.frontend.files import load_symbol


def test_there_and_back(tmp_path: Path) -> None:
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc", attr={"__text__": "a\tb"})
    symbol.save(str(tmp_path / "symbol.json"))
    found = load_symbol(tmp_path / "symbol.json")
    assert found.tojson() == symbol.tojson()


@pytest.mark.parametrize("text", ["", "[]", '{"nodes": 3}', '{"nodes": [], "nodes": []}', "\xff"])
def test_what_is_no_symbol_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "symbol.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(GraphError, match=f"{path} is not a symbol saved by MXNet"):
        load_symbol(path)


def test_what_mxnet_refuses_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "symbol.json"
    value = json.loads(mx.sym.tanh(mx.sym.var("x")).tojson())
    value["nodes"][1]["op"] = "no_such_operator"
    path.write_text(json.dumps(value))
    with pytest.raises(GraphError, match=f"{path}: MXNet cannot load it: .*no_such_operator") as caught:
        load_symbol(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_symbol(tmp_path / "nothing")


def test_symbols_of_a_newer_mxnet_are_named_as_such(tmp_path: Path) -> None:
    nodes = [{"op": "null", "name": "x", "inputs": []}, {"op": "_npi_wonder", "name": "w", "inputs": [[0, 0, 0]]}]
    value = {"nodes": nodes, "arg_nodes": [0], "heads": [[1, 0, 0]], "attrs": {"mxnet_version": ["int", 20000]}}
    path = tmp_path / "symbol.json"
    for version, said in ((20000, " was saved by MXNet 2.0.0: MXNet"), (10901, ": MXNet"), ("x", ": MXNet")):
        path.write_text(json.dumps({**value, "attrs": {"mxnet_version": ["int", version]}}))
        with pytest.raises(GraphError) as caught:
            load_symbol(path)
        assert str(caught.value).startswith(f"{path}{said}")
        assert "_npi_wonder" in str(caught.value)
