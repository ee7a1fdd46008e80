"""The native libraries: the hook in MXNet's passes, and the fast planner; `counter` has one for processes that measure.

``libecho_hook.so`` wraps MXNet's gradient and memory passes at run time (`install`, `uninstall`, `capture`);
``libecho_planner.so`` evaluates choices of the planner and knows nothing of MXNet. Both are built when the package is
installed and loaded at first use. Where one is missing or damaged, `NativeError` says so; callers then work without.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple

from echo.errors import NativeError
from echo.system.process import is_whole_library
from echo.system.threads import PerThread, without_forks

_installed: ctypes.CDLL | None = None  # the library whose functions MXNet calls now
_CAPTURES: PerThread[tuple[Capture, ...]] = PerThread(())  # those that are open, the innermost last


def load(name: str, folders: Iterable[str]) -> ctypes.CDLL:
    """The library of this file name in the first of these folders that has it.

    Raises:
        NativeError: it was not built, is damaged, or cannot be loaded.
    """
    # an editable install keeps the libraries in another folder than the sources: a package's path knows both
    candidates = [Path(folder) / name for folder in folders]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise NativeError(
            f"{name} is not installed; it is built by a C++ compiler when echo is installed "
            "(Debian and Ubuntu: apt-get install g++), then reinstall mxnet-echo"
        )
    if not is_whole_library(path):
        raise NativeError(f"{path} cannot be loaded, reinstall mxnet-echo: the file is damaged")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"{path} cannot be loaded, reinstall mxnet-echo: {error}") from error


def function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A function of a library, with the types of its result and its arguments.

    Raises:
        NativeError: the library does not have it.
    """
    try:
        entry_point = getattr(library, name)
    except AttributeError as error:
        raise NativeError(f"{library._name} has no function {name}, reinstall mxnet-echo") from error
    entry_point.restype, entry_point.argtypes = result, arguments
    return entry_point  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=None)
def _load(name: str) -> ctypes.CDLL:
    return load(name, __path__)


@functools.lru_cache(maxsize=None)
def planner_library() -> ctypes.CDLL:
    """The planner's library. Where one of its functions fails, as for want of memory, `NativeError` says so.

    Raises:
        NativeError: it was not built or cannot be loaded.
    """
    library = _load("libecho_planner.so")
    pointer, number, size, real = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double

    def check(result: Any, called: Any, _: Any) -> Any:
        if result is None or result == -1 or result != result:
            raise NativeError(f"the planner failed: {error().decode()}")
        return result

    def checked(name: str, result: Any, *arguments: Any) -> None:
        function(library, name, result, *arguments).errcheck = check  # type: ignore[attr-defined]

    checked("echo_planner_new", pointer, pointer)
    function(library, "echo_planner_free", None, pointer)
    checked("echo_planner_evaluate", real, pointer, pointer, number, pointer, pointer, pointer, number, size, pointer,
            pointer)  # fmt: skip
    checked("echo_planner_blocks", number, pointer, pointer, pointer)
    checked("echo_schedule_new", pointer, pointer, number, pointer)
    function(library, "echo_schedule_free", None, pointer)
    checked("echo_schedule_set", number, pointer, number, pointer, pointer)
    function(library, "echo_schedule_get", number, pointer, number, pointer, pointer)
    function(library, "echo_schedule_end_in", None, pointer, real)
    checked("echo_schedule_simulate", real, pointer, pointer)
    function(library, "echo_schedule_steps", number, pointer, number, pointer, pointer)
    checked("echo_schedule_fit", real, pointer, pointer, size, size, pointer)
    checked("echo_schedule_least", real, pointer, pointer, real, size, real, pointer)
    checked("echo_schedule_keep", real, pointer, size, number, pointer)
    error = function(library, "echo_planner_error", ctypes.c_char_p)
    return library


class Allowed(NamedTuple):
    """The marks that the hook applies; it refuses a graph with any other.

    ``again`` are the operators that may be recomputed. Of those in ``all_outputs`` every output may be read from
    the clone, of others the first alone. ``exchanges`` are the pairs of gradients that may be exchanged, as
    ``OLD>NEW``.
    """

    again: Iterable[str] = ()
    all_outputs: Iterable[str] = ()
    exchanges: Iterable[str] = ()


NOTHING = Allowed()


def install(libmxnet: str, allowed: Allowed = NOTHING) -> None:
    """Wraps the gradient and memory passes of the loaded ``libmxnet.so`` at this path. Doing it twice is harmless.

    The first ``allowed`` in a process that is not empty holds from then on.

    Raises:
        NativeError: the library is missing, damaged, or does not fit this MXNet.
    """
    global _installed
    with without_forks():  # the library has a lock, too
        if _installed is not None:
            return
        library = _load("libecho_hook.so")
        error = function(library, "echo_error", ctypes.c_char_p)
        texts = [" ".join(sorted(names)).encode() for names in allowed]
        function(library, "echo_allow", None, *[ctypes.c_char_p] * len(texts))(*texts)
        if function(library, "echo_install", ctypes.c_int, ctypes.c_char_p)(libmxnet.encode()):
            raise NativeError(f"the hook does not fit this MXNet: {error().decode()}")
        _installed = library


def hook_library() -> ctypes.CDLL:
    """The library that `install` loads.

    Raises:
        NativeError: it was not built or cannot be loaded.
    """
    return _installed or _load("libecho_hook.so")


def installed() -> bool:
    """Whether MXNet's passes are wrapped now."""
    return _installed is not None


def uninstall() -> None:
    """Puts MXNet's own passes back; `install` wraps them again.

    Raises:
        NativeError: another library has wrapped the passes since; nothing is changed then.
    """
    global _installed
    with without_forks():  # the library has a lock, too
        if _installed is None:
            return
        if function(_installed, "echo_uninstall", ctypes.c_int)():
            raise NativeError(function(_installed, "echo_error", ctypes.c_char_p)().decode())
        _installed = None


class Capture:
    """The last training graph that was bound while a `capture` was open: ``graph`` is its JSON value, None before.

    Its ``allocated_bytes`` and ``chunks`` are those of MXNet's memory plan, its ``touched_bytes`` the part of them
    that MXNet ever allocates. Its ``accumulations`` say of each sum of two gradients whether it is computed in place.
    Where nodes were asked for, `captured_nodes` reads them, ``outputs`` are the graph's outputs, and ``storage`` are
    MXNet's storage ids of all outputs of nodes, in order.
    """

    def __init__(self, nodes: bool) -> None:
        self.graph: Any = None
        self.nodes = nodes


@contextlib.contextmanager
def capture(nodes: bool = True) -> Iterator[Capture]:
    """While this is open, the graphs that MXNet plans for the calling thread are written down (`Capture.graph`).

    Captures nest: each holds the last graph that was planned while it was open, with its nodes if one of them asks.
    """
    begin, end = _capture_functions(hook_library())
    around = _CAPTURES.value
    caught = Capture(nodes or any(outer.nodes for outer in around))
    if around:
        _keep(around[-1], end())
    with _CAPTURES.set_to((*around, caught)):
        begin(caught.nodes)
        done = False
        try:
            yield caught
            done = True
        finally:
            text = end()
            if done:  # after an error, as an interrupt (Ctrl-C), nothing asks: to read a large graph takes seconds
                _keep(caught, text)
            if around:
                around[-1].graph = caught.graph or around[-1].graph
                begin(around[-1].nodes)


@functools.lru_cache(maxsize=None)
def _capture_functions(library: ctypes.CDLL) -> tuple[Callable[[int], None], Callable[[], bytes]]:
    begin = function(library, "echo_capture_begin", None, ctypes.c_int)
    return begin, function(library, "echo_capture_end", ctypes.c_char_p)


def _keep(caught: Capture, text: bytes) -> None:
    if text:
        caught.graph = json.loads(text)


class CapturedNode(NamedTuple):
    """A node that the hook wrote down.

    ``kind`` is the JSON value of all that it has in common with others: ``op``, ``shapes`` and ``dtypes`` of its
    outputs, which of them are ``external`` and, of an operator, also ``untouched``, ``inplace``, ``shape_only``,
    ``random``, ``stateful`` and ``mutates`` (`echo.ir.training_node.TrainingNode`). ``inputs`` are numbers of nodes,
    each followed by that of the node's output.
    """

    kind: Mapping[str, Any]
    name: str
    inputs: list[int]
    control_deps: list[int]


def captured_nodes(graph: Mapping[str, Any]) -> Iterator[CapturedNode]:
    """The nodes of a captured graph, in the order in which they run."""
    kinds = graph["kinds"]
    for kind, *rest in graph["nodes"]:
        yield CapturedNode(kinds[kind], *rest)


@contextlib.contextmanager
def unfused() -> Iterator[None]:
    """While this is open, MXNet does not fuse pointwise operators of graphs that the calling thread binds for a GPU.

    By default it does (``MXNET_USE_FUSION``). Nothing changes for other threads, nor where the hook is not there.
    """
    keep = _keep_unfused(_installed)
    before = keep(1)
    try:
        yield
    finally:
        if before >= 0:
            keep(before)


def keeps_unfused() -> bool:
    """Whether `unfused` has an effect: the hook is there, and found how this MXNet asks for variables."""
    keep = _keep_unfused(_installed)
    before = keep(1)
    if before >= 0:
        keep(before)
    return before >= 0


@functools.lru_cache(maxsize=None)
def _keep_unfused(library: ctypes.CDLL | None) -> Callable[[int], int]:
    """The hook's function, which gives -1 and changes nothing where MXNet cannot be told."""
    return function(library, "echo_keep_unfused", ctypes.c_int, ctypes.c_int) if library else lambda _: -1
