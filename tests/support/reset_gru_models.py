"""GRUs whose reset gate stands in front of the product with the state, as in MXNet's example/speech_recognition."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import mxnet as mx

from tests.support.attention_models import Example

SIZE, BATCH, STEPS = 6, 3, 9
Symbol = mx.sym.Symbol
# h' from the update gate z, the candidate n and the state h
MIXES: Mapping[str, Callable[[Symbol, Symbol, Symbol], Symbol]] = {
    "a step towards the candidate": lambda z, n, h: h + z * (n - h),
    "a step towards the state": lambda z, n, h: n + z * (h - n),
    "the candidate weighed by the gate": lambda z, n, h: z * n + (1 - z) * h,
    "the state weighed by the gate": lambda z, n, h: (1 - z) * n + z * h,
    "ones less the gate": lambda z, n, h: z * n + (mx.sym.ones_like(z) - z) * h,
}


class Weights:
    """The variables of a layer, one of each name."""

    def __init__(self, prefix: str) -> None:
        self._params = mx.rnn.RNNParams(prefix)

    def dense(self, x: Symbol, name: str, units: int) -> Symbol:
        weight, bias = (self._params.get(f"{name}_{kind}") for kind in ("weight", "bias"))
        return mx.sym.FullyConnected(x, weight, bias, num_hidden=units)


Gates = Callable[[Symbol, Symbol, int, Weights], Sequence[Symbol]]  # r and z, in front of their sigmoids


def halves(x: Symbol, h: Symbol, size: int, weights: Weights) -> Sequence[Symbol]:
    """The halves of one sum, the update gate first, as in the example."""
    total = weights.dense(x, "i2h", 2 * size) + weights.dense(h, "h2h", 2 * size)
    z, r = mx.sym.SliceChannel(total, num_outputs=2)
    return r, z


def other_halves(x: Symbol, h: Symbol, size: int, weights: Weights) -> Sequence[Symbol]:
    """The same with the reset gate first."""
    return list(reversed(halves(x, h, size, weights)))


def apart(x: Symbol, h: Symbol, size: int, weights: Weights) -> Sequence[Symbol]:
    """Sums of products of their own."""
    return [weights.dense(x, f"i2{gate}", size) + weights.dense(h, f"h2{gate}", size) for gate in "rz"]


def parts(x: Symbol, h: Symbol, size: int, weights: Weights) -> Sequence[Symbol]:
    """Sums of parts: of one product of the input, and of one of the state."""
    of_input = mx.sym.split(weights.dense(x, "i2h", 2 * size), num_outputs=2, axis=1)
    of_state = mx.sym.split(weights.dense(h, "h2h", 2 * size), num_outputs=2, axis=1)
    return of_input[0] + of_state[0], of_input[1] + of_state[1]


def cell(x: Symbol, h: Symbol, size: int, weights: Weights, mix: str = "a step towards the candidate",
         gates: Gates = halves) -> Symbol:  # fmt: skip
    """The next state, its nodes in the order in which the example writes them."""
    r, z = gates(x, h, size, weights)
    update, reset = (mx.sym.Activation(gate, act_type="sigmoid") for gate in (z, r))
    total = weights.dense(x, "i2n", size) + weights.dense(h * reset, "h2n", size)
    return MIXES[mix](update, mx.sym.Activation(total, act_type="tanh"), h)


def layer(x: Sequence[Symbol], size: int, prefix: str, zeros: bool = False, **forms: Any) -> list[Symbol]:
    """The states of all steps, from one that is given, or from ``zeros`` as those of mx.rnn."""
    h = mx.sym.zeros(shape=(0, size)) if zeros else mx.sym.var(f"{prefix}h0")
    states, weights = [], Weights(prefix)
    for step in x:
        h = cell(step, h, size, weights, **forms)
        states.append(h)
    return states


def one_way(**forms: Any) -> Example:
    """One layer, with the states of all steps as output."""
    with mx.name.NameManager():
        steps = list(mx.sym.split(mx.sym.var("data"), num_outputs=STEPS, axis=1, squeeze_axis=True))
        outputs = mx.sym.Concat(*layer(steps, SIZE, "l_", **forms), dim=1)
    shapes = {"data": (BATCH, STEPS, SIZE + 1), **({} if forms.get("zeros") else {"l_h0": (BATCH, SIZE)})}
    return Example(outputs, shapes, {"gru_reset": STEPS}, {})


def speech(steps: int, batch: int, size: int, layers: int, inputs: int = 40, characters: int = 29) -> Example:
    """As the example's network after its convolutions: layers in both directions, and a softmax over characters."""
    shapes = {"data": (batch, steps, inputs), "label": (batch * steps,)}
    with mx.name.NameManager():
        data = list(mx.sym.split(mx.sym.var("data"), num_outputs=steps, axis=1, squeeze_axis=True))
        ways = []
        for way, x in (("forward_", data), ("backward_", data[::-1])):
            for number in range(layers):
                x = layer(x, size, f"{way}l{number}_")
                shapes[f"{way}l{number}_h0"] = (batch, size)
            ways.append(x)
        both = [mx.sym.Concat(one, two, dim=1) for one, two in zip(ways[0], reversed(ways[1]))]
        scores = mx.sym.FullyConnected(mx.sym.Concat(*both, dim=0), num_hidden=characters, name="scores")
        symbol = mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="softmax")
    return Example(symbol, shapes, {"gru_reset": 2 * layers * steps}, {"label": characters})


RESET_GRUS: Mapping[str, Callable[[], Example]] = {
    "reset gru": one_way,
    "reset gru, both ways, two layers": lambda: speech(STEPS, BATCH, SIZE, 2, SIZE + 1, 5),
    "reset gru, the state weighed": lambda: one_way(
        zeros=True, mix="the state weighed by the gate", gates=other_halves
    ),
    "reset gru, the candidate weighed": lambda: one_way(zeros=True, mix="the candidate weighed by the gate"),
    "reset gru, gates apart": lambda: one_way(gates=apart),
}
