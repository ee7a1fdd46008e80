"""The libraries that the extra ``report`` brings, asked for where they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from echo.errors import UnsupportedError


def module_of(name: str) -> Any:
    """A module that the extra ``report`` brings.

    Raises:
        UnsupportedError: it is not there; the message says what to install.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"reports need {error.name}: pip install 'mxnet-echo[report]'") from error
