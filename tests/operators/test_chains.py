"""Chains of compute-heavy operators that run twice as a whole: every bit is that of the graph without copies."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from echo.frontend import install
from echo.frontend.install import install_hook
from tests.operators.chains import CHAINS, RANGES, WAYS, Chain
from tests.operators.run import EXECUTOR, differences


@pytest.fixture(autouse=True, scope="module")
def _operators() -> None:
    assert install_hook() == ""
    assert install.extension_blocker() == ""


@pytest.mark.parametrize("name", ["dense", "fused attention"])
def test_chain_that_runs_twice_keeps_every_bit(name: str) -> None:
    chain = Chain(name, EXECUTOR, "add")
    found = chain.found(RANGES[-1], chain.record(chain.base))
    assert found.heavy >= chain.least
    assert not found.wrong


def test_another_value_in_the_middle_is_found() -> None:
    """Or a chain would keep its bits whatever its operators compute."""
    chain = Chain("dense", EXECUTOR, "write")
    number = next(number for number, node in enumerate(chain.base.nodes) if node.attrs.get("act_type") == "tanh")
    other = chain.base.with_attrs({number: {"act_type": "softsign"}})
    assert len(differences(chain.record(other), chain.record(chain.base))) > 10


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2"])
def test_chains_keep_every_bit_under_threads(threads: str) -> None:
    """Of operators, and of MXNet's engine."""
    variables = {"OMP_NUM_THREADS": threads, "OMP_DYNAMIC": "false", "MXNET_CPU_WORKER_NTHREADS": threads}
    command = [sys.executable, "-m", "tests.operators.chains"]
    done = subprocess.run(command, env={**os.environ, **variables}, check=True, capture_output=True, text=True,
                          timeout=600)  # fmt: skip
    found = json.loads(done.stdout)
    assert len(found) == len(CHAINS) * len(WAYS) * len(RANGES)
    assert all(each["heavy"] >= CHAINS[each["chain"]][3] for each in found)
    assert all(each["fused"] == CHAINS[each["chain"]][2] for each in found)
    assert not [each for each in found if each["wrong"]]
