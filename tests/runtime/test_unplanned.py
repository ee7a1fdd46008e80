"""Gluon programs of which echo sees little: one line says so."""

from __future__ import annotations

import logging

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import echo
from echo.runtime import unplanned
from echo.runtime.unplanned import Unplanned
from echo.system.threads import ONCE


def _train(net: gluon.Block) -> None:
    for layer in range(3):
        net.add(nn.Dense(4 + layer), nn.Activation("tanh"), nn.LayerNorm())
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    for _ in range(2):
        with autograd.record():
            loss = net(mx.nd.ones((8, 4))).sum()
        loss.backward()
        trainer.step(8)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    of_process = Unplanned()
    for module in ("unplanned", "gluon"):
        monkeypatch.setattr(f"echo.runtime.{module}.UNPLANNED", of_process)
    ONCE.forget()
    caplog.set_level(logging.INFO, "echo")
    return caplog


def test_block_that_is_not_hybridized_is_told_once(said: pytest.LogCaptureFixture) -> None:
    with echo.enable():
        _train(nn.HybridSequential())
        _train(nn.HybridSequential())
    lines = [record.getMessage() for record in said.records]
    assert len(lines) == 1
    assert "call hybridize()" in lines[0]
    assert "call hybridize()" in unplanned.UNPLANNED.why()


def test_block_that_is_hybridized_is_not_told(said: pytest.LogCaptureFixture) -> None:
    with echo.enable():
        net = nn.HybridSequential()
        net.hybridize()
        _train(net)
    assert not [record for record in said.records if "hybridize" in record.getMessage()]


@pytest.mark.filterwarnings("ignore:All children of this Sequential layer")
def test_sequential_that_is_hybridized_is_told_once(said: pytest.LogCaptureFixture) -> None:
    with echo.enable():
        for _ in range(2):
            net = nn.Sequential()
            net.add(nn.Dense(4), nn.Dense(3))
            net.hybridize()
            net.hybridize(False)
    (line,) = [record.getMessage() for record in said.records]
    assert "each of the 2 blocks in it is planned by itself" in line
    assert "a HybridSequential is planned as a whole" in line


def test_sequential_that_is_optimized_is_told(said: pytest.LogCaptureFixture) -> None:
    net = nn.Sequential()
    net.add(nn.Dense(4), nn.Dense(3))
    echo.optimize(net)
    assert "Sequential is no HybridBlock" in said.text


def test_trainer_and_blocks_are_mxnets_own_again_when_disabled() -> None:
    step, hybridize = gluon.Trainer.step, gluon.Block.hybridize
    with echo.enable():
        assert gluon.Trainer.step is not step
    assert (gluon.Trainer.step, gluon.Block.hybridize) == (step, hybridize)
