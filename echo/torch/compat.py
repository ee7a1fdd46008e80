"""What echo uses of torch that is not public, and the versions that have it.

Functions with a stable signature since torch 2.4 are imported as they are; everything else is looked for when it is
used. What a version lacks raises `UnsupportedError` with the version in its message.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
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


def min_cut_partition(
    module: fx.GraphModule, inputs: Sequence[Any], **options: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """torch's partitioner for Inductor, with its activation budget; it changes ``module``."""
    return _partition_by(partitioners.min_cut_rematerialization_partition, module, inputs, options)


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
    kinds = {(value.shape, value.dtype) for value in outputs if isinstance(value, torch.Tensor)}
    values = {node: node.meta.get("val") for node in inputs}
    return {node for node, value in values.items()
            if isinstance(value, torch.Tensor) and (value.shape, value.dtype) in kinds}  # fmt: skip


def flat(value: Any) -> list[Any]:
    """The leaves of tuples and lists, in order."""
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


def copied(module: fx.GraphModule) -> fx.GraphModule:
    """A graph module with a graph of its own and the same constants."""
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


try:
    from torch._inductor.custom_graph_pass import CustomPartitionerFn
except ImportError:  # `inductor_with` says so
    CustomPartitionerFn = object


class CustomPartitioner(CustomPartitionerFn):  # type: ignore[misc]  # torch is not there where types are checked
    """A partitioner as Inductor's setting takes it."""

    def __init__(self, partition: Partition, key: str) -> None:
        self._partition, self._key = partition, key

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        return self._partition(module, inputs, **options)

    def uuid(self) -> str:
        """What tells apart the graphs of two partitioners in Inductor's caches."""
        return self._key


def inductor_with(partition: Partition, key: str) -> Callable[..., Any]:
    """A backend of Inductor's with another partitioner, which ``key`` tells apart from others.

    AOTAutograd's cache is off: it would hand out the division of an earlier process, and nothing would be planned.

    Raises:
        UnsupportedError: this version of torch has no such setting.
    """
    from torch._inductor import config

    if not hasattr(config, "custom_partitioner_fn"):
        raise UnsupportedError(
            f"torch {torch.__version__} cannot give Inductor another partitioner (2.10 and newer can): "
            'compiler="aot_eager" works with this version'
        )
    from torch._inductor.compile_fx import compile_fx

    custom = CustomPartitioner(partition, key)
    caches = {"enable_autograd_cache": False} if hasattr(torch._functorch.config, "enable_autograd_cache") else {}

    def compiled(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with config.patch(custom_partitioner_fn=custom), torch._functorch.config.patch(caches):
            return compile_fx(module, inputs)

    return compiled


def eager_with(partition: Partition, compiler: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A backend that runs the partitioned graphs by ``compiler``, by default operator by operator."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    chosen = boxed_nop if compiler is None else compiler
    return aot_autograd(fw_compiler=chosen, bw_compiler=chosen, partition_fn=partition)  # type: ignore[no-any-return]
