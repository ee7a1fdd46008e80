"""An error inside of echo: a warning, and the original graph trains; with ``strict`` it is raised."""

from __future__ import annotations

import logging
from typing import Any

import mxnet as mx
import pytest

import echo
from echo.errors import EchoError, GraphError
from echo.passes.analysis import Differentiate
from tests.support.small_network import SHAPES, network, trained
from tests.support.training import assert_same

pytestmark = pytest.mark.usefixtures("cheap_planning")


@pytest.mark.parametrize("error", [GraphError("surprise"), RuntimeError("surprise"), mx.MXNetError("surprise")])
def test_an_error_inside_echo_costs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    expected = trained(network(), SHAPES, label=10)

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Differentiate, "run", fail)
    optimized = echo.optimize(network())
    with caplog.at_level(logging.WARNING, "echo"):
        assert_same(trained(optimized, SHAPES, label=10), expected)
    (record,) = caplog.records
    assert "surprise" in record.getMessage()
    assert optimized.plans == []
    with pytest.raises(EchoError, match="surprise"):
        trained(echo.optimize(network(), strict=True), SHAPES, label=10)
    with pytest.raises(EchoError, match="surprise"):
        echo.plan(network(), **SHAPES)
