"""Fused kernels: several operators in one pass over memory, with gradients that recompute instead of stash.

``libecho_kernels.so`` runs them on the CPU and on CUDA devices; its C interface is ``include/echo_kernels.h``. `call`
runs one, and the tests specify each in NumPy (`tests/support/reference/`).
"""

from __future__ import annotations

from echo.kernels.library import ADD, SKIP, WRITE, call, kernels_library, level, workspace_bytes

__all__ = ["ADD", "SKIP", "WRITE", "call", "kernels_library", "level", "workspace_bytes"]
