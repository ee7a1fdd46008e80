"""What the MXNet of this process is to echo, for ``mxecho doctor``: whether the hook fits, and where kernels run."""

from __future__ import annotations

from typing import NamedTuple

import mxnet as mx

from echo import compat
from echo.errors import NativeError
from echo.kernels import library


class Examined(NamedTuple):
    """Why echo does without something here, empty texts where it does not, and what MXNet's own settings are.

    ``devices`` has the reasons why kernels do not run on each GPU that MXNet sees.
    """

    hook: str
    kernels: str
    devices: tuple[str, ...]
    fuses_pointwise: bool


def version() -> str:
    """MXNet's version, whichever it is."""
    return str(getattr(mx, "__version__", "unknown"))


def examine() -> Examined:
    """Installs the hook and tries it, loads the kernels, and runs one on each GPU, which takes seconds.

    Raises:
        UnsupportedError: another version than MXNet 1.9.1, or a second copy of echo in this process.
    """
    compat.check_version(version())
    from echo.frontend import extension, pointwise, session  # which look inside MXNet

    session.check_version()
    gpus = range(mx.context.num_gpus())
    hook, kernels = session.install_hook(), extension.why_not()
    devices = tuple(kernels or _why_not_on(number) for number in gpus)
    return Examined(hook, kernels, devices, len(gpus) > 0 and pointwise.fuses(mx.gpu(0)))


def _why_not_on(number: int) -> str:
    try:
        return library.why_not_on_cuda(number)
    except NativeError as error:
        return str(error)
