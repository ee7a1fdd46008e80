"""Resident memory of this process."""

from __future__ import annotations

import pytest

from echo.system import resident as module
from echo.system.resident import reset_peak, resident
from echo.system.sizes import MB


def test_resident_memory_is_at_most_its_peak() -> None:
    assert MB < resident("VmRSS") <= resident("VmHWM")


def test_unknown_line_is_zero() -> None:
    assert resident("nothing") == 0


def test_system_without_proc_is_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: module.Path) -> None:
    monkeypatch.setattr(module, "_STATUS", tmp_path / "none")
    monkeypatch.setattr(module, "_RESET", tmp_path / "none" / "none")
    reset_peak()
    assert resident("VmRSS") == 0
