"""Every way to train a hybridized Gluon block, with echo and without: the same bits, the same files.

The same bits without fusion; with it, what there is to fuse comes close.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest

import echo
from tests.support.block_scenarios import (
    FLAGS,
    Run,
    attention,
    backward_twice,
    begun_again,
    data_loader,
    estimator,
    exported_and_imported,
    float16,
    float64,
    frozen_and_added,
    gradients_by_grad,
    hybrid_parts_of_a_plain_block,
    modes,
    nested,
    np_training,
    plans_of,
    recurrent_cells,
    recurrent_layer,
    several_batch_sizes,
    several_forwards,
    shared_parameters,
    training,
    two_contexts,
)
from tests.support.training import assert_close, assert_same

pytestmark = pytest.mark.usefixtures("cheap_planning")


EVERY_WAY: list[Callable[[Run], None]] = [
    training, several_batch_sizes, exported_and_imported, nested, hybrid_parts_of_a_plain_block, backward_twice,
    gradients_by_grad, frozen_and_added, modes, shared_parameters, two_contexts, recurrent_cells, recurrent_layer,
    attention, float64, begun_again, np_training,
]  # fmt: skip
ONE_WAY: list[Callable[[Run], None]] = [several_forwards, float16, data_loader, estimator]
CASES = [(scenario, way) for scenario in EVERY_WAY for way in FLAGS] + [(scenario, "dynamic") for scenario in ONE_WAY]


@pytest.mark.every(4)
@pytest.mark.parametrize(("scenario", "way"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_the_same_bits(
    scenario: Callable[[Run], None], way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = done(scenario, Run(tmp_path / "off", FLAGS[way]))
    with caplog.at_level(logging.DEBUG, "echo"), echo.enable(max_overhead=None, fuse=False):
        run = Run(tmp_path / "on", FLAGS[way])
        found = done(scenario, run)
    assert re.search(r"[1-9]\d* feature maps? recomputed", caplog.text)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    for block in run.blocks:
        assert any(plan.recomputed_nodes for plan in plans_of(block)), f"nothing of {block.name} was recomputed"
    assert any(value.any() for name, value in expected.items() if "gradient" in name or "loss" in name)
    assert_same(found, expected)


@pytest.mark.usefixtures("free_workspaces")
@pytest.mark.parametrize("way", FLAGS)
def test_fused_cells_come_close(way: str, tmp_path: Path) -> None:
    expected = done(recurrent_cells, Run(tmp_path / "off", FLAGS[way]))
    with echo.enable(max_overhead=None):
        run = Run(tmp_path / "on", FLAGS[way])
        found = done(recurrent_cells, run)
    names = {name for block in run.blocks for plan in plans_of(block) for name, _ in plan.fused}
    assert names == {"lstm_layer", "gru_cell"}
    assert_close(found, expected)


def done(scenario: Callable[[Run], None], run: Run) -> dict[str, Any]:
    run.folder.mkdir()
    mx.random.seed(5)
    np.random.seed(5)
    with mx.name.NameManager():
        scenario(run)
    run.keep("random stream", mx.nd.random.uniform(shape=(64,)))
    run.seen.update({f"file {path.name}": np.array(path.read_bytes()) for path in run.folder.iterdir()})
    return run.seen
