"""Tests of what is installed into MXNet: the hook, once a process, and its self-check."""

from __future__ import annotations

import mxnet as mx
import pytest

import echo
from echo.errors import UnsupportedError
from echo.frontend.install import check_hook, check_version, install_hook, onednn_activations
from echo.runtime.bind_plan import PLANNER


def test_the_hook_is_installed_once() -> None:
    assert install_hook() == "" == install_hook()


def test_another_copy_of_echo_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_version()
    monkeypatch.setitem(vars(mx), "_echo_owner", pytest)
    with pytest.raises(UnsupportedError, match=r"two copies of echo in one process, .*pytest.* and .*echo"):
        check_version()


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
