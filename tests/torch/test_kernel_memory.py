"""The memory at each of Inductor's kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.torch import backend, compat, kernel_memory, timing  # noqa: E402
from echo.torch.choices import as_planned  # noqa: E402
from echo.torch.kernel_memory import memory_at, scratch_of, written_over  # noqa: E402


class Kernel:
    """A kernel that writes one buffer, as Inductor's scheduler describes it; a buffer is known by its maker."""

    def __init__(self, name: str, size: int, whole: Kernel | None = None, operator: Any = None) -> None:
        self.name, self.readers, self.operator = name, list[Kernel](), operator
        layout = (
            SimpleNamespace() if whole is None else SimpleNamespace(view=SimpleNamespace(get_name=lambda: whole.name))
        )
        planned = SimpleNamespace(size_alloc=size, size_free=size, succ_nodes=self.readers)
        self.buffer = SimpleNamespace(get_name=lambda: name, mpi_buffer=planned, node=SimpleNamespace(layout=layout))

    def get_outputs(self) -> list[Any]:
        return [self.buffer]

    def get_nodes(self) -> list[Any]:
        origins = [] if self.operator is None else [self.operator]
        return [SimpleNamespace(is_extern=lambda: self.operator is not None,
                                node=SimpleNamespace(get_origins=lambda: origins))]  # fmt: skip

    def reads(self, *kernels: Kernel) -> Kernel:
        for kernel in kernels:
            kernel.readers.append(self)
        return self


def test_buffers_are_alive_from_their_kernel_to_their_last_reader() -> None:
    first, second = Kernel("a", 100), Kernel("b", 10)
    third = Kernel("c", 1).reads(first, second)
    kernels = [first, second, third, Kernel("d", 1000)]
    assert memory_at(kernels, {}, {"c"}) == [100, 110, 111, 1001, 1]


def test_inputs_that_can_be_freed_are_alive_to_their_last_reader() -> None:
    first, second = Kernel("a", 10), Kernel("b", 20)
    saved = SimpleNamespace(mpi_buffer=SimpleNamespace(size_free=7, succ_nodes=[first]))
    assert memory_at([first, second], {"saved": saved}, {"b"}) == [17, 20, 20]


def test_whole_is_alive_from_its_first_part_and_parts_are_not_counted() -> None:
    whole = Kernel("whole", 8)
    parts = [Kernel("left", 5, whole), Kernel("right", 3, whole)]
    whole.reads(*parts)
    assert memory_at([parts[0], Kernel("other", 1), parts[1], whole], {}, {"whole"}) == [8, 9, 8, 8, 8]


def test_output_takes_the_memory_of_an_input_of_its_size_that_dies() -> None:
    first, second = Kernel("a", 64), Kernel("b", 64)
    second.reads(first)
    assert memory_at([first, second], {}, {"b"}) == [64, 64, 64]
    last = Kernel("c", 1).reads(first)
    assert memory_at([first, second, last], {}, {"b", "c"}) == [64, 128, 129, 65]
    assert written_over(second, [32, 64, 64]) == 64
    assert written_over(Kernel("b", 64, operator=object()), [64]) == 0, "operators of torch's allocate what they return"


def test_memory_that_an_operator_takes_inside_counts_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = SimpleNamespace(op="call_function")
    monkeypatch.setattr(timing, "known_scratch", lambda node, layout: 30 if node is operator and layout else 0)
    kernel = Kernel("a", 10, operator=operator)
    assert scratch_of(kernel) == 30
    assert memory_at([kernel, Kernel("b", 1)], {}, {"a"}) == [40, 11, 10]


def test_estimate_is_inductors_own_where_echo_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = kernel_memory.estimated(lambda kernels, inputs, outputs: (5, [5]))
    kernels = [Kernel("a", 10)]
    assert estimate(kernels, {}, set()) == (5, [5])
    with as_planned():
        assert estimate(kernels, {}, set()) == (10, [10, 0])
        assert estimate([object()], {}, set()) == (5, [5]), "kernels of another version"
    assert estimate(kernels, {}, set()) == (5, [5])


@pytest.mark.parametrize(("size", "expected"), [(1 << 16, True), (100, False)])
def test_function_ends_after_a_large_kernel(size: int, expected: bool) -> None:
    is_ready = kernel_memory.ending_early(lambda scheduling: False)
    scheduling = SimpleNamespace(kernel_group=SimpleNamespace(scheduled_nodes=[Kernel("a", 1), Kernel("b", size)]))
    assert not is_ready(scheduling)
    with as_planned():
        assert is_ready(scheduling) is expected
    assert kernel_memory.ending_early(lambda scheduling: True)(scheduling)


def test_no_other_order_is_tried_where_echo_compiles() -> None:
    reorder = kernel_memory.keeping_order(lambda kernels, methods=("lpmf",): [*methods, *kernels])
    assert reorder(["a"]) == ["lpmf", "a"]
    with as_planned():
        assert reorder(["a"]) == ["a"]
        assert kernel_memory.keeping_order(sorted)([2, 1]) == [1, 2], "of another version"


def test_inductor_is_adapted_once() -> None:
    from torch._inductor import memory

    kernel_memory.adapt_inductor()
    own = memory.estimate_peak_memory
    kernel_memory.adapt_inductor()
    assert memory.estimate_peak_memory is own


@pytest.mark.slow
def test_joined_maps_that_run_again_need_what_is_planned() -> None:
    from benchmarks.torch_models import MODELS

    torch.manual_seed(1)
    model, inputs = MODELS["unet"]()
    ours = backend(0.5, strict=True)
    compiled = torch.compile(model, backend=ours, fullgraph=True)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        compiled(*inputs).backward()

    step()
    peak, _ = compat.allocated(step)
    (plan,) = ours.plans
    assert peak <= 1.08 * plan.peak_bytes, "16 % more with Inductor's own estimate"
