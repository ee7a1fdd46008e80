"""Every operator that MXNet registers has a case, or a reason why it has none."""

from __future__ import annotations

import pytest

from echo.frontend import install
from echo.frontend.install import install_hook
from echo.ir.ops import ops_with
from tests.operators.cases import CASES, registered
from tests.operators.left_out import LEFT_OUT
from tests.operators.not_readers import NOT_READERS

COVERED = {case.op for case in CASES}


@pytest.fixture(autouse=True, scope="module")
def _operators() -> None:
    assert install_hook() == ""
    assert install.extension_blocker() == ""


def test_every_operator_has_a_case_or_a_reason() -> None:
    assert not COVERED & set(LEFT_OUT)
    assert registered() == COVERED | set(LEFT_OUT)


def test_every_case_is_of_a_reader_or_known_not_to_be_one() -> None:
    readers = ops_with(lambda spec: spec.safety.address_stable_reads)
    assert not readers & set(NOT_READERS)
    assert readers | set(NOT_READERS) == COVERED


def test_every_recomputable_operator_has_a_case() -> None:
    assert ops_with(lambda spec: spec.safety.recomputable) <= COVERED
