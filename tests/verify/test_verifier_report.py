"""The folder of a report holds what is needed to compare once more, and comes to the same result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from echo.frontend.symbols import graph_of
from echo.ir.training_graph import Runner
from echo.plans.options import Options
from echo.verify.storage import Difference
from echo.verify.verifier import Case, replay, write

pytestmark = pytest.mark.usefixtures("own_folder")
GRAPH = graph_of(mx.sym.FullyConnected(mx.sym.sin(mx.sym.var("x"), name="sin"), num_hidden=2, name="fc"))
WRONG = replace(GRAPH, nodes=tuple(replace(node, op="cos") if node.op == "sin" else node for node in GRAPH.nodes))
GENERATOR = np.random.RandomState(0)
ARGUMENTS = {name: mx.nd.array(GENERATOR.normal(0, 1, shape))
             for name, shape in (("x", (4, 3)), ("fc_weight", (2, 3)), ("fc_bias", (2,)))}  # fmt: skip
GIVEN = {"argument": ARGUMENTS, "gradient": {"x": mx.nd.ones((4, 3))}}


def case(bound: Any, runner: str = Runner.EXECUTOR, **changes: Any) -> Case:
    requests = {"x": "add", "fc_weight": "null", "fc_bias": "null"} if runner == Runner.EXECUTOR else {"x": "write"}
    return Case(runner, GRAPH, bound, False, mx.cpu(), None, requests, GIVEN, **changes)


@pytest.mark.parametrize("runner", [Runner.EXECUTOR, Runner.DYNAMIC])
def test_a_difference_is_found_again(runner: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(write(case(WRONG, runner), [])) == 1
    printed = capsys.readouterr().out
    assert "output 0 by " in printed
    assert "gradient x by " in printed
    assert "2 differences" in printed


@pytest.mark.parametrize("runner", [Runner.EXECUTOR, Runner.DYNAMIC])
def test_no_difference_is_found_again(runner: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(write(case(GRAPH, runner), [])) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_folder_of_a_report_has_all_to_reproduce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_FUSE", "0")
    own, other = np.zeros(2), np.ones(2)
    folder = write(case(WRONG, flags=[("static_alloc", True)], options=Options()), [Difference("x", 0.5, own, other)])
    assert folder.parent == tmp_path
    about = json.loads((folder / "about.json").read_text())
    assert about["differences"] == ["x by 5.0e-01 of its largest element"]
    assert about["flags"] == [["static_alloc", "True"]]
    assert about["options"] == repr(Options())
    assert about["arrays"]["argument x"] == [[4, 3], "float32"]
    assert about["settings"]["ECHO_FUSE"] == "0"
    assert about["versions"]["mxnet"] == mx.__version__
    with np.load(folder / "differences.npz") as kept:
        assert {name: kept[name].tolist() for name in kept} == {"own x": [0, 0], "echo x": [1, 1]}
    script = (folder / "reproduce.py").read_text()
    compile(script, "reproduce.py", "exec")
    assert "'ECHO_FUSE': '0'" in script


def test_report_without_writable_folder_is_a_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, temporary = tmp_path / "gone", tmp_path / "temporary"
    gone.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr("os.getcwd", lambda: str(gone))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert write(case(GRAPH), []).parent == temporary
