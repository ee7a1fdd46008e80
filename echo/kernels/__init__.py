"""Fused kernels: several operators in one pass over memory, with gradients that recompute instead of stash.

``libecho_kernels.so`` runs them on the CPU and on CUDA devices, as operators of MXNet; its C interface is
``include/echo_kernels.h``. The tests specify each in NumPy (`tests/support/reference/`) and call it without MXNet
(`tests/support/kernel_calls.py`).
"""

from __future__ import annotations

from echo.kernels.library import kernels_library, level

__all__ = ["kernels_library", "level"]
