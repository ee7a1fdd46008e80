"""The planner's limits, what it charges for running twice, wrong choices, and graphs made by hand."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo import native
from echo.errors import NativeError
from echo.estimators import storage_planner
from echo.estimators.mxnet_storage import plan_storage
from echo.estimators.storage_planner import ReferencePlanner, StoragePlanner, make_planner
from echo.ir.graph import Entry
from echo.ir.schedule import with_clones
from echo.ir.training_graph import MemoryPool, Runner
from tests.support.cases import MATCH_RANGES, any_case, model_case, special_case
from tests.support.made_graphs import Builder
from tests.support.planners import planners, seconds_of
from tests.support.planning import choice_of

# Limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nmt", "resnet50_v1", "dropout", "slices"])
def test_bytes_are_exact_up_to_the_limit_and_above_it_otherwise(name: str) -> None:
    case = any_case(name)
    fast, _ = planners(case)
    choice = choice_of(case.training, case.draw(1, 0.5))
    full = fast.evaluate(choice, MATCH_RANGES)
    for limit in (0, full.bytes // 2, full.bytes - 1, full.bytes, full.bytes + 1, max(full.totals), 2 * full.bytes):
        limited = fast.evaluate(choice, MATCH_RANGES, limit)
        assert limited.seconds == full.seconds
        if full.bytes <= limit:
            assert limited.bytes == full.bytes
        else:
            assert limited.bytes > limit
    assert fast.evaluate(choice, MATCH_RANGES) == full, "a limit is forgotten after its call"


def test_one_planner_serves_many_choices() -> None:
    case = special_case("dropout")
    fast, slow = planners(case)
    for seed in range(30):
        choice = choice_of(case.training, case.draw(seed, 0.5))
        again = StoragePlanner(case.training, seconds_of(case))
        assert fast.evaluate(choice, (1, 16)) == again.evaluate(choice, (1, 16)) == slow.evaluate(choice, (1, 16))


@pytest.mark.parametrize("planner_type", ["StoragePlanner", "ReferencePlanner"])
def test_match_range_zero_shares_no_chunks(tmp_path: Path, planner_type: str) -> None:
    """``NNVM_EXEC_MATCH_RANGE=0`` is a value that MXNet takes. In a process of its own, which a crash would end."""
    case = special_case("slices")
    path = tmp_path / "training.pickle"
    path.write_bytes(pickle.dumps(case.training))
    code = (
        "import pickle, sys, numpy\n"
        f"from echo.estimators.storage_planner import {planner_type}\n"
        "training = pickle.load(open(sys.argv[1], 'rb'))\n"
        f"planner = {planner_type}(training, [0.0] * len(training.nodes))\n"
        "print(*planner.evaluate(numpy.zeros(planner.entries, numpy.uint8), (0, 16)).totals)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, cwd=root)
    expected = [case.mxnet_memory_plan(case.graph, value) for value in (0, 16)]
    assert (done.returncode, done.stdout.split()) == (0, [str(total) for total in expected]), done.stderr


# What runs twice ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner_type", [StoragePlanner, ReferencePlanner])
def test_only_what_a_gradient_needs_is_charged(planner_type: Any) -> None:
    case = special_case("dropout")
    training = case.training
    number = {node.name: number for number, node in enumerate(training.nodes) if node.forward}
    seconds = [float(node.forward) for node in training.nodes]
    evaluator = planner_type(training, seconds)
    # the gradient of the sum at the bottom reads no value of it: tanh0 is needed by the gradient of tanh, fc0 is not
    fc, tanh = number["fc0"], number["tanh0"]
    both = choice_of(training, [entry for entry in case.draw(0, 1.0) if entry.node in (fc, tanh)])
    executed = evaluator.executed(both)
    assert set(executed.nonzero()[0]) == {fc, tanh}
    alone = choice_of(training, [entry for entry in case.draw(0, 1.0) if entry.node == tanh])
    assert set(evaluator.executed(alone).nonzero()[0]) == {tanh}
    assert evaluator.evaluate(alone, (16,)).seconds == 1.0
    assert evaluator.evaluate(both, (16,)).seconds == 2.0


@pytest.mark.parametrize("planner_type", [StoragePlanner, ReferencePlanner])
def test_map_that_no_gradient_reads_runs_once(planner_type: Any) -> None:
    b = Builder()
    x = b.variable("x", 4)
    y = b.forward("negative", "y", (4,), x)
    z = b.forward("negative", "z", (4,), y)
    head = b.variable("head", 4, forward=False)
    gy = b.backward("negative", "gy", (4,), head, control_deps=(z.node,))
    gx = b.backward("negative", "gx", (4,), gy, control_deps=(y.node,))
    training = b.graph([z, gx])
    evaluator = planner_type(training, [1.0] * len(training.nodes))
    choice = choice_of(training, [y])
    assert evaluator.evaluate(choice, (16,)).seconds == 0
    assert not evaluator.executed(choice).any()
    assert evaluator.evaluate(choice, (16,)).totals == evaluator.evaluate(choice_of(training, ()), (16,)).totals


# Edges -------------------------------------------------------------------------------------------------------


def test_choice_of_another_graph_is_refused() -> None:
    case = special_case("slices")
    fast, _ = planners(case)
    for wrong in (np.zeros(3, np.uint8), np.zeros(fast.entries, np.int64)):
        with pytest.raises(ValueError, match=f"expected {fast.entries} uint8"):
            fast.evaluate(wrong, (16,))


def test_strided_choices_are_read_right() -> None:
    case = special_case("slices")
    fast, _ = planners(case)
    choice = choice_of(case.training, case.draw(0, 0.5))
    wide = np.zeros((fast.entries, 3), np.uint8)
    wide[:, 1] = choice
    assert fast.evaluate(wide[:, 1], (16,)) == fast.evaluate(choice, (16,))


def test_graph_without_operators_needs_nothing() -> None:
    b = Builder()
    x = b.variable("x", 4)
    training = b.graph([x])
    for evaluator in (StoragePlanner(training, [0.0]), ReferencePlanner(training, [0.0])):
        assert evaluator.evaluate(choice_of(training, ()), (1, 16)).totals == (0, 0)


def test_memory_of_planners_is_given_back() -> None:
    case = model_case("nmt_large")

    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    choice = choice_of(case.training, ())
    for turn in range(60):
        if turn == 10:
            gc.collect()
            before = resident()
        StoragePlanner(case.training, seconds_of(case)).evaluate(choice, (16,))
    gc.collect()
    assert resident() - before < 8 << 20


def test_planner_without_the_library_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    case = special_case("slices")
    fast, effort = make_planner(case.training, seconds_of(case))
    assert isinstance(fast, StoragePlanner)

    def missing() -> ctypes.CDLL:
        raise NativeError("not there")

    monkeypatch.setattr(storage_planner, "planner_library", missing)
    slow, less = make_planner(case.training, seconds_of(case))
    assert isinstance(slow, ReferencePlanner)
    assert 0 < less < effort
    choice = choice_of(case.training, case.draw(0, 0.5))
    assert slow.evaluate(choice, (16, 1), limit=3) == fast.evaluate(choice, (16, 1))
    assert native.planner_library() is not None


def test_reference_counts_four_bytes_an_element() -> None:
    """MXNet's own total does, whatever the type: float16 counts double, float64 half."""
    case = special_case("float16")
    storage = plan_storage(with_clones(case.training, ()), 16)
    assert storage.total == case.training.planned_bytes
    assert storage.total % 4 == 0


# Hand-made graphs -------------------------------------------------------------------------------------------------


def hub(readers: int, op: str = "tanh") -> Any:
    """One map that so many gradients read, each of which may have a copy of its own."""
    b = Builder()
    x = b.variable("x", 8)
    y = b.forward(op, "y", (8,), x)
    head = b.variable("head", 8, forward=False)
    return b.graph([y, *(b.backward("_backward_tanh", f"g{i}", (8,), head, y) for i in range(readers))])


@pytest.mark.parametrize("copies", [1, 255, 256, 300])
def test_run_counts_end_at_255(copies: int) -> None:
    training = hub(copies)
    choice = choice_of(training, [Entry(1)])
    schedule = {1: tuple(range(3, 3 + copies))}
    seconds = [1.0] * len(training.nodes)
    for made in (StoragePlanner(training, seconds), ReferencePlanner(training, seconds)):
        assert made.executed(choice, schedule).tolist()[1] == min(copies, 255)
        assert made.evaluate(choice, (16,), schedule=schedule).seconds == copies


def test_a_dropout_without_a_mask_runs_again() -> None:
    training = hub(3, "Dropout")
    choice = choice_of(training, [Entry(1)])
    fast, slow = (kind(training, [1.0] * 6) for kind in (StoragePlanner, ReferencePlanner))
    assert fast.evaluate(choice, MATCH_RANGES) == slow.evaluate(choice, MATCH_RANGES)


def test_the_arrays_are_those_of_the_header() -> None:
    """Python hands its arrays over by a copy of a C++ struct: the same fields in the same order, of the same types."""
    header = (Path(__file__).parents[2] / "echo/native/planner/graph.h").read_text(encoding="utf-8")
    struct = re.search(r"struct TrainingArrays {\n(.*?)\n};", header, re.DOTALL)
    assert struct is not None
    expected: list[tuple[str, str]] = []
    for declaration in re.sub(r"//.*", "", struct[1]).replace("\n", " ").split(";")[:-1]:
        kind, _, names = re.sub("^const ", "", declaration.strip()).partition(" ")
        expected += [(name.strip(), kind) for name in names.split(",")]
    fields = storage_planner._Arrays._fields_
    assert [name for name, _ in fields] == [name for name, _ in expected]
    pooled = replace(model_case("lm").training, runner=Runner.DYNAMIC, pool=MemoryPool(4096, 2 << 20, powers=False))
    arrays = StoragePlanner(pooled, [1.0] * len(pooled.nodes))._buffers
    dtypes = {"std::int32_t*": "int32", "std::uint8_t*": "uint8", "std::int64_t*": "int64", "double*": "float64"}
    for (name, field), (_, kind) in zip(fields, expected):
        assert field is (ctypes.c_void_p if kind.endswith("*") else ctypes.c_int32)
        assert not kind.endswith("*") or arrays[name].dtype == dtypes[kind], name


NO_MEMORY = """
import ctypes, resource
import numpy
from echo.errors import NativeError
from echo.estimators.storage_planner import StoragePlanner
from echo.estimators.scheduler import Scheduler
from tests.support.made_graphs import diamonds

training = diamonds(20000)
seconds = [1.0] * len(training.nodes)
planner, scheduler = StoragePlanner(training, seconds), Scheduler(training, seconds)
marked = numpy.ones(planner.entries, "uint8")
new, arrays = planner._library.echo_planner_new, ctypes.byref(planner.arrays)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
failed = 0
for action in (lambda: new(arrays), lambda: planner.evaluate(marked, (16,)), lambda: scheduler.simulate({})):
    try:
        action()
    except NativeError as error:
        failed += "the planner failed: std::bad_alloc" in str(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(failed)
"""


@pytest.mark.slow
def test_no_memory_is_an_error() -> None:
    """Not the end of the process."""
    if "ECHO_SANITIZED" in os.environ:
        pytest.skip("a sanitizer ends a process that has no memory")
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", NO_MEMORY], capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == 3
