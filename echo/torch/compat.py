"""What echo uses of torch that is not public, and the versions that have it.

Functions with a stable signature since torch 2.4 are imported as they are; everything else is looked for when it is
used. What a version lacks raises `UnsupportedError` with the version in its message.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import operator
import warnings
from typing import Any, Callable, Sequence

import torch
import torch._functorch.config
from torch import fx
from torch._functorch import partitioners

from echo.errors import UnsupportedError

OLDEST = (2, 4)  # torch's partitioners take what echo passes them since then

Partition = Callable[..., "tuple[fx.GraphModule, fx.GraphModule]"]


def version() -> tuple[int, int]:
    """The major and minor version of torch."""
    major, minor = torch.__version__.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def check_version() -> None:
    """Checks that this torch calls partitioners as echo expects it to.

    Raises:
        UnsupportedError: it does not.
    """
    if version() < OLDEST:
        raise UnsupportedError(f"torch {torch.__version__} is too old: expected {OLDEST[0]}.{OLDEST[1]} or newer")
    for function in (partitioners.default_partition, partitioners.min_cut_rematerialization_partition):
        parameters = inspect.signature(function).parameters
        if "num_fwd_outputs" not in parameters or list(parameters)[:2] != ["joint_module", "_joint_inputs"]:
            raise UnsupportedError(f"torch {torch.__version__} calls its partitioners in another way: {parameters}")


def _partition_by(
    function: Callable[..., Any], module: fx.GraphModule, inputs: Sequence[Any], options: dict[str, Any]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """What a partitioner of torch's returns, given those options that it takes in this version."""
    known = inspect.signature(function).parameters
    forward, backward = function(module, inputs, **{name: options[name] for name in options if name in known})
    return forward, backward


def default_partition(
    module: fx.GraphModule, inputs: Sequence[Any], **options: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """torch's partitioner that saves whatever the backward pass reads; it may change ``module``."""
    return _partition_by(partitioners.default_partition, module, inputs, options)


def division(module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and backward graphs of a joint graph whose nodes have tags, in the order of these.

    torch 2.10 and newer divide by tags. Older versions run in the backward pass whatever no output needs: values that
    the forward pass makes for the gradients alone, drawn numbers among them.
    """
    if "_has_tag_is_forward" in partitioners.default_partition.__code__.co_names:
        return default_partition(module, inputs, **options)
    saved, numbers = _read_in_backward(module)
    forward, backward = partitioners._extract_fwd_bwd_modules(
        module, saved, saved_sym_nodes=numbers, num_fwd_outputs=options["num_fwd_outputs"]
    )
    for part in (forward, backward):
        _raise_outputs(part)
    return forward, backward


def _raise_outputs(module: fx.GraphModule) -> None:
    """Has nodes of several outputs followed by these: a tuple keeps all of them alive until the last one is taken."""
    for node in module.graph.nodes:
        last = node
        for user in node.users if node.op == "call_function" else ():
            if user.target is operator.getitem:
                if last.next is not user:
                    last.append(user)
                last = user
    module.recompile()


def _read_in_backward(module: fx.GraphModule) -> tuple[list[fx.Node], list[fx.Node]]:
    """The tensors and the numbers of the forward pass that nodes after it read."""
    nodes = [node for node in module.graph.nodes if node.op != "output" and "tangents" not in str(node.target)]
    last = max(at for at, node in enumerate(nodes)
               if node.op == "placeholder" or node.meta.get("partitioner_tag") == "is_forward")  # fmt: skip
    forward = dict.fromkeys(nodes[: last + 1])
    saved: list[fx.Node] = []
    numbers: list[fx.Node] = []
    for node in forward:
        readers = [user for user in node.users if user not in forward]
        if _is_number(node):
            numbers.append(node)
        elif readers and all(map(_is_number, readers)):
            numbers += readers
        elif readers and node.op != "get_attr" and not isinstance(node.meta.get("val"), (tuple, list)):
            saved.append(node)
    return saved, list(dict.fromkeys(numbers))


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))


def min_cut_partition(
    module: fx.GraphModule, inputs: Sequence[Any], **options: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """torch's partitioner for Inductor, with its activation budget; it changes ``module``."""
    return _partition_by(partitioners.min_cut_rematerialization_partition, module, inputs, options)


def is_region(module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph is a ``nested_compile_region`` of another one, which runs as one node of that.

    torch divides it first, and passes none of its inputs.
    """
    return not inputs and any(node.op == "placeholder" for node in module.graph.nodes)


def written_inputs(module: fx.GraphModule, num_forward_outputs: int) -> set[fx.Node]:
    """The inputs into which a step writes after the forward pass: the graph returns their new values.

    torch 2.8 and newer describe each output. Of older versions, every input that looks like an output may be one.
    """
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    described = end.meta.get("desc")
    if described is not None:
        mutated = [getattr(one, "mutated_input", None) for one in flat(described)]
        return {node for node in inputs if node.meta.get("desc") in [one for one in mutated if one is not None]}
    outputs = [one.meta.get("val") for one in flat(end.args)[:num_forward_outputs] if isinstance(one, fx.Node)]
    kinds = {(str(value.shape), value.dtype) for value in outputs if isinstance(value, torch.Tensor)}
    values = {node: node.meta.get("val") for node in inputs}
    return {node for node, value in values.items()
            if isinstance(value, torch.Tensor) and (str(value.shape), value.dtype) in kinds}  # fmt: skip


def flat(value: Any) -> list[Any]:
    """The leaves of tuples and lists, in order."""
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


def copied(module: fx.GraphModule) -> fx.GraphModule:
    """A graph module with a graph of its own and the same constants."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of the trees of its own arguments
        return graph_module(module, copy.deepcopy(module.graph))


def graph_module(module: fx.GraphModule, graph: fx.Graph) -> fx.GraphModule:
    """A module of a graph that uses the constants of another one."""
    return fx.GraphModule(module, graph)


def without_duplicates(module: fx.GraphModule) -> fx.GraphModule:
    """A copy in which equal operators run once, as torch's partitioner for Inductor makes it."""
    from torch._functorch.compile_utils import fx_graph_cse

    new = copied(module)
    new.graph.eliminate_dead_code()
    if torch._functorch.config.cse:
        new.graph = fx_graph_cse(new.graph)
    return new


def allocated(call: Callable[[], Any]) -> tuple[int, int]:
    """The most bytes alive at once of what a call allocates on the CPU, and the bytes of what it returns."""
    from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy
    from torch.utils import _pytree

    settings = torch._C._profiler._ExperimentalConfig()
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, settings))
    try:
        leaves = [one for one in _pytree.tree_leaves(call()) if isinstance(one, torch.Tensor)]
        kept = sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in leaves}.values())
        del leaves  # else the profiler would take its memory, once freed, for that of the next owner
    finally:
        events = _disable_profiler_legacy()
    live = most = 0
    for event in (event for thread in events for event in thread if event.kind() == "memory_alloc"):
        live += event.cpu_memory_usage()
        most = max(most, live)
    return most, kept


def prefers_channels_last(module: fx.GraphModule) -> bool:
    """Whether Inductor runs the convolutions of a graph in the layout channels last."""
    try:
        from torch._inductor.graph import GraphLowering

        return bool(GraphLowering.decide_layout_opt(module, is_inference=False))
    except (ImportError, AttributeError, TypeError):  # versions that decide it elsewhere
        return False


def on_real_tensors() -> contextlib.AbstractContextManager[Any]:
    """While this is open, operators run on the device although torch is tracing."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()  # type: ignore[no-any-return]


def store_of_ranks() -> Any | None:
    """The key-value store of the default process group; None where this process is the only one of its job."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return None
    find: Callable[[], Any] | None = getattr(distributed.distributed_c10d, "_get_default_store", None)
    return None if find is None else find()


def rank() -> int:
    """The number of this process in the default process group."""
    from torch import distributed

    return int(distributed.get_rank())
