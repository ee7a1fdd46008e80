"""The draws of the dropout kernel: MXNet's own from MXNet's states, Philox without them."""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from echo.errors import KernelError
from tests.support import reference
from tests.support.kernel_calls import call

STATES = 1024
WORDS = 624  # of a Mersenne twister; as MXNet keeps them, 64 bits each, and the position after them
SIZES = (1, 5, 63, 64, 65, 100, 4096, 65535, 65537, 70001)


def mxnet_states(seed: int) -> Any:
    """The states of MXNet's CPU generator after ``mx.random.seed(seed)`` (src/resource.cc)."""
    states = np.empty((STATES, WORDS + 1), np.uint64)
    for number in range(STATES):
        states[number, :WORDS] = np.random.RandomState((seed * 127 + number) % 2**32).get_state()[1]  # type: ignore
        states[number, WORDS] = WORDS
    return states


def kernel_dropout(x: Any, p: float, states: Any) -> tuple[Any, Any]:
    y, bits = np.empty_like(x), np.empty((x.size + 7) // 8, np.uint8)
    address = ctypes.c_void_p(states.ctypes.data).value
    keep = float(np.float32(1) - np.float32(p))
    call("dropout", [x], [y, bits], params=(keep, 0, 0), random=address)
    return y, bits


def same_bits(one: Any, other: Any) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_same_bits_as_mxnet(p: float, dtype: str) -> None:
    """Outputs and gradients, call after call: the states go on as MXNet's do."""
    rng = np.random.default_rng(0)
    states = mxnet_states(23)
    mx.random.seed(23)
    for size in SIZES:
        x = rng.normal(size=size).astype(dtype)
        data = mx.nd.array(x, dtype=dtype)
        data.attach_grad()
        with mx.autograd.record():
            theirs = mx.nd.Dropout(data, p=p)
        head = rng.normal(size=size).astype(dtype)
        theirs.backward(mx.nd.array(head, dtype=dtype))
        y, bits = kernel_dropout(x, p, states)
        assert same_bits(y, theirs.asnumpy()), size
        dx = np.empty_like(x)
        keep = float(np.float32(1) - np.float32(p))
        call("dropout_grad", [head, None, None, None, bits], [dx], params=(keep, 0, 0))
        assert same_bits(dx, data.grad.asnumpy()), size
    other = mxnet_states(24)
    assert not same_bits(kernel_dropout(x, p, other)[1], kernel_dropout(x, p, states)[1])


def test_dropout_that_keeps_all_draws_nothing() -> None:
    """As in MXNet, whose generator stays where it is."""
    states = mxnet_states(1)
    before = states.copy()
    x = np.arange(100, dtype=np.float32)
    y, bits = kernel_dropout(x, 0.0, states)
    assert np.array_equal(y, x)
    assert np.unpackbits(bits, count=100, bitorder="little").all()
    assert np.array_equal(states, before)


def test_philox_goes_on_where_an_offset_says() -> None:
    """A call on all elements draws what two calls on their halves draw."""
    x = np.ones(4096, np.float32)

    def bits(values: Any, offset: int) -> Any:
        y, found = np.empty_like(values), np.empty(values.size // 8, np.uint8)
        call("dropout", [values], [y, found], params=(0.4, 99, offset))
        return found

    whole = bits(x, 7)
    halves = np.concatenate([bits(x[:2048], 7), bits(x[2048:], 7 + 512)])
    assert np.array_equal(whole, halves)
    large = bits(x, 2**32 - 5)
    assert np.array_equal(large, reference.dropout(x, keep=0.4, seed=99, offset=2**32 - 5)[1])


@pytest.mark.parametrize("keep", [0.0, -0.5, 1.5, float("nan"), 1e-60])
def test_invalid_keep_raises_kernel_error(keep: float) -> None:
    x = np.ones(8, np.float32)
    with pytest.raises(KernelError, match=r"dropout: keep is .*, expected a probability above 0"):
        call("dropout", [x], [x.copy(), np.empty(1, np.uint8)], params=(keep, 0, 0))


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 3, 5), (3, 100, 257)])
def test_the_bits_after_the_first_element(sizes: tuple[int, int, int], dtype: str) -> None:
    """A Dropout of one element and the bits of the others are those of a Dropout of all, call after call."""
    ours, theirs = mxnet_states(5), mxnet_states(5)
    count = int(np.prod(sizes))
    for _ in range(2):
        first, _ = kernel_dropout(np.ones(1, dtype), 0.3, ours)
        bits, factor = np.empty((count + 7) // 8, np.uint8), np.empty(1, np.float32)
        keep = float(np.float32(1) - np.float32(0.3))
        arrays = [first, *(np.empty(size, dtype) for size in sizes)]
        call("draw_mask", arrays, [bits, factor], params=(keep, 0, 0), random=ctypes.c_void_p(ours.ctypes.data).value)
        whole, expected = kernel_dropout(np.ones(count, dtype), 0.3, theirs)
        assert np.array_equal(bits, expected)
        assert whole.max() == np.asarray(factor[0], dtype) or not whole.any()
    assert np.array_equal(ours, theirs)


def test_mask_of_inference_draws_nothing() -> None:
    states = mxnet_states(5)
    before = states.copy()
    bits, factor = np.zeros(2, np.uint8), np.zeros(1, np.float32)
    arrays = [np.ones(size, np.float32) for size in (1, 1, 3, 4)]
    call("draw_mask", arrays, [bits, factor], params=(0.5, 0, 0), random=ctypes.c_void_p(states.ctypes.data).value)
    assert list(bits) == [0xFF, 0x0F]
    assert factor == 1
    assert np.array_equal(states, before)
