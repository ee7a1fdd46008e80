"""The fixture of tests that switch the hook off, or look for its libraries elsewhere."""

from __future__ import annotations

from typing import Iterator

import pytest

from echo.frontend.install import install_hook
from tests.support.hooked_network import forget


@pytest.fixture
def hook_on() -> Iterator[None]:
    """The hook is on before and after the test."""
    assert install_hook() == ""
    yield
    forget()
    assert install_hook() == ""
