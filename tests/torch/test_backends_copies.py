"""Copies of backends and of compiled models, in the process or by pickle: torch's own backends can be copied, too."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.torch import Backend, backend, compat  # noqa: E402
from tests.support.torch_models import built, equal, step  # noqa: E402

OF_INDUCTOR = pytest.mark.skipif(compat.version() < (2, 9), reason="older versions have no setting for a partitioner")


def options() -> Backend:
    return backend(0.8, compiler="aot_eager", keep=["mm"], max_planning=0.5)


def trained(compiler: Any = None) -> list[torch.Tensor]:
    model, inputs = built("perceptron")
    torch._dynamo.reset()
    return step(model if compiler is None else torch.compile(model, backend=compiler, fullgraph=True), inputs, model)


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=OF_INDUCTOR)])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copy_of_a_model_that_was_compiled_and_run_trains_as_it_does(compiler: str, copied: Any) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8)), torch.randn(64, 8)
    ours = backend(max_overhead=0.5, compiler=compiler)
    compiled = torch.compile(model, backend=ours)
    compiled(x).sum().backward()
    again = copied(compiled)
    again.zero_grad()
    again(x).sum().backward()
    assert equal([one.grad for one in again.parameters()], [one.grad for one in model.parameters()])


def test_copy_of_a_backend_has_its_options_and_no_plans() -> None:
    ours = options()
    trained(ours)
    plan = ours.plans[0]
    given = pickle.loads(pickle.dumps(backend(plan=iter([plan]), compiler="aot_eager", strict=True)))
    copies = [copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
    for one in copies:
        assert (one.plans, one.compiler) == ([], "aot_eager")
        assert repr(one.partitioner) == repr(options().partitioner)
    assert equal(trained(given), trained())
    assert [one.peak_bytes for one in given.plans] == [plan.peak_bytes]
