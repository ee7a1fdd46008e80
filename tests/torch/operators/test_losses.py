"""Layers of losses, against MXNet: their gradients depend on no other."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.torch.operators import losses  # noqa: E402
from tests.torch.oracle import Case, Oracle, assert_near, check, numbers  # noqa: E402

_LABELS = numbers(1, 0, 3, 0)
_SCORES = np.random.RandomState(1).normal(0, 1, (6, 2, 5)).astype(np.float32)


def _softmax(data: tuple[int, ...], label: object, **attrs: object) -> Case:
    return Case("SoftmaxOutput", {"data": data, "label": label}, attrs, fixed=("label",), loss=True)


def _ctc(label: object, *lengths: object, **attrs: object) -> Case:
    names = ["data_lengths"] * bool(attrs.get("use_data_lengths")) + ["label_lengths"] * bool(
        attrs.get("use_label_lengths")
    )
    return Case(
        "CTCLoss", {"data": _SCORES, "label": label, **dict(zip(names, lengths))}, attrs, fixed=("label", *names)
    )


_IGNORED = [{}, {"use_ignore": True, "ignore_label": 0}]
_NORMALIZED = [{"normalization": kind} for kind in ("null", "batch", "valid")]
CASES = [
    *[_softmax((4, 5), _LABELS, **one, **other) for one in _IGNORED for other in _NORMALIZED],
    *[_softmax((4, 5), _LABELS, smooth_alpha=0.1, **one, **other) for one in _IGNORED for other in _NORMALIZED],
    *[_softmax((2, 4, 3), numbers([[1, 0, 3], [0, 0, 2]]), multi_output=True, **one, **other)
      for one in _IGNORED for other in _NORMALIZED],
    *[_softmax((2, 4, 3, 2), np.arange(12).reshape(2, 3, 2).astype(np.float32) % 4, multi_output=True, **other)
      for other in _NORMALIZED],
    *[_softmax((2, 2, 5), numbers([[1, 0], [3, 0]]), preserve_shape=True, **one, **other)
      for one in _IGNORED for other in _NORMALIZED],
    _softmax((4, 5), numbers(1, 0, 0, 0), use_ignore=True, ignore_label=0, normalization="valid", grad_scale=2.5),
    _softmax((4, 5), numbers(0, 0, 0, 0), use_ignore=True, ignore_label=0, normalization="valid"),
    *[_softmax((4, 5), numbers(-1, 1, 2, 9), **other) for other in _NORMALIZED],
    *[_softmax((2, 4, 3), numbers([[1, 0, 3], [0, 0, 2]]), multi_output=True, smooth_alpha=0.2, **one)
         for one in _IGNORED],
    _softmax((4, 5), numbers(-1, 1, 2, 3), use_ignore=True, smooth_alpha=0.1, normalization="valid"),
    _softmax((3, 2), numbers([[0, 1], [1, 1], [0, 0]]), preserve_shape=True),
    _softmax((2, 3, 4), (2, 3, 4), multi_output=True),
    *[_softmax((2, 5), (2, 5), grad_scale=0.5, **other) for other in _NORMALIZED],
    *[Case(op, {"data": (4, 3), "label": (4, 3)}, attrs, fixed=("label",), loss=True)
      for op in ("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")
      for attrs in ({}, {"grad_scale": 0.5})],
    Case("LinearRegressionOutput", {"data": (4, 1), "label": (4,)}, fixed=("label",), loss=True),
    *[Case("MakeLoss", {"data": (4, 3)}, {"grad_scale": 0.5, **other}, loss=True) for other in _NORMALIZED],
    Case("MakeLoss", {"data": (4, 3)}, {"normalization": "valid", "valid_thresh": 0.4}, loss=True),
    Case("make_loss", {"data": (4, 3)}, loss=True), Case("BlockGrad", {"data": (4, 3)}),
    _ctc(numbers([[1, 2, 0], [3, 3, 1]])), _ctc(numbers([[0, 1, 2], [3, -1, -1]]), blank_label="last"),
    _ctc(numbers([[1, 2, 4], [3, 1, 1]]), numbers(5, 6), use_data_lengths=True),
    _ctc(numbers([[1, 2, 4], [3, 1, 1]]), numbers(6, 4), numbers(2, 1), use_data_lengths=True, use_label_lengths=True),
    Case("softmax_cross_entropy", {"data": (4, 5), "label": _LABELS}, fixed=("label",)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_has_mxnet_values_and_gradients(oracle: Oracle, case: Case) -> None:
    check(oracle, case)


def test_every_loss_has_a_case() -> None:
    assert set(losses.OPERATORS) == {case.op for case in CASES}


@pytest.mark.parametrize("head", [0.25, 3.0])
def test_gradient_of_loss_does_not_depend_on_what_arrives(head: float) -> None:
    data = torch.randn(4, 5, requires_grad=True)
    label = torch.tensor([1.0, 0.0, 3.0, 0.0])
    (losses.softmax_output(data, label) * head).sum().backward()
    expected = torch.softmax(data.detach(), 1) - torch.nn.functional.one_hot(label.long(), 5)
    assert_near(data.grad, expected.numpy(), 1e-6, "data")


@pytest.mark.parametrize("op", ["SoftmaxOutput", "LogisticRegressionOutput", "LinearRegressionOutput"])
def test_output_without_labels_is_the_prediction(op: str) -> None:
    data, label = torch.randn(4, 5), torch.zeros(4, 5)
    assert torch.equal(losses.OPERATORS[op](data), losses.OPERATORS[op](data, label))


def _own_ctc(data: torch.Tensor) -> torch.Tensor:
    """A loss of scores that another operator makes, with labels of two lengths."""
    return losses.ctc_loss(2 * data, torch.tensor([[1.0, 2.0, 0.0], [3.0, 3.0, 1.0]]))


def test_ctc_loss_in_one_graph_has_eager_bits() -> None:
    data, head = torch.from_numpy(_SCORES.copy()).requires_grad_(), torch.tensor([1.5, -0.5])
    found = []
    for function in (_own_ctc, torch.compile(_own_ctc, backend="aot_eager", fullgraph=True)):
        loss = function(data)
        found += [loss.detach(), *torch.autograd.grad(loss, data, head)]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_ctc_loss_as_an_operator_keeps_the_rules_of_torch() -> None:
    given = (
        torch.randn(6, 2, 5, requires_grad=True),
        torch.tensor([[1, 2, 0], [3, 3, 1]]),
        *torch.tensor([[6] * 2, [2, 3]]),
    )
    names = ("test_schema", "test_autograd_registration", "test_faketensor")
    assert set(torch.library.opcheck(losses.CTC, (*given, 0), test_utils=names).values()) == {"SUCCESS"}


def test_second_gradient_of_ctc_loss_raises() -> None:
    data = torch.from_numpy(_SCORES.copy()).requires_grad_()
    (first,) = torch.autograd.grad(_own_ctc(data).sum(), data, create_graph=True)
    with pytest.raises(NotImplementedError, match="CTCLoss: the gradient of a gradient"):
        first.sum().backward()
