"""What is tried once in a process is tried whatever the program is doing then."""

from __future__ import annotations

import mxnet as mx

import echo
from echo.frontend.hook import install_hook
from echo.frontend.selfcheck import check_hook, onednn_activations
from echo.runtime.find import PLANNER


def test_activations_are_tried_in_any_context() -> None:
    """The first plan of a process may be that of a block on another device, which runs in the context of its data."""
    assert install_hook() == ""
    known = onednn_activations()
    onednn_activations.cache_clear()
    with mx.cpu(1):
        assert onednn_activations() == known


def test_self_check_in_transparent_mode_plans_nothing_of_its_own() -> None:
    """`ECHO=1 mxecho doctor` would otherwise say that the hook does not fit."""
    assert install_hook() == ""
    known = onednn_activations()
    onednn_activations.cache_clear()
    before = PLANNER.summary.graphs
    with echo.enable():
        check_hook()
        assert onednn_activations() == known
    assert PLANNER.summary.graphs == before
