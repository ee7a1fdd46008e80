"""Which kernels Inductor does not fuse, those that free memory and would have to wait, and the order of the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.torch import backend, compat  # noqa: E402
from echo.torch.choices import as_planned, delays, freed_bytes, in_order_of_graph, waits  # noqa: E402

MB = 1 << 20


class Kernels:
    """Kernels in the order of a graph as Inductor's scheduler has them: the buffers that each reads; each makes one."""

    def __init__(self, *reads: tuple[str, ...], size: int = MB) -> None:
        self.size = size
        self.kernels = [self._kernel(at, read) for at, read in enumerate(reads)]
        users: dict[str, list[Any]] = {f"buf{at}": [] for at in range(len(reads))}
        for kernel, read in zip(self.kernels, reads):
            for name in read:
                users.setdefault(name, []).append(SimpleNamespace(node=kernel))
        self.name_to_buf = {f"buf{at}": SimpleNamespace(users=users[f"buf{at}"], defining_op=kernel)
                            for at, kernel in enumerate(self.kernels)}  # fmt: skip
        self.name_to_donated_buffer = {"saved": SimpleNamespace(users=users.get("saved", []), defining_op=None)}

    @staticmethod
    def _kernel(at: int, names: tuple[str, ...]) -> Any:
        moved = SimpleNamespace(reads=[SimpleNamespace(name=name) for name in names], writes=[SimpleNamespace(name="")])
        return SimpleNamespace(read_writes=moved, min_order=at, max_order=at, get_name=lambda: f"op{at}",
                               get_operation_names=lambda: {f"op{at}"})  # fmt: skip

    def dep_size_hint(self, dep: Any) -> int:
        return self.size


def test_sum_frees_its_terms_less_its_output() -> None:
    kernels = Kernels((), (), ("buf0", "buf1"), ("buf2",))
    assert freed_bytes(kernels, *kernels.kernels[2:]) == MB


def test_term_with_a_reader_between_is_freed_all_the_same() -> None:
    kernels = Kernels((), ("buf0",), ("buf0",), ("buf1",))
    assert freed_bytes(kernels, kernels.kernels[1], kernels.kernels[3]) == 0, "one comes, one goes"


def test_term_that_the_later_kernel_reads_is_not_freed() -> None:
    kernels = Kernels((), ("buf0",), ("buf1", "buf0"))
    assert freed_bytes(kernels, *kernels.kernels[1:]) == -MB


def test_output_of_the_graph_is_not_freed() -> None:
    kernels = Kernels((), ("buf0",), ())
    kernels.name_to_buf["buf0"].users.append(SimpleNamespace(node=object()))
    assert freed_bytes(kernels, *kernels.kernels[1:]) == -MB


def test_saved_value_is_freed_and_a_parameter_is_not() -> None:
    kernels = Kernels(("saved", "primals_1"), ())
    assert freed_bytes(kernels, *kernels.kernels) == 0


def test_kernel_waits_for_what_another_one_makes_later() -> None:
    kernels = Kernels((), ("buf0",), (), ("buf1", "buf2"), ("buf1", "buf0"))
    first, _, second, soon = kernels.kernels[1:]
    assert waits(kernels, first, second)
    assert not waits(kernels, first, soon)


@pytest.mark.parametrize(("size", "expected"), [(MB, True), (100, False)])
def test_sum_of_large_terms_is_not_delayed(size: int, expected: bool) -> None:
    kernels = Kernels((), (), ("buf0", "buf1"), (), ("buf2", "buf3"), size=size)
    assert delays(kernels, kernels.kernels[2], kernels.kernels[4]) is expected


def kernel(first: int, *reads: str) -> Any:
    """A kernel whose first operator has a number in the graph, and that writes a buffer with that number."""
    depends = [SimpleNamespace(name=name) for name in reads]
    return SimpleNamespace(min_order=first, unmet_dependencies=depends, get_buffer_names=lambda: {f"buf{first}"})


def test_kernels_run_in_the_order_of_the_graph() -> None:
    kernels = [kernel(2, "buf0", "primals_1"), kernel(1), kernel(0)]
    assert [each.min_order for each in in_order_of_graph(kernels)] == [0, 1, 2]


def test_kernel_runs_after_what_it_depends_on_and_that_stays_where_it_is() -> None:
    kernels = [kernel(0), kernel(1, "buf3"), kernel(2), kernel(3, "buf0"), kernel(4)]
    assert [each.min_order for each in in_order_of_graph(kernels)] == [0, 2, 3, 1, 4]


def test_kernels_in_a_circle_stay_as_they_are() -> None:
    kernels = [kernel(1, "buf0"), kernel(0, "buf1")]
    assert in_order_of_graph(kernels) == kernels


def test_choices_are_those_of_torch_again_afterwards() -> None:
    from torch._inductor.virtualized import V

    with as_planned():
        assert type(V.choices).__name__ == "Choices"
    assert type(V.choices).__name__ == "InductorChoices"


def unrolled(weight: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Keys that eight steps read, each after a product of the step before it."""
    query = weight[:1]
    for _ in range(8):
        query = (keys + query).tanh().sum(0, keepdim=True) @ weight
    return query.sum()


@pytest.mark.slow
def test_sum_of_gradients_over_steps_is_made_as_they_come() -> None:
    weight, keys = (torch.randn(*shape, requires_grad=True) for shape in ((64, 64), (4096, 64)))
    ours = backend(1.0, strict=True)
    compiled = torch.compile(unrolled, backend=ours, fullgraph=True)

    def step() -> None:
        weight.grad = keys.grad = None
        (compiled(weight, keys) * 1e-9).backward()

    step()
    weight.grad = keys.grad = None
    peak, _ = compat.allocated(step)
    (plan,) = ours.plans
    assert plan.peak_bytes < 5 * MB, "of eight gradients of one MB each"
    assert peak <= 1.02 * plan.peak_bytes
