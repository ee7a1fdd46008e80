"""The public names that users import, the cost of importing them, and the command line."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import mxnet as mx
import pytest

import echo
from benchmarks.models import SMALL
from echo import errors, native
from echo.cli import main
from echo.plans.decisions import Decision, Memory

ROOT = Path(__file__).parents[1]
PUBLIC = [
    "BudgetError", "ChangedInputError", "EchoError", "Frontier", "GraphError", "KernelError", "LeftAloneError",
    "NativeError", "OptionError", "Options", "Plan", "PlanError", "Profile", "ShapeError", "TimeLimitError",
    "UnsupportedError", "VerificationError",
    "compat", "disable", "enable", "errors", "frontier", "load_plan", "native", "optimize", "plan", "profile",
]  # fmt: skip
pytestmark = pytest.mark.usefixtures("cheap_planning")
SHAPES = {"data": (32, 64), "softmax_label": (32,)}


def network() -> mx.sym.Symbol:
    with mx.name.NameManager():
        hidden = mx.sym.var("data")
        for layer in range(4):
            hidden = mx.sym.tanh(mx.sym.FullyConnected(hidden, num_hidden=512, name=f"fc{layer}"), name=f"tanh{layer}")
            hidden = mx.sym.LayerNorm(hidden, name=f"norm{layer}") * hidden
        return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=10, name="scores"), name="softmax")


# Names -----------------------------------------------------------------------------------------------------------


def test_public_names() -> None:
    assert sorted(echo.__all__) == sorted(PUBLIC)
    assert all(hasattr(echo, name) for name in PUBLIC)


def test_star_import_gives_the_public_names() -> None:
    names: dict[str, Any] = {}
    exec("from echo import *", names)
    assert sorted(name for name in names if name != "__builtins__") == sorted(PUBLIC)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'echo' has no attribute 'optimise'"):
        _ = echo.optimise


def test_public_names_of_native() -> None:
    assert {"install", "installed", "uninstall", "capture"} <= set(vars(native))


def documented(module: ModuleType) -> list[tuple[str, Any]]:
    """Public classes and functions of a module, and the public functions of its classes."""
    found = []
    for name, item in vars(module).items():
        if name.startswith("_") or getattr(item, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(item):
            found += [
                (f"{name}.{member}", getattr(value, "__func__", value))
                for member, value in vars(item).items()
                if inspect.isfunction(getattr(value, "__func__", value)) and not member.startswith("_")
            ]
        if inspect.isclass(item) or inspect.isfunction(item):
            found.append((name, item))
    return found


MODULES = [echo, errors, native, sys.modules["echo.plans.options"], main]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_functions_say_what_they_do(module: ModuleType) -> None:
    assert module.__doc__
    items = documented(module)
    assert items
    assert [name for name, item in items if not inspect.getdoc(item)] == []


FUNCTIONS = [echo.optimize, echo.plan, echo.frontier, echo.profile, echo.enable]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_docstrings_name_every_argument_and_errors(function: Callable[..., Any]) -> None:
    text = inspect.getdoc(function) or ""
    assert "Raises:" in text
    arguments = text.split("Args:")[1].split("Raises:")[0]
    assert set(inspect.signature(function).parameters) <= set(re.findall(r"\w+", arguments))


def test_options_are_documented() -> None:
    text = inspect.getdoc(echo.Options) or ""
    for name in inspect.signature(echo.Options).parameters:
        assert f"{name}:" in text or f"{name}," in text, name


def test_errors_are_one_tree() -> None:
    classes = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]
    assert {item.__name__ for item in classes} == {name for name in PUBLIC if name.endswith("Error")}
    for item in classes:
        assert issubclass(item, echo.EchoError)
        assert item.__name__ in (errors.__doc__ or "")
    assert issubclass(echo.OptionError, ValueError)
    assert issubclass(echo.ShapeError, echo.GraphError)


# Importing -------------------------------------------------------------------------------------------------------


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_is_lazy() -> None:
    loaded = run("""
        import sys
        import echo
        echo.Options(policy="echo")
        import echo.cli.main, echo.pipeline, echo.ir.graph, echo.ir.training_graph, echo.policies
        print(*sys.modules)
    """).split()
    assert "echo" in loaded
    assert not {"mxnet", "rich", "echo.runtime.api", "echo.frontend.symbols"} & set(loaded)


def test_import_needs_no_heavy_modules() -> None:
    loaded = run("import sys, echo; print(*sys.modules)").split()
    assert not {"numpy", "networkx", "mxnet", "rich", "pynvml"} & set(loaded)


def test_import_starts_nothing() -> None:
    assert run("""
        import threading
        before = threading.active_count()
        import echo
        print(threading.active_count() - before, echo.native.installed())
    """).split() == ["0", "False"]


# Plans -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def plan() -> echo.Plan:
    return echo.plan(network(), max_overhead=None, **SHAPES)


def test_plan_prints(plan: echo.Plan, capsys: pytest.CaptureFixture[str]) -> None:
    print(plan)
    text = capsys.readouterr().out
    assert plan.summary() in text.replace("\n", " ") or plan.summary()[:60] in text
    for word in ("planned by MXNet", "alive at the peak", "weights", "recompute", "stash", "tanh"):
        assert word in text, word
    assert max(map(len, text.splitlines())) <= 120
    assert "note: fused: 4 x a layer norm" in text


def test_plan_prints_where_nothing_is_gained() -> None:
    plan = echo.plan(mx.sym.tanh(mx.sym.var("data")), data=(3, 4), grad_req="write")
    assert plan.changes_nothing
    assert "the original graph is bound as it is" in str(plan)
    assert plan.summary() in str(plan).replace("\n", " ")


def test_plan_says_what_happens_to_every_map(plan: echo.Plan) -> None:
    assert plan.applied == "hook"
    assert plan.after.planned < plan.before.planned
    assert {decision.action for decision in plan.decisions} == {"stash", "recompute"}
    assert all(isinstance(decision, Decision) and decision.reason for decision in plan.decisions)
    assert isinstance(plan.before, Memory)
    assert 0 < plan.overhead < 1


def test_plan_is_a_value(plan: echo.Plan, tmp_path: Path) -> None:
    assert plan == echo.plan(network(), max_overhead=None, **SHAPES)
    assert plan != echo.plan(network(), max_overhead=0.0, **SHAPES)
    plan.save(tmp_path / "plan.json")
    assert echo.Plan.load(tmp_path / "plan.json") == plan
    assert echo.Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert str(echo.Plan.load(tmp_path / "plan.json")) == str(plan)


def test_plans_say_what_is_fused() -> None:
    model = SMALL["nmt"]()
    fused = echo.plan(model.symbol, **model.shapes)
    assert Counter(name for name, _ in fused.fused)["lstm_layer"] > 0
    assert any(note.startswith("fused: ") and "exact=True keeps them" in note for note in fused.remarks)
    without = echo.plan(model.symbol, fuse=False, **model.shapes)
    assert not without.fused
    assert not without.missed
    assert not any("fuse" in note for note in without.remarks)
    assert without.before == fused.before, "both say what the original graph needs"


def test_plans_say_what_is_not_fused(plan: echo.Plan) -> None:
    """A softmax of so few classes is left alone, with a reason, as are biases; which are no news to the user."""
    reasons = {missed.pattern: (missed.name, missed.reason) for missed in plan.missed}
    assert set(reasons) == {"softmax_output", "bias_act"}
    assert reasons["softmax_output"] == ("softmax", "too small: 1,280 bytes, expected 1,048,576 or more")
    assert not any("not fused" in note for note in plan.remarks)
    assert Counter(name for name, _ in plan.fused) == {"layer_norm": 4}


def test_kept_or_recomputed_node_is_not_fused() -> None:
    model = SMALL["nmt"]()
    fused = echo.plan(model.symbol, max_overhead=None, **model.shapes)
    (pattern, number) = fused.fused[0]
    name = json.loads(model.symbol.tojson())["nodes"][number]["name"]
    for option in ("keep", "recompute"):
        plan = echo.plan(model.symbol, max_overhead=None, **{option: name}, **model.shapes)
        actions = {decision.name: decision.action for decision in plan.decisions}
        assert actions[name] == {"keep": "stash"}.get(option, option)
        assert (pattern, number) not in plan.fused
        assert plan.fused, "what the user does not name is"
        assert f"keep or recompute names {name!r}, which is inside" in {missed.reason for missed in plan.missed}


def test_planning_twice_plans_once(monkeypatch: pytest.MonkeyPatch, plan: echo.Plan) -> None:
    monkeypatch.setattr("echo.pipeline.plan", lambda _: pytest.fail("planned again"))
    assert echo.plan(network(), max_overhead=None, **SHAPES) == plan
    optimized = echo.optimize(network(), max_overhead=None)
    requests = {name: "null" if name in SHAPES else "write" for name in network().list_arguments()}
    optimized.simple_bind(mx.cpu(), grad_req=requests, **SHAPES)
    assert optimized.plans == [plan]


@pytest.mark.parametrize("policy", ["search", "echo"])
def test_every_policy_saves_memory(policy: str) -> None:
    plan = echo.plan(network(), policy=policy, max_overhead=None, **SHAPES)
    assert plan.policy == policy
    assert plan.after.planned < plan.before.planned


def test_keep_and_recompute_are_obeyed() -> None:
    plan = echo.plan(network(), max_overhead=None, keep=["tanh0", "Layer*"], recompute="tanh1", **SHAPES)
    actions = {decision.name: decision for decision in plan.decisions}
    assert actions["tanh0"].action == "stash"
    assert "kept: matches 'tanh0'" in actions["tanh0"].reason
    assert actions["norm1"].reason == "kept: matches 'Layer*'"
    assert (actions["tanh1"].action, actions["tanh1"].reason) == ("recompute", "the user insists on it")


def test_recompute_that_needs_fused_operators_is_planned_with_them() -> None:
    """An RNN operator reads more than its inputs, so what it reads stays; the fused layer in its place does not."""
    words = mx.sym.Embedding(mx.sym.var("data"), input_dim=9, output_dim=8, name="words")
    states = [mx.sym.var(name) for name in ("rnn_parameters", "rnn_h", "rnn_c")]
    layer = mx.sym.RNN(words, *states, state_size=16, num_layers=1, mode="lstm")
    asked = {"recompute": "Embedding", "data": (12, 16), "max_overhead": None, "strict": True}
    plan = echo.plan(mx.sym.MakeLoss(layer), **asked)
    assert plan.fused
    assert not plan.failed
    with pytest.raises(echo.OptionError, match=r"'words'.*'rnn.*' reads it"):
        echo.plan(mx.sym.MakeLoss(layer), fuse=False, **asked)


def test_bound_plan_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    optimized = echo.optimize(network(), max_overhead=None)
    with caplog.at_level("DEBUG", "echo"):
        optimized.simple_bind(mx.cpu(), grad_req="write", **SHAPES)
    (record,) = caplog.records
    assert record.getMessage() == f"echo: {optimized.plans[0].summary()}"


# The command line ------------------------------------------------------------------------------------------------


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "echo", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_help_names_commands_and_options() -> None:
    result = command("--help")
    assert result.returncode == 0
    assert "plan" in result.stdout
    assert "profile" in result.stdout
    result = command("plan", "--help")
    for option in ("--policy", "--max-overhead", "--memory-budget", "--keep", "--recompute", "--save"):
        assert option in result.stdout


def test_command_line_plans_a_saved_symbol(tmp_path: Path) -> None:
    network().save(str(tmp_path / "model-symbol.json"))
    result = command(
        "plan", str(tmp_path / "model-symbol.json"), "data=32,64", "softmax_label=32", "--max-overhead", "none",
        "--policy", "echo", "--keep", "tanh0", "--save", str(tmp_path / "plan.json"),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "planned by MXNet" in result.stdout
    saved = echo.Plan.load(tmp_path / "plan.json")
    assert saved.policy == "echo"
    assert str(saved) in result.stdout
    shown = command("plan", "--load", str(tmp_path / "plan.json"))
    assert shown.stdout == result.stdout


_DEPS = [[number - 1] if number else [] for number in range(21)]
_DEPS += [[20 + number, 19 - number] for number in range(20)]
# Twenty nodes of 1 MB and one millisecond, whose gradients read their outputs.
CHAIN = {
    "loss": 20,
    "nodes": [{"id": i, "op": "tanh", "cost": 1, "bytes": 10**6, "deps": deps} for i, deps in enumerate(_DEPS)],
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "{missing}", "data=32,64"], "No such file"),
        (["plan", "{symbol}", "data"], "expected NAME=SHAPE such as data=128,50, got"),
        (["plan", "{symbol}", "data=a,b"], "expected NAME=SHAPE"),
        (["plan", "{symbol}", "dta=3,4"], "dta"),
        (["plan", "{symbol}", "softmax_label=32"], "is unknown"),
        (
            ["plan", "{symbol}", "data=32,64", "--max-overhead", "lots"],
            "--max-overhead: expected a fraction of the step such as 0.10 or 10%, auto or none, got 'lots'",
        ),
        (["plan", "{symbol}", "data=32,64", "--memory-budget", "6 XB"], "--memory-budget: expected whole bytes"),
        (["plan", "{symbol}", "data=32,64", "--memory-budget", "1000"], "the least that can be reached"),
        (["plan", "{symbol}", "data=32,64", "--policy", "magic"], "--policy: expected one of"),
        (["plan", "{symbol}", "data=32,64", "--keep", "nothing"], "matches no node"),
        (["plan", "{text}", "data=32,64"], "is not a symbol saved by MXNet"),
        (["plan", "{number}", "data=32,64"], "is not a symbol saved by MXNet"),
        (["plan", "--load", "{missing}"], "No such file"),
        (["plan", "--load", "{text}"], "is not a plan"),
        (["plan", "--load", "{symbol}"], "not a plan"),
        (["plan", "--load", "{number}"], "not a plan"),
        (["schedule", "{graph}", "--budget", "0"], "--budget: expected whole bytes, a size such as 5GB"),
        (["schedule", "{graph}", "--budget", "-5"], "--budget: expected whole bytes, a size such as 5GB"),
        (["schedule", "{graph}", "--budget=-5GB"], "--budget: expected whole bytes, a size such as 5GB"),
        (["schedule", "{graph}", "--budget", "abc"], "--budget: expected whole bytes, a size such as 5GB"),
        (["schedule", "{graph}", "--budget", "2MB", "--policy", "none"], "that can be reached is 22,000,000 bytes"),
        (["schedule", "{graph}", "--budget", "2MB"], "cannot be met by policy 'search'"),
        (["schedule", "{graph}", "--budget", "4", "--policy", "magic"], "--policy: expected one of"),
        (["schedule", "{text}", "--budget", "4"], "is not JSON"),
        (["schedule", "{number}", "--budget", "4"], "is not a training graph"),
        (["schedule", "{missing}", "--budget", "4"], "No such file"),
    ],
)
def test_command_line_says_what_is_wrong(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network().save(str(tmp_path / "symbol.json"))
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "number.json").write_text("3")
    (tmp_path / "graph.json").write_text(json.dumps(CHAIN))
    files = {name: str(tmp_path / f"{name}.json") for name in ("symbol", "text", "number", "missing", "graph")}
    of_a_file = re.search("is not|not a plan|No such file|can be reached|cannot be met", message)
    assert main.main([argument.format(**files) for argument in arguments]) == (1 if of_a_file else 2)
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("mxecho: ")]
    assert len(lines) == 1
    assert message in lines[0]


def test_command_line_schedules_a_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "graph.json").write_text(json.dumps(CHAIN))
    for policy in ("search", "sublinear", "ilp"):
        assert main.main(["schedule", str(tmp_path / "graph.json"), "--budget", "14MB", "--policy", policy]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "graph       41 nodes, 21 of them forward, 41.00 ms a step"
        assert re.fullmatch(rf"peak        22\.0 MB -> 1\d\.0 MB, budget 14\.0 MB \({policy}\)", lines[1])
        assert re.fullmatch(r"overhead    \+\d+\.\d\d %, \d+\.00 ms", lines[2])
        assert re.fullmatch(r"recomputed  \d+ nodes, 0 of them heavy, in \d+ runs", lines[3])


def test_command_line_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == 2
    said = capsys.readouterr()
    assert "Usage: mxecho" in said.out + said.err
