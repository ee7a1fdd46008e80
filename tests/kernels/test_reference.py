"""The gradients of the references against central differences, and their corner cases."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from tests.kernels.attention_forms import FORMS, case_of
from tests.kernels.cases import draw as draw_case
from tests.kernels.table import SMALL, SPECS
from tests.support import reference

RNG = np.random.default_rng


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    generator = RNG(seed)
    return [generator.normal(size=shape) for shape in shapes]


def attention_inputs() -> list[Any]:
    return [*draw(4, (3, 4, 5), (3, 6, 5), (3, 6, 2)), np.array([6, 2, 0]), *draw(5, (1, 1, 4, 6))]


def layer_inputs() -> list[Any]:
    return draw(11, (3, 2, 3), (8, 3), (8,), (8, 2), (8,), (2, 2), (2, 2))


# name, inputs, parameters, which inputs have gradients
CASES: list[tuple[str, list[Any], dict[str, float], tuple[int, ...]]] = [
    ("lstm_cell", draw(0, (3, 8), (3, 2)), {}, (0, 1)),
    ("gru_cell", draw(1, (3, 6), (3, 6), (3, 2)), {}, (0, 1, 2)),
    ("mlp_score", draw(2, (2, 3, 5), (2, 5), (5,)), {"eps": 1e-5}, (0, 1, 2)),
    ("mlp_score", draw(3, (2, 3, 5), (2, 5), (5,), (5,), (5,)), {"eps": 1e-2}, (0, 1, 2, 3, 4)),
    ("attention", attention_inputs(), {"scale": 0.7}, (0, 1, 2)),
    *[("attention", case_of(form, "float64").inputs, case_of(form).params, (0, 1, 2)) for form in FORMS],
    ("attention", attention_inputs()[:3], {"scale": 0.7}, (0, 1, 2)),
    ("layer_norm", draw(6, (3, 5), (5,), (5,)), {"eps": 1e-2}, (0, 1, 2)),
    *[("bias_act", draw(7, (3, 5), (5,)), {"act": act}, (0, 1)) for act in range(5)],
    ("sequence_reverse", [*draw(8, (4, 3, 2)), np.array([0, 3, 4])], {}, (0,)),
    ("sequence_reverse", draw(8, (4, 3, 2)), {}, (0,)),
    ("dropout", draw(9, (21,)), {"keep": 0.7, "seed": 3, "offset": 5}, (0,)),
    ("relu", draw(10, (21,)), {}, (0,)),
    ("apply_mask", [*draw(12, (21,)), RNG(13).integers(0, 256, 3).astype(np.uint8), np.array([1.25])], {}, (0,)),
    *[("lstm_layer", layer_inputs(), {"reverse": way}, tuple(range(7))) for way in (0, 1)],
]
# Every other kernel that has a gradient of what it computes.
for _name in sorted(set(SPECS) - {case[0] for case in CASES} - {"pack_mask", "draw_mask", "softmax_output"}):
    _case = draw_case(_name, SMALL[_name], "float64")
    _wanted = tuple(number for number, tensor in enumerate(SPECS[_name].inputs) if tensor.gradient)
    CASES.append((_name, _case.inputs, _case.params, _wanted))
# Outputs without a gradient.
UNREAD = {("attention", 1), ("dropout", 1), ("relu", 1), ("lstm_layer", 3), ("gru_layer", 2), ("cross_entropy", 2),
          ("cross_entropy", 3), ("linear_cross_entropy", 2)}  # fmt: skip


def central_differences(function: Callable[[], float], array: Any, step: float = 1e-5) -> Any:
    gradient = np.zeros(array.shape)
    for place in np.ndindex(*array.shape):
        kept = array[place]
        array[place] = kept + step
        above = function()
        array[place] = kept - step
        below = function()
        array[place] = kept
        gradient[place] = (above - below) / (2 * step)
    return gradient


@pytest.mark.every(11)
@pytest.mark.parametrize(("name", "inputs", "params", "wanted"), CASES, ids=lambda value: str(value)[:18])
def test_gradients_equal_central_differences(
    name: str, inputs: list[Any], params: dict[str, float], wanted: tuple[int, ...]
) -> None:
    run, grad = getattr(reference, name), getattr(reference, name + "_grad")
    outputs = run(*inputs, **params)
    heads = [
        None if (name, number) in UNREAD else RNG(number).normal(size=output.shape)
        for number, output in enumerate(outputs)
    ]
    absent = (
        7 if name == "attention" else 5 if name == "mlp_score" else 2 if name == "sequence_reverse" else len(inputs)
    )
    padded = inputs + [None] * (absent - len(inputs))
    gradients = grad(*heads, *padded, *outputs, **params)
    assert len(gradients) == len(padded)

    def loss() -> float:
        return float(sum((head * out).sum() for head, out in zip(heads, run(*inputs, **params)) if head is not None))

    for number in wanted:
        expected = central_differences(loss, inputs[number])
        assert np.abs(gradients[number] - expected).max() <= 1e-8 * max(1.0, np.abs(expected).max()), number
    # one head at a time: an absent gradient counts as zeros
    for left_out in [number for number, head in enumerate(heads) if head is not None]:
        without = [None if number == left_out else head for number, head in enumerate(heads)]
        zeros = [np.zeros_like(head) if number == left_out else head for number, head in enumerate(heads)]
        for one, other in zip(grad(*without, *padded, *outputs, **params), grad(*zeros, *padded, *outputs, **params)):
            np.testing.assert_array_equal(one, other)


def test_padding_does_not_spread() -> None:
    q, k, v, lengths, mask = attention_inputs()
    clean = reference.attention(q, k, v, lengths, mask, scale=0.5)
    k[1, 2:], v[1, 2:], k[2], v[2] = np.nan, np.inf, np.nan, np.nan
    for one, other in zip(clean, reference.attention(q, k, v, lengths, mask, scale=0.5)):
        np.testing.assert_array_equal(one, other)
    gradients = reference.attention_grad(np.ones((3, 4, 2)), None, q, k, v, lengths, mask, scale=0.5)
    assert all(np.isfinite(gradient).all() for gradient in gradients if gradient is not None)
    assert not gradients[1][1, 2:].any()
    assert not gradients[2][2].any()
    out, lse = clean
    assert not out[2].any()
    assert np.isneginf(lse[2]).all()


def test_keys_that_the_mask_rules_out() -> None:
    """All keys of a query: MXNet makes NaNs of that."""
    q, k, v, _, mask = attention_inputs()
    mask[..., 1, :] = -np.inf
    out, lse = reference.attention(q, k, v, None, mask, scale=0.5)
    assert np.isnan(out[:, 1]).all()
    assert np.isnan(lse[:, 1]).all()
    assert np.isfinite(out[:, 0]).all()
    assert np.isfinite(lse[:, 0]).all()


def test_masks_are_packed_as_they_are_applied() -> None:
    """A mask of Dropout that pack_mask packed multiplies as the mask does; it has no gradient."""
    mask = np.where(RNG(3).random(19) < 0.6, 1 / 0.6, 0.0)
    x = RNG(4).normal(size=19)
    bits, scale = reference.pack_mask(mask)
    np.testing.assert_array_equal(reference.apply_mask(x, bits, scale)[0], x * mask)
    assert not reference.pack_mask_grad(None, None, mask)[0].any()
    for none in (np.zeros(9), np.zeros(0)):
        bits, scale = reference.pack_mask(none)
        assert not bits.any()
        assert scale.tolist() == [0.0]


def test_philox_known_answers() -> None:
    """The known answers that come with Random123: counter and key of zeros."""
    words = reference.philox(0, 0, 4)
    assert [f"{word:08x}" for word in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


def test_philox_keys_and_blocks() -> None:
    plain = reference.philox(7, 0, 22)
    assert (reference.philox(7, 3, 10) == plain[12:]).all()
    assert (reference.philox(8, 0, 22) != plain).all()
    assert (reference.philox(7 + 2**32, 0, 22) != plain).all()
    assert (reference.philox(7, 2**32, 22) != plain).all()
    kept = reference.dropout(np.ones(200_000), keep=0.3)[0] > 0
    assert abs(kept.mean() - 0.3) < 5 * np.sqrt(0.21 / 200_000)
