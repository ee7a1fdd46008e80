"""What is tried once in a process is tried whatever the program is doing then."""

from __future__ import annotations

import mxnet as mx

from echo.frontend.hook import install_hook
from echo.frontend.selfcheck import onednn_activations


def test_activations_are_tried_in_any_context() -> None:
    """The first plan of a process may be that of a block on another device, which runs in the context of its data."""
    assert install_hook() == ""
    known = onednn_activations()
    onednn_activations.cache_clear()
    with mx.cpu(1):
        assert onednn_activations() == known
