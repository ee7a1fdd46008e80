"""Found by Python when it starts, with this folder on PYTHONPATH: libraries of echo come from ECHO_LIBRARIES."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from typing import Any


class _First:
    """Puts a folder before those in which the packages look for their libraries."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in ("echo.native", "echo.kernels"):
            return None
        for finder in sys.meta_path:
            spec = None if finder is _First else finder.find_spec(name, path, target)
            if spec is not None and spec.submodule_search_locations is not None:
                spec.submodule_search_locations.insert(0, os.environ["ECHO_LIBRARIES"])
                return spec
        return None


if "ECHO_LIBRARIES" in os.environ:
    sys.meta_path.insert(0, _First)  # type: ignore[arg-type]
