"""What must not run again: each list of `echo.torch.safety`, on traced operators."""

from __future__ import annotations

from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from torch import fx  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from echo.torch import safety  # noqa: E402
from echo.torch.safety import why_not_again  # noqa: E402

aten = torch.ops.aten
X = torch.ones(4, 4)


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> list[fx.Node]:
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    return [node for node in graph.nodes if node.op == "call_function"]


def of(name: str, function: Callable[..., Any], *inputs: torch.Tensor) -> fx.Node:
    nodes = traced(function, *(inputs or (X,)))
    return next(node for node in nodes if safety.operator_name(node) == name)


@pytest.mark.parametrize(("name", "function"), [
    ("mm", lambda x: aten.mm(x, x)),
    ("tanh", lambda x: x.tanh()),
    ("native_layer_norm", lambda x: aten.native_layer_norm(x, [4], None, None, 1e-5)[0]),
    ("_softmax", lambda x: x.softmax(0)),
    ("scatter_add", lambda x: x.scatter_add(0, torch.zeros(4, 4, dtype=torch.int64), x)),
])  # fmt: skip
def test_function_of_its_arguments_may_run_again(name: str, function: Callable[..., Any]) -> None:
    assert why_not_again(of(name, function)) == ""


@pytest.mark.parametrize(("name", "function"), [
    ("native_dropout", lambda x: aten.native_dropout(x, 0.5, True)[0]),
    ("bernoulli", lambda x: aten.bernoulli.p(x, 0.5)),
    ("rand_like", lambda x: aten.rand_like(x)),
    ("randn", lambda x: aten.randn([4])),
    ("multinomial", lambda x: aten.multinomial(x, 1)),
    ("randperm", lambda x: aten.randperm(4)),
])  # fmt: skip
def test_random_operator_never_runs_again(name: str, function: Callable[..., Any]) -> None:
    node = of(name, function)
    assert "draws random numbers" in why_not_again(node, {f"aten::{name}"}), "no option allows it"


def test_every_operator_with_the_random_tag_is_refused() -> None:
    """By its tag, and where a version forgot the tag by its name; attention only with dropout."""
    tag, seen = torch.Tag.nondeterministic_seeded, 0
    for name in dir(aten):
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            target = getattr(packet, overload)
            if tag in target.tags and name not in safety.ATTENTION:
                node = fx.Graph().create_node("call_function", target)
                node.meta["val"] = X
                assert why_not_again(node), target
                seen += 1
    assert seen > 50


@pytest.mark.parametrize("name", sorted(safety.RANDOM))
def test_names_of_random_operators_exist(name: str) -> None:
    import torch._inductor.inductor_prims
    import torch._prims.rng_prims

    spaces = (torch.ops.aten, torch.ops.prims, torch.ops.rngprims)
    newer = {"inductor_rand_eager_offset", "inductor_rand_eager_offsets", "rrelu_with_noise_functional"}
    assert name in newer or any(hasattr(space, name) for space in spaces)


@pytest.mark.parametrize("name", sorted(safety.UNINITIALIZED))
def test_uninitialized_memory_is_never_made_again(name: str) -> None:
    calls: dict[str, Callable[..., Any]] = {
        "empty": lambda x: aten.empty([4]), "empty_like": lambda x: aten.empty_like(x),
        "empty_permuted": lambda x: aten.empty_permuted([4], [0]),
        "empty_strided": lambda x: aten.empty_strided([4], [1]), "new_empty": lambda x: aten.new_empty(x, [4]),
        "new_empty_strided": lambda x: aten.new_empty_strided(x, [4], [1]),
    }  # fmt: skip
    assert "nothing has written" in why_not_again(of(name, calls[name]))


def test_mutation_never_runs_again() -> None:
    assert why_not_again(of("add_", lambda x: x.clone().add_(1))) == "add_ writes into its input"
    assert why_not_again(of("copy_", lambda x: x.clone().copy_(x)))


@pytest.mark.parametrize("name", sorted(safety.UNORDERED_ON_GPUS))
def test_unordered_sums_are_refused_on_gpus_alone(name: str) -> None:
    target = getattr(aten, name)
    node = fx.Graph().create_node("call_function", getattr(target, target.overloads()[0]))
    node.meta["val"] = torch.empty(4, device="cpu")
    on_cpu = why_not_again(node)
    node.meta["val"] = torch.empty(4, device="meta")  # as good as any other device
    assert why_not_again(node) == f"{name} may give other bits in another run"
    assert on_cpu != why_not_again(node)


@pytest.mark.parametrize("name", sorted(safety.ATTENTION))
def test_attention_runs_again_only_without_dropout(name: str) -> None:
    if not hasattr(aten, name):
        pytest.skip(f"torch {torch.__version__} has no such operator")
    target = getattr(aten, name).default
    for dropout, refused in ((0.0, False), (0.1, True)):
        args = [None] * safety.dropout_position(target) + [dropout]
        node = fx.Graph().create_node("call_function", target, tuple(args))
        assert bool(why_not_again(node)) is refused
    assert why_not_again(fx.Graph().create_node("call_function", target, (None,))) == ""
    assert why_not_again(fx.Graph().create_node("call_function", target, (None,), {"dropout_p": 0.2}))


def test_values_of_tensors_are_read_once() -> None:
    assert "reads a number" in why_not_again(of("_local_scalar_dense", lambda x: x.sum().item() * x))
    assert why_not_again(of("nonzero", lambda x: x.nonzero()))


def test_custom_operator_runs_again_only_if_the_user_names_it() -> None:
    @torch.library.custom_op("echo_tests::double", mutates_args=(), schema="(Tensor x) -> Tensor")
    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    double.register_fake(torch.empty_like)
    node = of("double", lambda x: torch.ops.echo_tests.double(x))
    assert why_not_again(node) == "echo_tests::double is not known to be safe to run twice"
    assert why_not_again(node, {"echo_tests::double"}) == ""


def test_collective_never_runs_again() -> None:
    pytest.importorskip("torch.distributed._functional_collectives")
    target = torch.ops._c10d_functional.all_reduce.default
    assert "_c10d_functional::all_reduce" in why_not_again(fx.Graph().create_node("call_function", target))


def test_higher_order_operator_and_effect_token_never_run_again() -> None:
    from torch._higher_order_ops.effects import with_effects

    for target in (with_effects, torch.ops.higher_order.cond):
        assert "no operator with a schema" in why_not_again(fx.Graph().create_node("call_function", target))


def batch_norm(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, training: bool) -> Any:
    return aten._native_batch_norm_legit_functional(x, None, None, mean, variance, training, 0.1, 1e-5)


def test_batch_norm_runs_again_without_its_statistics() -> None:
    x, mean, variance = torch.randn(6, 4, 5), torch.randn(4), torch.rand(4)
    name = "_native_batch_norm_legit_functional"
    node = of(name, lambda *given: batch_norm(*given, True)[0], x, mean, variance)
    run = safety.second_run(node)
    assert run is not None
    assert not set(node.args[3:5]) & set(run.args)
    first = batch_norm(x, mean, variance, True)
    again = run.target(x, *run.args[1:])
    assert len(again) == run.outputs
    assert all(torch.equal(one, other) for one, other in zip(first, again))


def test_batch_norm_out_of_training_runs_again_as_it_is() -> None:
    name = "_native_batch_norm_legit_functional"
    node = of(name, lambda *given: batch_norm(*given, False)[0], torch.randn(6, 4, 5), torch.ones(4), torch.ones(4))
    assert safety.second_run(node) is None
