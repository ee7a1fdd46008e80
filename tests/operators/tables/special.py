"""Control flow, operators of the user, random operators, and the fused operators of echo."""

from __future__ import annotations

import json
from typing import Any, Callable

import mxnet as mx

from echo.ir.graph import Entry, fused_node
from tests.operators.case import Case, Input, case, each, fixed

Symbol = mx.sym.Symbol


def flow(build: Callable[..., Any], outputs: tuple[Any, ...] = (), **shapes: tuple[int, ...]) -> Case:
    """The control-flow operator that this builds of variables, with its subgraphs."""
    with mx.name.NameManager():
        heads = build(**{name: mx.sym.var(name) for name in shapes})
    nodes = json.loads(mx.sym.Group(heads).tojson())["nodes"]
    node = next(node for node in nodes if "subgraphs" in node)
    names = [nodes[number]["name"] for number, *_ in node["inputs"]]
    inputs = tuple(fixed((1.0,)) if name == "holds" else Input("x", shapes[name]) for name in names)
    return Case(node["op"], inputs, tuple(node["attrs"].items()), tuple(node["subgraphs"]), outputs)


def _foreach(data: Symbol, state: Symbol) -> Any:
    out, states = mx.sym.contrib.foreach(lambda d, s: (d * s[0], [d * s[0]]), data, [state])
    return [out, *states]


def _while(first: Symbol, second: Symbol) -> Any:
    outputs, states = mx.sym.contrib.while_loop(
        lambda i, s: mx.sym.sum(i) < 100, lambda i, s: (i * s, (i * s, s)), [first, second], max_iterations=3
    )
    return [*outputs, *states]


def _cond(holds: Symbol, left: Symbol, right: Symbol) -> Any:
    return [mx.sym.contrib.cond(holds, lambda: left * right, lambda: left + right)]


class Keeper(mx.operator.CustomOp):  # type: ignore[misc]
    """Its gradient reads what the forward pass was handed, or as it should what it is handed itself."""

    def __init__(self, keep: bool) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.kept = in_data
        self.assign(out_data[0], req[0], mx.nd.sin(in_data[0]) * in_data[1])

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        left, right = self.kept if self.keep else in_data
        self.assign(in_grad[0], req[0], out_grad[0] * mx.nd.cos(left) * right)
        self.assign(in_grad[1], req[1], out_grad[0] * mx.nd.sin(left))


@mx.operator.register("audit_keeper")
class KeeperProp(mx.operator.CustomOpProp):  # type: ignore[misc]
    def __init__(self, keep: str) -> None:
        super().__init__(need_top_grad=True)
        self.keep = keep == "1"

    def list_arguments(self) -> list[str]:
        return ["left", "right"]

    def infer_shape(self, in_shape: Any) -> Any:
        return in_shape, [in_shape[0]], []

    def create_operator(self, *_: Any) -> Keeper:
        return Keeper(self.keep)


CONTROL = [
    flow(_foreach, data=(5, 4, 12), state=(4, 12)),
    flow(_while, ((3, 4, 12), (4, 12), (4, 12)), first=(4, 12), second=(4, 12)),
    flow(_cond, ((4, 12),), holds=(1,), left=(4, 12), right=(4, 12)),
    case("Custom", "x x", op_type="audit_keeper", keep=0), case("Custom", "x x", op_type="audit_keeper", keep=1),
]  # fmt: skip

RANDOM = [
    *each("_random_uniform_like _random_normal_like _random_exponential_like _random_gamma_like _random_poisson_like "
          "_random_negative_binomial_like _random_generalized_negative_binomial_like _shuffle"),
    case("_sample_uniform", "u:3 g:3", shape=(4,)), case("_sample_normal", "x:3 p:3", shape=(4,)),
    case("_sample_gamma", "p:3 p:3", shape=(4,)), *each("_sample_exponential _sample_poisson", "p:3", shape=(4,)),
    case("_sample_negative_binomial", "g:3 u:3", shape=(4,)),
    case("_sample_generalized_negative_binomial", "p:3 p:3", shape=(4,)),
    case("_sample_multinomial", "p:3x5", shape=(4,)),
    *each("_npi_normal _npi_normal_n", "x:4x1 p:4x1", loc=None, scale=None, size=(4, 12)),
    *each("_npi_uniform _npi_uniform_n", "x:4x1 g:4x1", low=None, high=None, size=(4, 12)),
    *each("_npi_gumbel _npi_logistic", "x:4x1 p:4x1", loc=None, scale=None, size=(4, 12)),
    *each("_npi_pareto _npi_weibull", "p:4x1", a=None, size=(4, 12)),
    case("_npi_gamma", "p:4x1 p:4x1", shape=None, scale=None, size=(4, 12)),
    case("_npi_multinomial", "=", fixed((0.2, 0.3, 0.5)), n=4, size=(3,)),
    case("_npi_bernoulli", "b", prob=None, logit=None, is_logit=False),
    case("_contrib_PSROIPooling", "x:2x8x6x6 =", fixed(((0.0, 0.0, 0.0, 4.0, 4.0), (1.0, 1.0, 1.0, 5.0, 5.0))),
         output_dim=2, pooled_size=2, group_size=2, spatial_scale=1.0),
    case("_contrib_DeformablePSROIPooling", "x:2x8x6x6 = x:2x2x2x2", fixed(((0.0, 0.0, 0.0, 4.0, 4.0), (1.0, 1.0, 1.0,
         5.0, 5.0))),
         output_dim=2, pooled_size=2, group_size=2, spatial_scale=1.0, part_size=2, sample_per_part=2, trans_std=0.1),
]  # fmt: skip


def kernel(name: str, inputs: str, *constants: Input, present: str = "", **attrs: Any) -> Case:
    """A fused operator; ``present`` says which of its optional inputs there are."""
    made = case("_echo_" + name, inputs, *constants)
    there = [Entry(0) if bit == "1" else None for bit in present or "1" * len(made.inputs)]
    node = fused_node(name, "", there, {key: str(value) for key, value in attrs.items()})
    return Case(made.op, made.inputs, tuple(node.attrs.items()))


LENGTHS = fixed((2.0, 4.0, 3.0))
SOFTMAX = {"grad_scale": 1, "use_ignore": 0, "ignore_label": -1, "normalization": 0, "smooth_alpha": 0}
ATTENTION = {"scale": 0.3, "masking": 0, "fill": 0, "root": 0}
FUSED = [
    kernel("lstm_cell", "x:3x32 x:3x8"), kernel("lstm_norm_cell", "x:3x32 x:3x8 w:8 w:8", eps=1e-5),
    kernel("gru_cell", "x:3x24 x:3x24 x:3x8"), kernel("gru_reset", "x:3x16 x:3x8", keeps=0),
    kernel("gru_mix", "x:3x8 x:3x8 x:3x8"), kernel("mlp_score", "x:3x4x8 x:3x8 w:8 w:8 w:8", eps=1e-5),
    kernel("mlp_score", "x:3x4x8 x:3x8 w:8", present="11100", eps=1e-5), kernel("weighted_sum", "x:3x4 x:3x4x8"),
    kernel("attention", "x:3x4x8 x:3x4x8 x:3x4x8 = x:1x1x4x4", LENGTHS, present="1111100", **ATTENTION),
    kernel("attention", "x:3x4x8 x:3x4x8 x:3x4x8", present="1110000", **ATTENTION),
    kernel("draw_mask", "p:1 x:3 x:4 x:4", keep=0.5, seed=1, offset=0),
    kernel("layer_norm", "x w:12 w:12", eps=1e-5), kernel("bias_act", "x w:12", act=0),
    kernel("bias_act", "x w:12", act=1),
    kernel("sequence_reverse", "x:4x3x6 =", LENGTHS), kernel("sequence_reverse", "x:4x3x6", present="10"),
    kernel("relu", "x"), kernel("relu", "x:2xCx6x6"), kernel("pack_mask", "b"),
    kernel("lstm_layer", "x:4x3x6 w:32x6 w:32 w:32x8 w:32 x:3x8 x:3x8", reverse=0),
    kernel("lstm_layer", "x:4x3x6 w:32x6 w:32 w:32x8 w:32 x:3x8 x:3x8", reverse=1),
    *[kernel("gru_layer", "x:4x3x6 w:24x6 w:24 w:24x8 w:24 x:3x8", reverse=way) for way in (0, 1)],
    *[kernel("rnn_layer", "x:4x3x6 w:8x6 w:8 w:8x8 w:8 x:3x8", act=act, reverse=0) for act in (0, 2)],
    kernel("softmax_output", "x w:9x12 w:9 l9:4", **SOFTMAX),
    kernel("softmax_output", "x w:9x12 l9:4", present="1101", **SOFTMAX),
    kernel("cross_entropy", "x l12:4"), kernel("linear_cross_entropy", "x w:9x12 w:9 l9:4"),
    kernel("linear_cross_entropy", "x w:9x12 l9:4", present="1101"),
    kernel("apply_mask", "x = =", fixed((37, 201, 90, 14, 255, 0), "uint8"), fixed((1.5,), "float32")),
]  # fmt: skip

CASES = [*CONTROL, *RANDOM, *FUSED]
