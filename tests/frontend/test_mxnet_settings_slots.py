"""From how many spaces MXNet's operators draw, by its variables and by what runs the graph."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from echo.frontend.mxnet_settings import changed_workspace_slots, workspace_slots
from echo.ir.training_graph import Runner


@pytest.mark.parametrize(
    ("text", "cpu", "gpu"), [(None, 4, 1), ("3", 3, 3), ("1", 1, 1), ("", 4, 1), ("0", 4, 1), ("many", 4, 1)]
)
def test_cached_ops_draw_from_all(text: str | None, cpu: int, gpu: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MXNET_CPU_TEMP_COPY", "MXNET_GPU_TEMP_COPY"):
        monkeypatch.delenv(name, raising=False)
        if text is not None:
            monkeypatch.setenv(name, text)
    for runner in (Runner.STATIC, Runner.DYNAMIC):
        assert (workspace_slots("cpu", runner), workspace_slots("gpu", runner)) == (cpu, gpu)
    shaped = tuple(workspace_slots(device, Runner.SHAPED) for device in ("cpu", "gpu"))
    assert shaped == (min(cpu, 2), min(gpu, 2)), "one for each of its passes"
    assert workspace_slots("cpu", Runner.EXECUTOR) == workspace_slots("gpu", Runner.EXECUTOR) == 1


@pytest.mark.parametrize(
    ("text", "runner", "setting"),
    [(None, Runner.STATIC, None), ("4", Runner.STATIC, None), ("32", Runner.STATIC, "32"), ("32", Runner.SHAPED, None),
     ("1", Runner.SHAPED, "1"), ("32", Runner.EXECUTOR, None)],
)  # fmt: skip
def test_spaces_other_than_the_default_are_settings_of_plans(
    text: str | None, runner: str, setting: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MXNET_CPU_TEMP_COPY", raising=False)
    if text is not None:
        monkeypatch.setenv("MXNET_CPU_TEMP_COPY", text)
    assert changed_workspace_slots("cpu", runner).get("MXNET_CPU_TEMP_COPY") == setting


# Operators that draw 2 MB each, in turn from as many spaces as there are, and random numbers.
_PROGRAM = """
import mxnet as mx, numpy as np
from echo.frontend.mxnet_settings import workspace_slots
from echo.verify import storage
from echo.instrument.recording import StorageCounter
first = mx.nd.random.uniform(shape=(4,)).asnumpy().tolist()
x = mx.nd.array(np.random.RandomState(0).rand(1 << 18))
mx.nd.waitall()
assert storage.counting_blocker() == ""
counter = StorageCounter()
for _ in range(8):
    mx.nd.argsort(x).wait_to_read()
print(counter.most(), workspace_slots("cpu", "dynamic"), first, mx.nd.random.normal(shape=(4,)).asnumpy().tolist())
"""


def drawn(echo: str, **variables: str) -> tuple[int, int, str]:
    """The most bytes of storage in a process, how many spaces echo counts, and random numbers."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("ECHO", "MXNET"))}
    environment.update(ECHO=echo, OMP_NUM_THREADS="1", **variables)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    most, count, numbers = done.stdout.strip().split(" ", 2)
    return int(most), int(count), numbers


@pytest.fixture(scope="module")
def stock() -> tuple[int, int, str]:
    return drawn("0")


def test_transparent_mode_draws_from_one_space_and_keeps_random_numbers(stock: tuple[int, int, str]) -> None:
    most, count, numbers = drawn("1")
    assert (stock[1], count) == (4, 1)
    assert most < stock[0] - 2 * (1 << 21)
    assert numbers == stock[2]


@pytest.mark.every(2)
@pytest.mark.parametrize("variable", ["MXNET_CPU_TEMP_COPY", "MXNET_CPU_WORKER_NTHREADS"])
def test_transparent_mode_keeps_the_spaces_that_the_user_asks_for(variable: str, stock: tuple[int, int, str]) -> None:
    most, count, _ = drawn("1", **{variable: "4"})
    assert count == 4
    assert most >= stock[0]
