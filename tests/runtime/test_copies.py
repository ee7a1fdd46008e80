"""Copies and pickles of optimized blocks: they plan by themselves, as MXNet's own copies work by themselves."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import mxnet as mx
import pytest
from mxnet import autograd

import echo
from echo.runtime.cached_op import PlannedCachedOp
from tests.support.gluon_blocks import BATCH, FEATURES, net
from tests.support.training import assert_same

pytestmark = pytest.mark.usefixtures("cheap_planning")
COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda block: pickle.loads(pickle.dumps(block)),
    "copy of a copy": lambda block: copy.deepcopy(copy.deepcopy(block)),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("hybridized_first", [True, False])
def test_copy_of_an_optimized_block_plans_and_trains_by_itself(how: str, hybridized_first: bool) -> None:
    block = net()
    block.initialize(mx.init.Xavier())
    data = mx.nd.random.uniform(shape=(BATCH, FEATURES))
    block(data)
    block = echo.optimize(block, fuse=False)
    if hybridized_first:
        block.hybridize()
    twin = COPIES[how](block)
    twin.hybridize()
    gradients = {}
    for name, each in (("copy", twin), ("original", block)):
        each.hybridize()
        trained = {key: value for key, value in each.collect_params().items() if value.grad_req != "null"}
        for parameter in trained.values():
            parameter.grad_req = "null"
            parameter.grad_req = "write"  # MXNet's own copies need new gradients, too
        with autograd.record():
            loss = each(data).square().sum()
        loss.backward()
        assert isinstance(each._cached_op, PlannedCachedOp)
        assert len(each._cached_op.plans) == 1
        gradients[name] = {key: value.grad().asnumpy() for key, value in trained.items()}
    assert twin._cached_op is not block._cached_op
    assert_same(gradients["copy"], gradients["original"])


@pytest.mark.slow
def test_block_that_is_unpickled_elsewhere_plans_itself(tmp_path: Path) -> None:
    block = echo.optimize(net())
    block.initialize()
    (tmp_path / "block.pickle").write_bytes(pickle.dumps(block))
    script = (
        "import pickle, sys, mxnet as mx\nblock = pickle.load(open(sys.argv[1], 'rb'))\nblock.hybridize()\n"
        "with mx.autograd.record():\n    block(mx.nd.ones((8, 12)))\nprint(type(block._cached_op).__name__)"
    )
    words = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "block.pickle")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "PlannedCachedOp"


def test_block_that_was_not_optimized_stays_stock_next_to_one_that_was() -> None:
    echo.optimize(net())
    block = net()
    block.initialize()
    block.hybridize()
    with autograd.record():
        block(mx.nd.ones((BATCH, FEATURES)))
    assert not isinstance(block._cached_op, PlannedCachedOp)
