"""What is checked when a backward pass runs: modes, and arrays that must not have been written to."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
from typing import AbstractSet, Any, Callable, Iterable, Iterator, Mapping, Sequence

import mxnet as mx
from mxnet import autograd
from mxnet.base import _LIB, NDArrayHandle, SymbolHandle, check_call
from mxnet.symbol import Symbol

from echo import native
from echo.errors import ChangedInputError, EchoError, NativeError, UnsupportedError
from echo.frontend import mxnet_settings
from echo.ir.graph import PREFIX, Entry, Graph, Node, walk
from echo.ir.op_spec import NEVER, PLAN_ATTRIBUTE
from echo.ir.ops import spec
from echo.native import watch
from echo.native.watch import Record
from echo.runtime.patches import PATCHES

# Gluon's backward passes that would be wrong are refused: in another mode than forward, or of arrays written since.
#
# What echo recomputes runs in the mode of the backward pass, and BatchNorm computes something else outside of
# training. MXNet remembers nowhere in which mode a pass was recorded. So `record_mode` writes the operators at stake in
# the node of MXNet's recorded graph, from where they go when that graph goes, and `MXAutogradBackwardEx`, through
# which every gradient of MXNet's Python comes, first looks for such notes where it is called with
# ``train_mode=False``. Records of the arrays that are read again (`echo.runtime.backward_checks`) go with those
# nodes, too, and are looked at each time.

_NOTE = "__echo_trained__"


def record_mode(output: Any, operators: Iterable[str]) -> None:
    """Notes which operators the gradients of a pass just recorded in training recompute; ``output`` is one of its own.

    From then on an inference backward pass through it raises `UnsupportedError`.
    """
    _guard()
    try:
        recorded = autograd.get_symbol(output)
    except mx.MXNetError:  # nothing that went in needs a gradient, so nothing was recorded
        return
    recorded._set_attr(**{_NOTE: ",".join(sorted(operators))})  # the symbol holds the recorded node itself


def attach_record(record: Record, output: Any) -> None:
    """Attaches the record of the arrays that are read again to a pass just recorded, by one of its outputs.

    From then on a backward pass through it raises `ChangedInputError` where one of them was written since.
    """
    _guard()
    record.attach(output.handle)


def quiet_backward() -> None:
    """Has MXNet write no lines of `echo.frontend.mxnet_settings` in backward passes from now on."""
    _guard()
    mxnet_settings.quiet_backward()


def _guard() -> None:
    PATCHES.put_for_good(_LIB, "MXAutogradBackwardEx", _guarded)


def _guarded(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original, assigned=())
    def backward(count: int, heads: Any, head_gradients: Any, num_variables: int, variables: Any, retain: Any,
                 create: Any, is_train: Any, *results: Any) -> int:  # fmt: skip
        if not getattr(is_train, "value", is_train):
            _refuse({name for head in heads[:count] for name in _noted(head)})
        refuse_changed_upstream(count, heads, num_variables, variables)
        with mxnet_settings.in_backward():
            return original(count, heads, head_gradients, num_variables, variables, retain, create, is_train, *results)

    return backward


def _noted(head: int) -> list[str]:
    """The operators that were noted of the passes after a head; none where it has no recorded graph."""
    handle = SymbolHandle()
    if _LIB.MXAutogradGetSymbol(NDArrayHandle(head), ctypes.byref(handle)):
        return []  # MXNet's own function says what is wrong
    noted = (attrs.get(_NOTE, "") for attrs in Symbol(handle).attr_dict().values())
    return [name for names in noted if names for name in names.split(",")]


def _refuse(operators: set[str]) -> None:
    if operators:
        names = tuple(sorted(operators))
        raise UnsupportedError(
            f"backward(train_mode=False) after a pass that was recorded in training, on a plan that recomputes "
            f"{', '.join(names)}: the gradients would not be those of your original graph. Plan with keep={names} to "
            f"have both, or record(train_mode=False)"
        )


# Parameters and inputs that change between forward and backward: refused where the plan reads them again.
#
# A plan recomputes feature maps from arrays as they are in backward. `watch_of` says which arrays of a bound graph
# these are, most often few and small. MXNet's engine notes them at each forward pass (`echo.native.watch`), and
# backward first checks that they were not written since.

logger = logging.getLogger("echo")


def needs_training(graph: Graph, original: Graph, recomputed: Iterable[Node]) -> bool:
    """Whether backward reads what forward writes in training alone, and that of the ``original`` graph does not.

    These are the masks with which a Dropout is recomputed, and the signs that a BatchNorm with its ReLU keeps.
    """
    own = {node.name for node in original.nodes if spec(node.op).safety.training_outputs}
    put_in = (node for node in graph.nodes if node.name not in own)
    with_masks = any(spec(node.op).safety.clone_op for node in recomputed)
    return with_masks or any(spec(node.op).safety.training_outputs for node in put_in)


class InputWatch:
    """The arrays of one bound graph that are read again, at ``places`` among its inputs.

    ``messages`` are what an error says of each.
    """

    def __init__(
        self, library: watch.WatchLibrary, places: Sequence[int], messages: Sequence[str], digests: bool
    ) -> None:
        self._places = tuple(places)
        self._watch = watch.Watch(library, messages, digests)

    def record(self, arrays: Sequence[Any]) -> watch.Record:
        """Notes the state of the arrays after all that was asked of MXNet so far; ``arrays`` are all inputs."""
        with _mxnets_error():
            return self._watch.record([arrays[place].handle.value for place in self._places])


def watch_of(graph: Graph, original: Graph, names: Sequence[str]) -> InputWatch | None:
    """The watch of a graph, bound for the user's with inputs of these names; None where nothing is read again."""
    messages = messages_of(graph, variables_read_in_backward(graph, original))
    places = [place for place, name in enumerate(names) if name in messages]
    return _input_watch(places, [messages[names[place]] for place in places], digests=True)


def watch_of_all(names: Sequence[str], mode: bool) -> InputWatch | None:
    """The watch of all these inputs of a graph whose forward pass, in this mode, backward may have to repeat.

    Backward seldom repeats a training pass, which is not to take longer for it. Inference passes get digests, since
    oneDNN writes weights again there.
    """
    why = f"backward in another mode than forward repeats the forward pass: {_MIXTURE}. Write it after backward"
    return _input_watch(range(len(names)), [f"{written_early(name)}, and {why}" for name in names], digests=not mode)


def _input_watch(places: Sequence[int], messages: Sequence[str], digests: bool) -> InputWatch | None:
    library = _library() if places else None
    return None if library is None else InputWatch(library, places, messages, digests)


def refuse_changed(record: watch.Record | None) -> None:
    """Raises `ChangedInputError` where an array that was noted has been written since."""
    if record is not None:
        with _mxnets_error():
            _refuse_gradients(record.changed())


def refuse_changed_upstream(count: int, heads: Any, num_variables: int, variables: Any) -> None:
    """As `refuse_changed`, for all passes that MXNet recorded after the heads of a ``MXAutogradBackwardEx``."""
    library = _library()
    if library is not None:
        with _mxnets_error():
            _refuse_gradients(watch.told(library.upstream(heads, count, variables, num_variables)))


def _refuse_gradients(text: str) -> None:
    if text:
        raise ChangedInputError(text)


@contextlib.contextmanager
def _mxnets_error() -> Iterator[None]:
    try:
        yield
    except watch.FailedError:
        check_call(-1)


@functools.lru_cache(maxsize=None)
def _library() -> watch.WatchLibrary | None:
    """The library, once it has been tried on arrays of this MXNet; None where that fails."""
    try:
        library = watch.WatchLibrary(native.hook_library(), mx.libinfo.find_lib_path()[0])
        _check(library)
    except EchoError as error:
        logger.debug("echo: arrays that change between forward and backward are not noticed: %s", error)
        return None
    return library


def _data(array: mx.nd.NDArray) -> int:
    pointer = ctypes.c_void_p()
    check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value or 0


def _check(library: watch.WatchLibrary) -> None:
    """Raises `NativeError` where the library does not read arrays as MXNet has them."""
    with autograd.pause():
        _try(library)


def _try(library: watch.WatchLibrary) -> None:
    array = mx.nd.array([[1, 2, 3], [4, 5, 6]], mx.cpu(), "float64")
    row = array[1]
    if not library.fits(row.handle, _data(row), 24, _data(array), 48):
        raise NativeError("arrays are not laid out as expected")
    before = library.version(row.handle)
    noted = watch.Watch(library, ["row"]).record([row.handle.value])
    array += 0
    array.wait_to_read()
    counted, same = library.version(row.handle) - before, noted.changed()
    array[1, 2] = 7
    if counted != 1 or same or noted.changed() != "row":
        raise NativeError(f"expected to see an array change, got {counted} writes, {same!r} and {noted.changed()!r}")


# Which variables a plan reads in backward where MXNet's own gradients read feature maps of the forward pass, or the
# other way round.

_MIXTURE = "the gradients would be those of a mixture of old and new values"


def variables_read_in_backward(graph: Graph, original: Graph) -> dict[int, tuple[int, ...]]:
    """The variables of a graph as it is bound that nodes read at another time than in the user's, with those nodes.

    These are nodes that are recomputed, and fused operators, whose gradients recompute their feature maps; and of fused
    operators and products that were put together also what they read through nodes that are not the user's, as a copy:
    his gradients may read the variable itself in backward.
    """
    names = {node.name for node in original.nodes}
    new_nodes = {number for number, node in enumerate(graph.nodes) if node.name not in names}
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        fused = node.op.startswith(PREFIX)
        for place, entry in enumerate(node.inputs):
            again = (PLAN_ATTRIBUTE in node.attrs or fused) and graph.nodes[entry.node].is_variable
            copied = entry.node in new_nodes and (fused or (number in new_nodes and spec(node.op).cost.heavy))
            for variable in _above(graph, entry, new_nodes) if (again or copied) and _reads(node, place) else ():
                readers.setdefault(variable, []).append(number)
    return {variable: tuple(dict.fromkeys(numbers)) for variable, numbers in sorted(readers.items())}


def _above(graph: Graph, entry: Entry, new_nodes: AbstractSet[int]) -> Iterator[int]:
    """The variables that an entry is, or whose numbers it is made of by nodes that are not the user's."""

    def read(number: int) -> list[int]:
        node = graph.nodes[number]
        return [source.node for place, source in enumerate(node.inputs) if number in new_nodes and _reads(node, place)]

    return (number for number in walk([entry.node], read) if graph.nodes[number].is_variable)


def _reads(node: Node, place: int) -> bool:
    """Whether a result depends on an input that can be watched."""
    return not spec(node.op).safety.exempt_from_write_check.get(place, NEVER)(node.attrs)


def written_early(name: str) -> str:
    """The beginning of a message about a variable that was written too early."""
    return f"{name!r} was written between a forward pass and its backward pass"


def messages_of(graph: Graph, again: Mapping[int, tuple[int, ...]]) -> dict[str, str]:
    """A message for each of these variables, by its name, in case that it is written too early."""
    return {graph.nodes[number].name: _text(graph, number, readers) for number, readers in again.items()}


def _text(graph: Graph, variable: int, readers: tuple[int, ...]) -> str:
    first = graph.nodes[readers[0]]
    more = f" and {len(readers) - 1} more" if len(readers) > 1 else ""
    fused = [graph.nodes[number].name for number in readers if graph.nodes[number].op.startswith(PREFIX)]
    kept = tuple(graph.nodes[number].name for number in readers if graph.nodes[number].name not in fused)
    shown = f"keep={kept[:3] if len(kept) < 4 else (*kept[:3], '...')}" if kept else ""
    options = " and ".join(option for option in (shown, "fuse=False" if fused else "") if option)
    return (
        f"{written_early(graph.nodes[variable].name)}, and the plan computes {first.name!r} ({first.op}){more} from it "
        f"again in backward: {_MIXTURE}. Write it after backward, or plan with {options}, or train without echo "
        "(ECHO=0)"
    )
