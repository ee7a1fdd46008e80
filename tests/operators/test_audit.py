"""Operators between feature maps that are recomputed, moved or unpacked: every bit is that of stock MXNet, or known."""

from __future__ import annotations

import pytest

from echo.frontend import install
from echo.frontend.install import install_hook
from echo.ir.training_node import why_not_reader
from tests.operators.audit import Audit, audit, in_place
from tests.operators.case import Case, case
from tests.operators.cases import CASES
from tests.operators.graph import Setting
from tests.operators.settings import ONE, Trial, fast, full
from tests.operators.tables.layers import rnn
from tests.operators.tables.special import CONTROL

BY_NAME = {str(each): each for each in CASES}
SAMPLE = tuple(BY_NAME)[::24]
IMAGES = "x:2xCx6x6"


@pytest.fixture(autouse=True, scope="module")
def _operators() -> None:
    assert install_hook() == ""
    assert install.extension_blocker() == ""


def reason(case_: Case) -> str:
    return why_not_reader(case_.op, {key: str(value) for key, value in case_.attrs})


def assert_as_known(found: Audit) -> None:
    """A known reader keeps every bit; what fails is known not to be one."""
    if not reason(found.case):
        assert not found.wrong, [vars(each) for each in found.wrong[:3]]
        assert not found.undefined, [vars(each) for each in found.undefined[:3]]


@pytest.mark.every(4)
@pytest.mark.parametrize("name", SAMPLE)
def test_some_operators_in_one_setting(name: str) -> None:
    assert_as_known(audit(BY_NAME[name], fast(BY_NAME[name])))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BY_NAME if not reason(BY_NAME[name])])
def test_every_reader_in_all_settings(name: str) -> None:
    assert_as_known(audit(BY_NAME[name], full(BY_NAME[name])))


# Faults that must be found -------------------------------------------------------------------------------------------

BAD_READERS = {
    **{f"RNN {mode}": rnn(mode, gates) for mode, gates in (("rnn_tanh", 1), ("gru", 3), ("lstm", 4))},
    **{each.op: each for each in CONTROL[:3]},
    "Custom that keeps arrays": CONTROL[4],
    "_scatter_set_nd": case("_scatter_set_nd", "x x:5 i4:2x5", shape=(4, 12)),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", BAD_READERS)
def test_operator_that_reads_more_than_inputs_is_found(name: str) -> None:
    found = audit(BAD_READERS[name], [Trial(Setting(), ONE)])
    assert found.wrong
    assert reason(found.case)


def test_custom_that_reads_its_inputs_is_right() -> None:
    found = audit(CONTROL[3], [Trial(Setting(), ONE)])
    assert found.runs > 5
    assert not found.wrong + found.undefined


def test_memory_is_taken_over() -> None:
    """Or what reads at an old address would go unnoticed."""
    for each in (rnn("gru", 3), case("sin"), case("Convolution", IMAGES + " w:8xCx3x3", kernel=(3, 3), num_filter=8,
                                                  no_bias=True)):  # fmt: skip
        assert audit(each, fast(each)).reused


# Working in place --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case_",
    [
        case("LeakyReLU", "x w:12", act_type="prelu"),
        case("SoftmaxOutput", "x l12:4", out_grad=True),
    ],
    ids=str,
)
def test_gradients_that_hang_on_working_in_place(case_: Case) -> None:
    found = in_place(case_, Setting())
    assert ("under_backward", 0, 0) in found.in_place
    assert found.depends


def test_working_in_place_as_stock_does_is_enough() -> None:
    """Dropout on blocked images, in place where stock MXNet's is not, gives max Pooling another layout."""
    pooling = case("Pooling", IMAGES, kernel=(2, 2), stride=(2, 2), pool_type="max")
    setting = Setting("conv", masked="numbers", consumer="heavy", channels=16)
    assert not audit(pooling, [Trial(setting, ONE)]).wrong
