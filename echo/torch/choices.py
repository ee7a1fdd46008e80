"""What Inductor chooses differently with echo, so that values live when the plan has them live.

A sum of gradients, such as that of a weight of an unrolled network, frees more memory than it takes. Inductor fuses
such a sum with the next one, which waits for a later gradient; fused again and again, all gradients are alive until the
last one is there.

After fusion, Inductor sorts kernels with the first one and all that it depends on first. A kernel that runs again for a
late reader then comes with an early one. Here they keep the order of the graph, which is that of the plan.

Inductor holds memory that it will use again as long as its estimate does not rise above the peak. The estimate is
echo's here (`echo.torch.kernel_memory`).

Nothing of this is public in torch: where a name is missing, Inductor chooses as it does without echo.
"""

from __future__ import annotations

import contextlib
import heapq
from typing import Any, Iterator, Sequence

from echo.torch.kernel_memory import adapt_inductor

_LEAST_BYTES = 1 << 16  # that live longer: less is no reason to launch another kernel


def delays(scheduler: Any, first: Any, second: Any) -> bool:
    """Whether fusing two kernels makes the first one wait, and what it reads live longer."""
    return waits(scheduler, first, second) and freed_bytes(scheduler, first, second) >= _LEAST_BYTES


def waits(scheduler: Any, first: Any, second: Any) -> bool:
    """Whether ``second`` reads what another kernel makes after ``first``, in the order of the graph."""
    own = second.get_operation_names()
    for read in second.read_writes.reads:
        buffer = scheduler.name_to_buf.get(read.name)
        maker = None if buffer is None else buffer.defining_op
        if maker is not None and maker.get_name() not in own and maker.min_order > first.max_order:
            return True
    return False


def freed_bytes(scheduler: Any, first: Any, second: Any) -> int:
    """Bytes that ``first`` reads and whose other readers run before ``second``, less those that it makes."""
    moved = first.read_writes
    read = sum(int(scheduler.dep_size_hint(one)) for one in moved.reads if _dies(scheduler, one, second))
    return read - sum(int(scheduler.dep_size_hint(one)) for one in moved.writes)


def _dies(scheduler: Any, read: Any, second: Any) -> bool:
    """Whether all readers of a buffer run before a kernel."""
    buffer = scheduler.name_to_buf.get(read.name) or scheduler.name_to_donated_buffer.get(read.name)
    if buffer is None:
        return False
    return all(getattr(user.node, "max_order", float("inf")) < second.max_order for user in buffer.users)


def in_order_of_graph(kernels: Sequence[Any]) -> list[Any]:
    """The kernels in the order of their first operators, but each after all kernels that it depends on."""
    maker = {name: number for number, kernel in enumerate(kernels) for name in kernel.get_buffer_names()}
    missing = [{maker[each.name] for each in kernel.unmet_dependencies if each.name in maker} - {number}
               for number, kernel in enumerate(kernels)]  # fmt: skip
    readers: list[list[int]] = [[] for _ in kernels]
    for number, makers in enumerate(missing):
        for each in makers:
            readers[each].append(number)
    ready = [(kernel.min_order, number) for number, kernel in enumerate(kernels) if not missing[number]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, number = heapq.heappop(ready)
        ordered.append(kernels[number])
        for reader in readers[number]:
            missing[reader].discard(number)
            if not missing[reader]:
                heapq.heappush(ready, (kernels[reader].min_order, reader))
    return ordered if len(ordered) == len(kernels) else list(kernels)  # a circle, which torch reports


@contextlib.contextmanager
def as_planned() -> Iterator[None]:
    """While this is open, Inductor fuses no kernel that frees memory with one that has to wait, and counts as echo."""
    try:
        from torch._inductor.choices import InductorChoices
        from torch._inductor.virtualized import V

        set_handler = V.set_choices_handler
        adapt_inductor()
    except (ImportError, AttributeError):  # a version without such choices
        yield
        return

    class Choices(InductorChoices):  # type: ignore[misc]  # torch is not there where types are checked
        """torch's own choices, but for this one and its estimate of memory."""

        echo_estimates = True

        @staticmethod
        def can_fuse(scheduler: Any, one: Any, other: Any, score: int) -> bool:
            if delays(scheduler, one, other) or delays(scheduler, other, one):
                return False
            return bool(InductorChoices.can_fuse(scheduler, one, other, score))

    with set_handler(Choices()):
        yield
