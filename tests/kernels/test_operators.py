"""The kernels as MXNet's operators: what planning knows of them, and errors that say which tensor is wrong."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NamedTuple, Sequence

import mxnet as mx
import numpy as np
import pytest

from echo.frontend import install
from echo.frontend.symbols import symbol_of
from echo.ir.graph import PREFIX, READS, Entry, Graph, Node, fused_node, num_outputs

TABLE = Path(__file__).parents[2] / "echo" / "kernels" / "table.cc"
SIZES = {"B": 2, "H": 3, "T": 4, "N": 5, "I": 6, "V": 7, "Tq": 3, "Tk": 4, "D": 2, "Dv": 3, "n": 16, "R": 3, "L": 5}
PARAMS = {"eps": "1e-5", "grad_scale": "1", "normalization": "0", "keep": "0.5"}


@pytest.fixture(autouse=True, scope="module")
def operators() -> None:
    assert install.extension_blocker() == ""


def size(axis: str) -> int:
    """Of an axis in the table: 4H, (N*Tq+7)/8 or 1."""
    part = re.fullmatch(r"(\d*)([A-Za-z]*)", axis)
    if part:
        return int(part[1] or 1) * SIZES.get(part[2], 1)
    return (math.prod(SIZES[letter] for letter in re.findall(r"[A-Za-z]+", axis)) + 7) // 8


class Tensor(NamedTuple):
    """A tensor as the table has it: ``kind`` is its type where that is not the floating one of the call."""

    name: str
    axes: tuple[str, ...]
    kind: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(size, self.axes))


class Row(NamedTuple):
    """A kernel in the table; ``reads`` are the tensors that its gradient reads."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    reads: frozenset[str]


def tensors(text: str) -> tuple[Tensor, ...]:
    found = re.findall(r"(\S+?)\[([^\]]*)\](?::(\w+))?", text)
    return tuple(Tensor(name, tuple(axes.split(",")), kind) for name, axes, kind in found)


def rows() -> dict[str, Row]:
    text = re.sub(r'"\s*\n\s*"', "", TABLE.read_text(encoding="utf-8"))  # texts over several lines
    table = text[text.index("kRows[]") : text.index("};", text.index("kRows[]"))]
    found = re.findall(r'\{"(\w+)",\s*"([^"]*)",\s*"([^"]*)",\s*"[^"]*",\s*"([^"]*)"\}', table)
    return {
        name: Row(tensors(inputs), tensors(outputs), frozenset(reads.split())) for name, inputs, outputs, reads in found
    }


ROWS = rows()


# Arrays that the gradients read --------------------------------------------------------------------------------------


def test_reads_of_gradients_match_the_kernels_rows() -> None:
    assert set(READS) <= set(ROWS) - {"dropout"}, "which is no operator of its own"
    for kernel, bits in READS.items():
        row = ROWS[kernel]
        groups = [["d" + out.name for out in row.outputs], [x.name for x in row.inputs], [y.name for y in row.outputs]]
        assert bits == tuple("".join("01"[name in row.reads] for name in group) for group in groups), kernel
        assert row.reads <= {name for group in groups for name in group}, kernel


@pytest.mark.parametrize("kernel", READS)
def test_mxnet_agrees_on_inputs_and_outputs(kernel: str) -> None:
    symbol = operator(kernel)
    assert len(symbol.list_arguments()) == len(ROWS[kernel].inputs)
    assert len(symbol.list_outputs()) == len(READS[kernel][0]) == len(ROWS[kernel].outputs)


# Errors ------------------------------------------------------------------------------------------------------------


def operator(kernel: str) -> mx.sym.Symbol:
    """The operator with all of its inputs, called in0, in1 and so on."""
    count = len(ROWS[kernel].inputs)
    variables = tuple(Node("null", f"in{k}") for k in range(count))
    node = fused_node(kernel, "under", [Entry(k) for k in range(count)], PARAMS)
    outputs = num_outputs(node)
    heads = tuple(Entry(count, k) for k in range(outputs))
    sizes = (*range(count + 1), count + outputs)
    return symbol_of(Graph((*variables, node), heads, tuple(range(count)), sizes))


def shapes(kernel: str) -> list[tuple[int, ...]]:
    return [tensor.shape for tensor in ROWS[kernel].inputs]


def infer(kernel: str, given: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    found = operator(kernel)._infer_shape_impl(False, **{f"in{k}": shape for k, shape in enumerate(given)})[1]
    return [tuple(shape) for shape in found]


def shared(kernel: str) -> list[tuple[int, int]]:
    """Inputs and their axes whose sizes other axes give too."""
    letters = [[axis.lstrip("0123456789") for axis in tensor.axes] for tensor in ROWS[kernel].inputs]
    flat = [letter for own in letters for letter in own]
    return [(k, axis) for k, own in enumerate(letters) for axis, letter in enumerate(own) if flat.count(letter) > 1]


WRONG_SIZES = [(kernel, k, axis) for kernel in READS for k, axis in shared(kernel)]


@pytest.mark.parametrize("kernel", READS)
def test_right_shapes_are_inferred(kernel: str) -> None:
    found = infer(kernel, shapes(kernel))
    assert found == [tensor.shape for tensor in ROWS[kernel].outputs]


@pytest.mark.parametrize(("kernel", "number", "axis"), WRONG_SIZES)
def test_wrong_sizes_are_named(kernel: str, number: int, axis: int) -> None:
    given = shapes(kernel)
    wrong = list(given[number])
    wrong[axis] += 1
    given[number] = tuple(wrong)
    known = "|".join(tensor.name for tensor in ROWS[kernel].inputs)
    with pytest.raises(mx.MXNetError, match=rf"_echo_{kernel}: ({known})\[.*\] cannot have the shape \(\d") as caught:
        infer(kernel, given)
    assert any(f"({','.join(map(str, shape))})" in str(caught.value) for shape in given)


@pytest.mark.parametrize("shape", [False, True])
def test_a_size_of_zero_is_unknown_to_an_operator(shape: bool) -> None:
    """So no empty array gets to a kernel; MXNet 1.9.1 itself gives executors none, whatever is an unknown size."""
    with mx.util.np_shape(shape), pytest.raises(mx.MXNetError, match=r"q\[N,Tq,D\] has the unknown shape|incomplete"):
        infer("attention", [(5, 0, 2), *[tensor.shape for tensor in ROWS["attention"].inputs[1:]]])


# Inputs of which every size is known from others: any number of axes will do, but not of elements.
SETTLED = [(kernel, k) for kernel in READS for k, tensor in enumerate(ROWS[kernel].inputs)
           if {(k, axis) for axis in range(len(tensor.axes))} <= set(shared(kernel))]  # fmt: skip


@pytest.mark.parametrize(("kernel", "number"), SETTLED)
def test_an_axis_too_many_is_named_where_it_adds_elements(kernel: str, number: int) -> None:
    given = shapes(kernel)
    right = infer(kernel, given)
    given[number] = (*given[number], 1)
    assert infer(kernel, given) == right or number == 0, "a first output may look like the first input"
    given[number] = (*given[number][:-1], 3)
    with pytest.raises(mx.MXNetError, match=rf"_echo_{kernel}: .*\[.*\] cannot have the shape \(\d"):
        infer(kernel, given)


def run(kernel: str, types: Sequence[str]) -> None:
    args = [mx.nd.ones(shape, dtype=kind) for shape, kind in zip(shapes(kernel), types)]
    executor = operator(kernel).bind(mx.cpu(), args)
    for array in executor.forward(is_train=False):
        array.wait_to_read()


def floating(kernel: str) -> list[int]:
    """The inputs that have to be of one floating type."""
    return [k for k, tensor in enumerate(ROWS[kernel].inputs) if not tensor.kind]


@pytest.mark.parametrize("kernel", READS)
@pytest.mark.parametrize("wrong", ["float64", "int32"])
def test_wrong_types_are_named(kernel: str, wrong: str) -> None:
    right = ["uint8" if tensor.kind == "uint8" else "float32" for tensor in ROWS[kernel].inputs]
    run(kernel, right)
    first = ROWS[kernel].inputs[0].name
    with pytest.raises(mx.MXNetError, match=rf"{kernel}: {first} has type .*, expected float32 or float16"):
        run(kernel, [wrong if k in floating(kernel) else kind for k, kind in enumerate(right)])


@pytest.mark.parametrize("kernel", [kernel for kernel in READS if len(floating(kernel)) > 1])
def test_mixed_types_are_named(kernel: str) -> None:
    last = floating(kernel)[-1]
    name = ROWS[kernel].inputs[last].name
    with pytest.raises(mx.MXNetError, match=rf"{kernel}: {re.escape(name)} has type float16, expected float32 as"):
        run(kernel, ["float16" if k == last else "float32" for k in range(len(ROWS[kernel].inputs))])


@pytest.mark.parametrize("present", ["1", "111", "01", "ab", ""])
def test_wrong_presence_is_named(present: str) -> None:
    with pytest.raises(mx.MXNetError, match="_echo_lstm_cell: present: expected 1 or 0 for each of 2 inputs"):
        infer_with(present)


def infer_with(present: str) -> Any:
    variables = tuple(Node("null", f"in{k}") for k in range(2))
    node = Node(PREFIX + "lstm_cell", "under", (Entry(0), Entry(1)), attrs={"present": present})
    graph = Graph((*variables, node), (Entry(2),), (0, 1), (0, 1, 2, 4))
    return symbol_of(graph)._infer_shape_impl(False, in0=(2, 12), in1=(2, 3))


def test_numbers_are_right_through_mxnet() -> None:
    """One value, so that the tests above speak of operators that work."""
    pre, c = mx.nd.zeros((2, 12)), mx.nd.ones((2, 3))
    h, after = operator("lstm_cell").bind(mx.cpu(), [pre, c]).forward()
    np.testing.assert_allclose(after.asnumpy(), 0.5)
    np.testing.assert_allclose(h.asnumpy(), 0.5 * np.tanh(0.5), rtol=1e-6)
