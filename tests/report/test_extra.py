"""Libraries of the extra: there, or told what brings them."""

from __future__ import annotations

import pytest

from echo.errors import UnsupportedError
from echo.report.extra import module_of


def test_a_library_that_is_there() -> None:
    assert module_of("json").loads("3") == 3


def test_a_library_that_is_not() -> None:
    with pytest.raises(UnsupportedError, match=r"reports need no_such_library: pip install 'mxnet-echo\[report\]'"):
        module_of("no_such_library")
