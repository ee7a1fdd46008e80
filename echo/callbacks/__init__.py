"""What echo does while other people's training loops run: `Recorder`, which records what a training takes."""

from __future__ import annotations

from echo.runtime.recorder import Recorder

__all__ = ["Recorder"]
