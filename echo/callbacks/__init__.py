"""Callbacks for the user's own training loop: `Recorder` records the time, memory and energy of each step."""

from __future__ import annotations

from echo.instrument.recording import Recorder

__all__ = ["Recorder"]
