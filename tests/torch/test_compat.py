"""The parts of torch that are not public: versions, options, and what stays as it is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.errors import UnsupportedError  # noqa: E402
from echo.torch import compat  # noqa: E402
from tests.support.torch_models import traced  # noqa: E402

W = torch.randn(8, 8, requires_grad=True)


def test_this_version_is_supported() -> None:
    compat.check_version()
    assert compat.version() >= compat.OLDEST


def test_other_versions_raise_unsupported_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.3.1+cpu")
    with pytest.raises(UnsupportedError, match=r"torch 2\.3\.1\+cpu is too old: expected 2\.4 or newer"):
        compat.check_version()
    monkeypatch.undo()
    monkeypatch.setattr(compat.partitioners, "default_partition", lambda graph: None)
    with pytest.raises(UnsupportedError, match="calls its partitioners in another way"):
        compat.check_version()


def test_unknown_options_are_left_out() -> None:
    graph = traced(lambda w: (w @ w).tanh().sum(), W)
    for partition in (compat.default_partition, compat.min_cut_partition):
        forward, backward = partition(compat.copied(graph.module), graph.inputs, **graph.options, of_the_future=1)
        assert len(list(forward.graph.nodes)) > 3 < len(list(backward.graph.nodes))


def test_equal_operators_run_once_in_a_copy() -> None:
    graph = traced(lambda w: (w.sin() * w.sin()).sum(), W)
    count = len(graph.module.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default))
    single = compat.without_duplicates(graph.module)
    assert count == 2
    assert len(single.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)) == 1
    assert len(graph.module.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)) == 2


def test_graph_without_inputs_for_its_placeholders_is_a_region() -> None:
    graph = traced(lambda w: (w @ w).tanh().sum(), W)
    assert compat.is_region(graph.module, [])
    assert not compat.is_region(graph.module, graph.inputs)
    assert not compat.is_region(torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph()), [])
