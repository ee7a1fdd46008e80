"""The memory at each of Inductor's kernels, and kernels that take no more of it than they have to.

Inductor's own estimate counts the parts of a concatenation twice, as they are and in the whole into which they are
written, and an output next to the input whose memory it takes; it does not count what convolutions allocate while they
run. By it, Inductor decides for how long a buffer that is dead is held for the next one of its size: too much in one
place lets it hold too much in all others. Echo's estimate takes its place, and functions of several C++ kernels, which
hold the memory of all of them, end after each large one.

Nothing of this is public in torch: where a name is missing, Inductor estimates as it does without echo.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from typing import Any, Callable, Collection, Mapping, Sequence

from echo.torch import timing

_LARGE = 1 << 16  # bytes of a buffer: less is no reason to call another function

Estimate = Callable[..., "tuple[int, list[int]]"]


def scratch_of(kernel: Any) -> int:
    """The bytes that the operator of a kernel allocates inside itself while it runs, as far as this process saw it."""
    operators = (one.node for one in kernel.get_nodes() if _runs_operator(one))
    origins = (origin for node in operators for origin in node.get_origins() if origin.op == "call_function")
    return max((timing.known_scratch(origin, layout) for origin in origins for layout in (False, True)), default=0)


def written_over(kernel: Any, dying: Collection[int]) -> int:
    """The bytes of outputs for which a generated kernel takes the memory of inputs of the same size that die in it."""
    if any(map(_runs_operator, kernel.get_nodes())):
        return 0
    sizes, left = [buffer.mpi_buffer.size_alloc for buffer in kernel.get_outputs()], Counter(dying)
    return sum(size * min(count, left[size]) for size, count in Counter(sizes).items())


def _runs_operator(node: Any) -> bool:
    """Whether a node of the scheduler calls an operator of torch's, other than the reading of its outputs."""
    return node.is_extern() and type(node.node).__name__ != "MultiOutput"


def memory_at(kernels: Sequence[Any], inputs: Mapping[str, Any], outputs: Collection[str]) -> list[int]:
    """The bytes alive at each kernel, and after the last one.

    ``inputs`` are those that the graph may free, and ``outputs`` are the names of what it returns.
    """
    changes = [0] * (len(kernels) + 1)
    number = {kernel: at for at, kernel in enumerate(kernels)}
    dying: list[list[int]] = [[] for _ in kernels]  # sizes

    def count(name: str, planned: Any, first: int, allocated: int) -> None:
        changes[first] += allocated
        if name not in outputs:
            last = max((number[reader] for reader in planned.succ_nodes), default=first)
            changes[last + 1] -= planned.size_free
            if last > first:
                dying[last].append(planned.size_free)

    for name, value in inputs.items():
        count(name, value.mpi_buffer, 0, value.mpi_buffer.size_free)
    first_part: dict[str, int] = {}
    for at, kernel in enumerate(kernels):
        for buffer in kernel.get_outputs():
            whole = _whole_of(buffer)
            if whole is not None:
                first_part.setdefault(whole, at)
            else:
                planned, name = buffer.mpi_buffer, buffer.get_name()
                count(name, planned, first_part.get(name, at), planned.size_alloc)
        inside = scratch_of(kernel) - written_over(kernel, dying[at])
        changes[at] += inside
        changes[at + 1] -= inside
    alive, found = 0, []
    for change in changes:
        alive += change
        found.append(alive)
    return found


def _whole_of(buffer: Any) -> str | None:
    """The name of the buffer in whose memory another one lies from the start, as a part of a concatenation does."""
    view = getattr(buffer.node.layout, "view", None)
    return None if view is None else str(view.get_name())


def _is_open() -> bool:
    """Whether echo's choices are open in this thread (`echo.torch.choices.as_planned`)."""
    from torch._inductor.virtualized import V

    return getattr(V.choices, "echo_estimates", False)


def estimated(estimate: Estimate) -> Estimate:
    """Inductor's estimate of the peak and of the memory at each kernel; it is echo's where its choices are open."""

    @functools.wraps(estimate)
    def peak_and_memory(kernels: Sequence[Any], inputs: Mapping[str, Any], outputs: Any) -> tuple[int, list[int]]:
        if not _is_open():
            return estimate(kernels, inputs, outputs)
        try:
            memory = memory_at(kernels, inputs, outputs)
        except AttributeError:  # a version that describes kernels in another way
            return estimate(kernels, inputs, outputs)
        return max(memory), memory

    return peak_and_memory


def ending_early(ready_to_flush: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Inductor's question whether a function of several C++ kernels ends; where echo's choices are open, large ones do.

    All that the kernels of a function write is allocated before it is called, and all that they read is freed after it.
    """

    @functools.wraps(ready_to_flush)
    def ends(scheduling: Any) -> bool:
        is_ready = ready_to_flush(scheduling)
        if is_ready or not _is_open():
            return is_ready
        kernels = scheduling.kernel_group.scheduled_nodes
        return any(buffer.mpi_buffer.size_alloc >= _LARGE for kernel in kernels for buffer in kernel.get_outputs())

    return ends


def keeping_order(reorder: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Inductor's choice of the order that it estimates to need the least; the given one where echo's choices are open.

    That one is the plan's. Estimates are far above what kernels need, and not all by the same: by another order
    that was estimated at 3 MB less, a model like Llama needed 11 MB more.
    """
    if "methods" not in inspect.signature(reorder).parameters:
        return reorder

    @functools.wraps(reorder)
    def reordered(*args: Any, **options: Any) -> list[Any]:
        if _is_open():
            options["methods"] = []
        return reorder(*args, **options)

    return reordered


def adapt_inductor() -> None:
    """Replaces these functions of Inductor's once in a process."""
    from torch._inductor import memory
    from torch._inductor.codegen.cpp import CppScheduling

    for owner, name, replaced in (
        (memory, "estimate_peak_memory", estimated),
        (memory, "reorder_for_peak_memory", keeping_order),
        (CppScheduling, "ready_to_flush", ending_early),
    ):
        own = getattr(owner, name, None)
        if own is not None and not hasattr(own, "is_echo"):
            new: Any = replaced(own)
            new.is_echo = True
            setattr(owner, name, new)
