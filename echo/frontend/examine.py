"""Examines the MXNet of this process for ``mxecho doctor``: whether the hook fits, and on which devices kernels run."""

from __future__ import annotations

from typing import NamedTuple

import mxnet as mx

from echo import compat
from echo.errors import NativeError, one_line
from echo.kernels import library


class Examined(NamedTuple):
    """Why echo does without something here, empty texts where it does not, and what MXNet's own settings are.

    ``gpus`` is why MXNet cannot count its GPUs, as where the driver is too old for its wheel; ``devices`` has the
    reasons why kernels do not run on each of them.
    """

    hook: str
    kernels: str
    gpus: str
    devices: tuple[str, ...]
    fuses_pointwise: bool


def version() -> str:
    """Returns MXNet's version, also one that echo does not support."""
    return str(getattr(mx, "__version__", "unknown"))


def examine() -> Examined:
    """Installs the hook and tries it, loads the kernels, and runs one on each GPU, which takes seconds.

    Raises:
        UnsupportedError: another version than MXNet 1.9.1, or a second copy of echo in this process.
    """
    compat.check_version(version())
    from echo.frontend import install, mxnet_settings  # which look inside MXNet

    install.check_version()
    count, why_none = _gpus()
    hook, kernels = install.install_hook(), install.extension_blocker()
    devices = tuple(kernels or _device_blocker(number) for number in range(count))
    return Examined(hook, kernels, why_none, devices, count > 0 and mxnet_settings.fuses(mx.gpu(0)))


def _gpus() -> tuple[int, str]:
    """Returns the number of GPUs that MXNet sees, and the error where it cannot count them."""
    try:
        return mx.context.num_gpus(), ""
    except mx.MXNetError as error:
        return 0, one_line(error)


def _device_blocker(number: int) -> str:
    try:
        return library.why_not_on_cuda(number)
    except NativeError as error:
        return str(error)
