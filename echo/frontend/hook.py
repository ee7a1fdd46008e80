"""Is this an MXNet that echo can work on, and does the native hook fit it? Both are asked once a process."""

from __future__ import annotations

import os

import mxnet as mx
import mxnet.libinfo

from echo import compat, native
from echo.errors import EchoError, UnsupportedError
from echo.frontend.selfcheck import check_hook
from echo.ir.gradient_rules import EXCHANGES
from echo.ir.ops import ops_with
from echo.system.threads import Lock

_install_lock = Lock()
_ALLOWED = native.Allowed(ops_with(lambda spec: spec.recomputable), ops_with(lambda spec: spec.every_output), EXCHANGES)


def check_version() -> None:
    """Refuses an MXNet that echo cannot work on.

    Raises:
        UnsupportedError: it is of another version than the one that the hook and the planner replay exactly, or another
            copy of echo works on it in this process: either copy would take the other's binds for the user's.
    """
    compat.check_version(mx.__version__)
    owner = vars(mx).setdefault("_echo_owner", compat)  # a module of the copy that came first
    if owner is not compat:
        where = " and ".join(os.path.dirname(str(copy.__file__)) for copy in (owner, compat))
        raise UnsupportedError(f"two copies of echo in one process, {where}: the first one stays, start Python anew")


def install_hook() -> str:
    """Wraps MXNet's passes and checks the result once; the reason why not where that fails, else an empty text."""
    with _install_lock.held():
        return "" if native.installed() else _install_checked()


def _install_checked() -> str:
    try:
        native.install(mxnet.libinfo.find_lib_path()[0], _ALLOWED)
        try:
            check_hook()
        except EchoError:
            native.uninstall()
            raise
    except EchoError as error:
        return str(error)
    return ""
