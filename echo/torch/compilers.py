"""The compilers of graphs behind echo's partitioner: Inductor, and AOTAutograd without one.

As in `echo.torch.compat`, nothing of Inductor's settings is public: what a version lacks is looked for when it is used.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Sequence

import torch
import torch._functorch.config
from torch import fx

from echo.errors import UnsupportedError
from echo.torch.choices import as_planned, in_order_of_graph
from echo.torch.compat import Partition

# Of what Inductor reads for a sum before it writes the sum. Without this, the gradients of a value with many readers,
# such as a weight of an unrolled network, wait for the last one: 25 MB instead of 19 for a translation model.
_SUM_BYTES = 1 << 16
# What several kernels read is stored where it reads more than this, by Inductor's own setting 4: less than a batch norm
# reads. Plans have such a value computed in each kernel: 26.0 MB instead of 23.7 for a U-Net.
_READS = 6
_FUSION = 4  # a part of the keys of Inductor's caches: to be raised when `echo.torch.choices` decides otherwise

try:
    from torch._inductor.custom_graph_pass import CustomPartitionerFn
except ImportError:  # `inductor_with` says so
    CustomPartitionerFn = object
try:
    from torch._inductor.custom_graph_pass import CustomSchedulerPass
except ImportError:  # torch 2.9 takes any function, and does not look at it for its caches
    CustomSchedulerPass = object


class CustomPartitioner(CustomPartitionerFn):  # type: ignore[misc]  # torch is not there where types are checked
    """A partitioner as Inductor's setting takes it."""

    def __init__(self, partition: Partition, key: str) -> None:
        self._partition, self._key = partition, key

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        return self._partition(module, inputs, **options)

    def __getstate__(self) -> dict[str, str]:
        """The key alone: Inductor pickles its settings to look graphs up, and plans hold whole graphs."""
        return {"_key": self._key}

    def uuid(self) -> str:
        """What tells apart the graphs of two partitioners in Inductor's caches."""
        return self._key


class KernelOrder(CustomSchedulerPass):  # type: ignore[misc]  # as above
    """The order of kernels that echo's plans have (`echo.torch.choices`), as Inductor's setting takes it."""

    def __call__(self, kernels: list[Any]) -> list[Any]:
        return in_order_of_graph(kernels)

    def uuid(self) -> int:
        """What tells apart the graphs of two orders in Inductor's caches."""
        return _FUSION


def inductor_with(partition: Partition, key: str, *, planned: bool = True) -> Callable[..., Any]:
    """A backend of Inductor's with another partitioner, which ``key`` tells apart from others.

    With ``planned``, Inductor chooses as in `echo.torch.choices`, and adds gradients of one value as they come.

    AOTAutograd's cache is off: it would hand out the division of an earlier process, and nothing would be planned.

    Raises:
        UnsupportedError: this version of torch has no such setting.
    """
    from torch._inductor import config

    if not hasattr(config, "custom_partitioner_fn"):
        raise UnsupportedError(
            f"torch {torch.__version__} cannot give Inductor another partitioner (2.9 and newer can): "
            'compiler="aot_eager" works with this version'
        )
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    key = f"{key}, fusion {_FUSION}" if planned else key
    chosen = {"custom_partitioner_fn": CustomPartitioner(partition, key)}
    order = getattr(config, "_post_fusion_custom_pass", None) or KernelOrder()  # the user's own pass, if there is one
    settings = {
        "realize_acc_reads_size_threshold": _SUM_BYTES,
        "realize_reads_threshold": _READS,
        "_post_fusion_custom_pass": order,
    }
    known = {name: value for name, value in settings.items() if planned and hasattr(config, name)}
    caches = {"enable_autograd_cache": False} if hasattr(torch._functorch.config, "enable_autograd_cache") else {}

    def inner(*args: Any, **options: Any) -> Any:
        """Compiles one graph: that of the backward pass when it first runs, outside of all that is open now."""
        with config.patch({**chosen, **known}), as_planned() if planned else contextlib.nullcontext():
            return compile_fx_inner(*args, **options)

    def compiled(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with config.patch(chosen), torch._functorch.config.patch(caches):
            return compile_fx(module, inputs, inner_compile=inner)

    return compiled


def eager_with(partition: Partition, compiler: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A backend that runs the partitioned graphs by ``compiler``, by default operator by operator."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    chosen = boxed_nop if compiler is None else compiler
    return aot_autograd(fw_compiler=chosen, bw_compiler=chosen, partition_fn=partition)  # type: ignore[no-any-return]
