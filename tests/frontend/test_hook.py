"""The hook is installed once, and only one copy of echo works on an MXNet."""

from __future__ import annotations

import mxnet as mx
import pytest

from echo.errors import UnsupportedError
from echo.frontend.hook import check_version, install_hook


def test_the_hook_is_installed_once() -> None:
    assert install_hook() == "" == install_hook()


def test_another_copy_of_echo_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_version()
    monkeypatch.setitem(vars(mx), "_echo_owner", pytest)
    with pytest.raises(UnsupportedError, match=r"two copies of echo in one process, .*pytest.* and .*echo"):
        check_version()
