"""One step of a plan against one of torch's default partition, on made-up inputs: every bit of every result."""

from __future__ import annotations

from typing import Any, Iterator, Sequence

import torch
from torch import fx

from echo.torch import compat, safety
from echo.torch.capture import is_tangent
from echo.torch.storages import hint

_SEED = 0x6563686F
Pair = "tuple[fx.GraphModule, fx.GraphModule]"


def differences(
    plan: tuple[fx.GraphModule, fx.GraphModule], module: fx.GraphModule, inputs: Sequence[Any], **options: Any
) -> list[str]:
    """The outputs and gradients of a step in which the graphs of a plan differ from torch's default partition.

    ``module`` is the joint graph that both come from, ``inputs`` are what it was traced with. Both run operator by
    operator on the same made-up inputs and random numbers, one after the other; numbers that the program draws later
    do not change. It takes the memory of a step without a plan.
    """
    stock = compat.default_partition(_without_marks(module), inputs, **options)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    with compat.on_real_tensors(), torch.random.fork_rng():
        torch.manual_seed(_SEED)
        values = [_made_up(node.meta.get("val")) for node in placeholders]
        primals = [value for node, value in zip(placeholders, values) if not is_tangent(node)]
        tangents = [value for node, value in zip(placeholders, values) if is_tangent(node)]
        count = options["num_fwd_outputs"]
        results = [_step(pair, primals, tangents, count) for pair in (plan, stock)]
        return [name for name, one, other in _named(*results) if not _is_equal(one, other)]


def _without_marks(module: fx.GraphModule) -> fx.GraphModule:
    """A copy without the marks of checkpoints, by which torch would recompute, too."""
    copy = compat.copied(module)
    for node in copy.graph.nodes:
        node.meta.pop("recompute", None)
    return copy


def _step(
    pair: tuple[fx.GraphModule, fx.GraphModule], primals: Sequence[Any], tangents: Sequence[Any], count: int
) -> tuple[list[Any], list[Any], list[Any]]:
    """Outputs, gradients, and inputs after a step, which may write into them."""
    forward, backward = pair
    torch.manual_seed(_SEED)
    given = [value.clone() if isinstance(value, torch.Tensor) else value for value in primals]
    with torch.no_grad():
        outputs = list(_Seeded(forward).run(*given))
        saved = dict(zip(_saved_names(forward, count), outputs[count:]))
        rest = iter(tangents)
        args = [saved[node.name] if node.name in saved else next(rest)
                for node in backward.graph.nodes if node.op == "placeholder"]  # fmt: skip
        gradients = list(_Seeded(backward).run(*args))
    return outputs[:count], gradients, given


def _saved_names(forward: fx.GraphModule, count: int) -> list[str]:
    (end,) = (node for node in forward.graph.nodes if node.op == "output")
    return [node.name for node in end.args[0][count:]]


class _Seeded(fx.Interpreter):  # type: ignore[misc]  # torch is not there where types are checked
    """Runs a graph; Inductor's random operators depend on their seeds, as its kernels do, and not on when they run."""

    def run_node(self, node: fx.Node) -> Any:
        if safety.operator_name(node) not in ("inductor_random", "inductor_randint"):
            return super().run_node(node)
        seeds = [one for one in self.fetch_args_kwargs_from_env(node)[0] if isinstance(one, torch.Tensor)]
        with torch.random.fork_rng():
            torch.manual_seed(int(seeds[0]) if seeds else _SEED)
            return super().run_node(node)


def _made_up(value: Any) -> Any:
    """A tensor like a traced one: normal numbers; zeros, which every index may be, where it has whole numbers."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.hint
    if not isinstance(value, torch.Tensor):
        return value
    shape, strides = map(hint, value.shape), map(hint, value.stride())
    made = torch.empty_strided(tuple(shape), tuple(strides), dtype=value.dtype, device=value.device)
    return made.normal_() if value.dtype.is_floating_point or value.dtype.is_complex else made.zero_()


def _named(one: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Any, Any]]:
    for kind, ours, stock in zip(("output", "gradient", "input"), one, other):
        for number, (value, expected) in enumerate(zip(ours, stock)):
            yield f"{kind} {number}", value, expected


def _is_equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and bool(one == other)
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=0, atol=0, equal_nan=True))
