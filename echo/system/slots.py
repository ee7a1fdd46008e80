"""Data classes without a dictionary for each of their values, where Python knows them."""

from __future__ import annotations

import sys

# For ``@dataclass(**SLOTS)``: values take half the memory from Python 3.10 on, and before it what they take without.
SLOTS: dict[str, bool] = {"slots": True} if sys.version_info >= (3, 10) else {}
