"""The facts of the tests about each kernel: tensors, sizes, parameters, and bugs that have to be caught."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Mapping


@dataclass(frozen=True)
class Tensor:
    """Shape by symbols; type where it is not that of the call; whether it may be absent, and has a gradient."""

    shape: str
    dtype: str = ""
    optional: bool = False
    gradient: bool = True

    def sizes(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        if self.shape == "bits":
            return ((self.count(dims) + 7) // 8,)
        parts = [re.fullmatch(r"(\d*)([A-Za-z]*)", axis) for axis in self.shape.split(",")]
        return tuple(int(part[1] or 1) * (dims[part[2]] if part[2] else 1) for part in parts if part)

    @staticmethod
    def count(dims: Mapping[str, int]) -> int:
        """How many elements have bits."""
        return dims["n"] if "n" in dims else dims["N"] * dims["Tq"] * dims["Tk"]


LENGTHS = Tensor("N", "float32", optional=True, gradient=False)
CLASSES = Tensor("N", "float32", gradient=False)  # that a loss wants
MASK = Tensor("1,1,Tq,Tk", optional=True, gradient=False)
BITS, SCALE = Tensor("bits", "uint8", gradient=False), Tensor("1", "float32", gradient=False)
DROPPED = Tensor("bits", "uint8", True, False), Tensor("1", "float32", True, False)


@dataclass(frozen=True)
class Spec:
    """The inputs and outputs of a kernel."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    params: Mapping[str, float] = field(default_factory=dict)


def _spec(inputs: str, outputs: str, **params: float) -> Spec:
    return Spec(tuple(map(Tensor, inputs.split())), tuple(map(Tensor, outputs.split())), params)


VECTOR = Tensor("H", optional=True)
SPECS: dict[str, Spec] = {
    "lstm_cell": _spec("B,4H B,H", "B,H B,H"),
    "lstm_norm_cell": _spec("B,4H B,H H H", "B,H B,H", eps=1e-5),
    "gru_cell": _spec("B,3H B,3H B,H", "B,H"),
    "gru_reset": _spec("B,2H B,H", "B,H B,H", keeps=0),
    "gru_mix": _spec("B,H B,H B,H", "B,H"),
    "mlp_score": Spec((Tensor("B,T,H"), Tensor("B,H"), Tensor("H"), VECTOR, VECTOR), (Tensor("B,T"),), {"eps": 1e-5}),
    "weighted_sum": _spec("B,T B,T,H", "B,H"),
    "softmax_output": Spec(
        (Tensor("N,I"), Tensor("V,I"), Tensor("V", optional=True), CLASSES),
        (Tensor("N,V"),),
        {"grad_scale": 2.0, "use_ignore": 1, "ignore_label": 1, "normalization": 2, "smooth_alpha": 0.1},
    ),
    "cross_entropy": Spec(
        (Tensor("N,V"), CLASSES), (Tensor("N"), Tensor("N"), *(Tensor("N", "float32", gradient=False),) * 2)
    ),
    "linear_cross_entropy": Spec(
        (Tensor("N,I"), Tensor("V,I"), Tensor("V", optional=True), CLASSES),
        (Tensor("N"), Tensor("N"), Tensor("N,V", gradient=False)),
    ),
    "attention": Spec(
        (Tensor("N,Tq,D"), Tensor("N,Tk,D"), Tensor("N,Tk,Dv"), LENGTHS, MASK, *DROPPED),
        (Tensor("N,Tq,Dv"), Tensor("N,Tq", "float32", gradient=False)),
        {"scale": 0.4, "masking": 0, "fill": 0.0, "root": 0},
    ),
    "layer_norm": _spec("N,H H H", "N,H", eps=1e-5),
    "bias_act": _spec("N,H H", "N,H", act=0),
    "sequence_reverse": Spec((Tensor("T,B,R"), Tensor("B", "float32", True, False)), (Tensor("T,B,R"),)),
    "dropout": Spec((Tensor("n"),), (Tensor("n"), BITS), {"keep": 0.7, "seed": 5, "offset": 1}),
    "draw_mask": Spec(
        (Tensor("1"), Tensor("N"), Tensor("Tq"), Tensor("Tk")), (BITS, SCALE), {"keep": 0.7, "seed": 5, "offset": 1}
    ),
    "relu": Spec((Tensor("n"),), (Tensor("n"), BITS)),
    "pack_mask": Spec((Tensor("n"),), (BITS, SCALE)),
    "apply_mask": Spec((Tensor("n"), BITS, SCALE), (Tensor("n"),)),
    "lstm_layer": Spec(
        tuple(map(Tensor, ("T,B,I", "4H,I", "4H", "4H,H", "4H", "B,H", "B,H"))),
        (Tensor("T,B,H"), Tensor("B,H"), Tensor("B,H"), Tensor("T,B,4H", gradient=False)),
        {"reverse": 0},
    ),
    "gru_layer": Spec(
        tuple(map(Tensor, ("T,B,I", "3H,I", "3H", "3H,H", "3H", "B,H"))),
        (Tensor("T,B,H"), Tensor("B,H"), Tensor("T,B,3H", gradient=False)),
        {"reverse": 0},
    ),
    "rnn_layer": _spec("T,B,I H,I H H,H H B,H", "T,B,H B,H", act=2, reverse=0),
}


LAYERS = ("lstm_layer", "gru_layer", "rnn_layer")

# For each kernel sizes with more than one block, and with remainders.
SMALL = {
    "attention": {"N": 3, "Tq": 5, "Tk": 200, "D": 6, "Dv": 3}, "dropout": {"n": 21},
    "draw_mask": {"N": 3, "Tq": 5, "Tk": 7}, "relu": {"n": 21},
    "pack_mask": {"n": 21}, "apply_mask": {"n": 21},
    "sequence_reverse": {"T": 4, "B": 3, "R": 2}, "mlp_score": {"B": 3, "T": 4, "H": 9},
    "layer_norm": {"N": 5, "H": 9}, "bias_act": {"N": 5, "H": 9}, "lstm_cell": {"B": 3, "H": 9},
    "lstm_norm_cell": {"B": 3, "H": 9}, "weighted_sum": {"B": 3, "T": 4, "H": 9},
    "softmax_output": {"N": 5, "I": 3, "V": 7}, "linear_cross_entropy": {"N": 5, "I": 3, "V": 7},
    "cross_entropy": {"N": 5, "V": 7},
    "gru_cell": {"B": 3, "H": 9}, "gru_reset": {"B": 3, "H": 9}, "gru_mix": {"B": 3, "H": 9},
    **{layer: {"T": 3, "B": 2, "I": 3, "H": 5} for layer in LAYERS},
}  # fmt: skip

WIDTHS = (1, 7, 33, 650, 1500)


def sizes_of(name: str) -> list[dict[str, int]]:
    """Sizes to try on the CPU: none, one, remainders, several tiles and chunks."""
    if name == "attention":
        sizes = [(2, 3, 5, 4, 4), (1, 1, 1, 1, 1), (3, 33, 65, 7, 33), (1, 70, 130, 64, 64), (2, 5, 64, 33, 1)]
        sizes += [(0, 3, 5, 4, 4), (2, 0, 5, 4, 4), (2, 3, 0, 4, 4), (3, 32, 64, 16, 24)]
        return [dict(zip(("N", "Tq", "Tk", "D", "Dv"), each)) for each in sizes]
    if name == "draw_mask":
        return [dict(zip(("N", "Tq", "Tk"), each)) for each in ((3, 5, 7), (1, 1, 1), (0, 3, 5), (3, 32, 100))]
    if name in ("dropout", "relu", "pack_mask", "apply_mask"):
        return [{"n": n} for n in (0, 1, 7, 8, 9, 511, 512, 513, 5000)]
    if name == "sequence_reverse":
        return [{"T": t, "B": b, "R": r} for t, b, r in ((1, 1, 1), (5, 3, 7), (5, 3, 650), (0, 3, 2), (5, 0, 2))]
    if name == "cross_entropy":
        return [{"N": n, "V": v} for n, v in ((5, 7), (1, 1), (0, 4), (3, 0), (70, 33), (3, 5000))]
    if name in ("softmax_output", "linear_cross_entropy"):
        sizes = [(5, 3, 7), (1, 1, 1), (0, 3, 4), (3, 0, 4), (3, 2, 0), (530, 9, 1100), (33, 7, 1025)]
        return [dict(zip(("N", "I", "V"), each)) for each in sizes]
    if name in ("mlp_score", "weighted_sum"):
        small = [{"B": b, "T": t, "H": h} for b in (1, 3) for t in (1, 5) for h in WIDTHS]
        return [*small, {"B": 0, "T": 5, "H": 7}, {"B": 3, "T": 0, "H": 7}, {"B": 40, "T": 3, "H": 33}]
    if name in LAYERS:
        sizes = [(3, 2, 5, 7), (1, 1, 1, 1), (0, 2, 3, 4), (3, 0, 3, 4), (3, 2, 0, 4), (3, 2, 3, 0), (5, 330, 7, 33)]
        return [dict(zip(("T", "B", "I", "H"), each)) for each in sizes]
    rows, *others = SMALL[name]
    if others != ["H"]:
        return [SMALL[name], *({**SMALL[name], axis: 0} for axis in SMALL[name])]
    return [{rows: b, "H": h} for b in (0, 1, 3) for h in WIDTHS] + [{rows: 65, "H": 33}]


# Sizes beyond SMALL, where a kernel works on a part at a time.
MORE = {layer: [{"T": 5, "B": 330, "I": 3, "H": 5}, {"T": 2, "B": 1, "I": 520, "H": 3}] for layer in LAYERS}

# Parameters to try, instead of those in SPECS.
PARAMS: dict[str, list[dict[str, float]]] = {
    "attention": [{}, {"masking": 1, "fill": -2.0, "root": 1}, {"masking": 2, "fill": -1e18}],
    "bias_act": [{"act": act} for act in range(5)],
    "lstm_cell": [{}, {"order": 9}],  # 9: the third, first, fourth and second part
    "lstm_norm_cell": [{}, {"order": 9}],
    "gru_cell": [{}, {"order": 3}],
    "gru_reset": [{}, {"keeps": 1, "order": 1}],
    "lstm_layer": [{"reverse": 0}, {"reverse": 1}, {"order": 9}],
    "gru_layer": [{"reverse": 0}, {"reverse": 1}],
    "rnn_layer": [{"act": act, "reverse": reverse} for act in (0, 2) for reverse in (0, 1)],
    "softmax_output": [{}, *({"use_ignore": 0, "smooth_alpha": 0.0, "normalization": way} for way in (0, 1))],
}

# Bugs that the checks have to catch: kernel, file, text, its replacement.
BUGS = [
    ("lstm_cell", "lstm_cell.cc", "sigmoid_of(f[j]) * c[j] + sigmoid_of(i[j])",
     "sigmoid_of(i[j]) * c[j] + sigmoid_of(f[j])"),
    ("lstm_cell", "../formulas.h", "gate.o.value * cell.slope", "gate.o.value"),
    ("lstm_cell", "../formulas.h", "d * c * gate.f.slope", "d * gate.f.slope"),
    ("lstm_cell", "lstm_cell.cc", "dpre.place((4 * b + place[gate]) * H", "dpre.place((4 * b + gate) * H"),
    ("lstm_cell", "lstm_cell.cc", "pre.read((4 * b + place[gate]) * H", "pre.read((4 * b + gate) * H"),
    ("gru_cell", "gru_cell.cc", "ds.write((3 * b + place[gate]) * H", "ds.write((3 * b + gate) * H"),
    ("gru_cell", "../formulas.h", "(1.f - z) * n + z * h", "z * n + (1.f - z) * h"),
    ("gru_cell", "../formulas.h", "dn, dn * gate.r.value", "dn, dn"),
    ("gru_reset", "gru_reset.cc", "sigmoid_of(sign * z[j])", "sigmoid_of(z[j])"),
    ("gru_reset", "gru_reset.cc", "z_at = (2 * b + place[1]) * H", "z_at = (2 * b + 1) * H"),
    ("gru_reset", "../formulas.h", "sign * d_u * z.slope", "d_u * z.slope"),
    ("gru_reset", "../formulas.h", "d_rh * h * r.slope", "d_rh * r.slope"),
    ("gru_mix", "gru_mix.cc", "gru_next(u[j], h[j],", "gru_next(1.0f - u[j], h[j],"),
    ("gru_mix", "../formulas.h", "d * (value - h)", "d * value"),
    ("mlp_score", "mlp_score.cc", "dv[j] += dscore * t.value", "dv[j] = dscore * t.value"),
    ("mlp_score", "../formulas.h", "mean_d - norm * mean_product", "mean_d"),
    ("mlp_score", "mlp_score.cc", "rows.zeros(chunk, kDquery)", "rows.at(chunk, kDquery)"),
    ("attention", "attention_grad.cc", "columns == length,", "false,"),
    ("attention", "attention_grad.cc", "weights[j] /= sum;", ""),
    ("attention", "attention.cc", "*total * shrink + sum", "*total + sum"),
    ("attention", "attention.cc", "out[d] *= shrink", "out[d] *= 1.0f"),
    ("attention", "attention.cc", "std::fill(row_scores + inside, row_scores + columns, 0.0f);", ""),
    ("attention", "attention.cc", "if (row.factors != nullptr)", "if (false)"),
    ("attention", "attention.h", "if (!has_lengths_ || !per_query_) return", "if (true) return"),
    ("attention", "attention.h", "skipped = at % 8", "skipped = key % 8"),
    ("attention", "attention.h", "head = heads_ == 1 ? 0 : n % per_batch_", "head = heads_ == 1 ? 0 : n / per_batch_"),
    ("attention", "attention.h", "mask[j] != 0.0f ? scores[j] * scale : fill", "scores[j] * scale"),
    ("attention", "attention.h", "multiply_by_flags(found.factors, flags + skipped, factor_, factors, columns);",
     "cloned<factors_of>(flags + skipped, factor_, factors, columns);"),
    ("attention", "attention_grad.cc", "if (row.factors != nullptr) cloned<multiply_rows>(scores",
     "if (false) cloned<multiply_rows>(scores"),
    ("attention", "attention_grad.cc", "if (row->factors != nullptr)", "if (false)"),
    ("attention", "attention_grad.cc", "t.rules.masking != kAdds", "false"),
    ("attention", "attention_grad.cc", "(dweights[j] - delta)", "dweights[j]"),
    ("attention", "attention_grad.cc", "if (!t.any_large(n, 0, t.Tq)) return;", "return;"),
    ("attention", "attention_grad.cc", "scores[j] = weight_of(scores[j] - lse - rest);",
     "scores[j] = weight_of(scores[j] - lse);"),
    ("attention", "attention_grad.cc", ", delta[i] = 0.0f;", ";"),
    ("attention", "blocks.cc", "for (; i < p.rows; ++i) {", "for (; i + 1 < p.rows; ++i) {"),
    ("attention", "blocks.cc", "whole < width && j < inner", "whole < width && j < 1"),
    ("layer_norm", "layer_norm.cc", "dgamma[j] += dy[j] * norm", "dgamma[j] += dy[j] * x[j]"),
    ("layer_norm", "statistics.h", "squares / static_cast<float>(n) +", "squares / static_cast<float>(n - 1) +"),
    ("layer_norm", "layer_norm.cc", "rows.zeros(chunk, kDbeta)", "rows.zeros(0, kDbeta)"),
    ("layer_norm", "view.cc", "if (add_) return add_to(at, values, n);", ""),
    ("cross_entropy", "cross_entropy.cc", "std::expm1(at_label)", "0.0f"),
    ("cross_entropy", "cross_entropy.cc", "V_(call[\"V\"]) {}\n\n  float wanted", "V_(1) {}\n\n  float wanted"),
    ("cross_entropy", "cross_entropy.cc", "differences - static_cast<float>(V_) * logsum", "differences - logsum"),
    ("cross_entropy", "cross_entropy.cc", "{dlogp, -(dlogp + static_cast<float>(V_) * dsum), dsum}",
     "{dlogp, -dlogp, dsum}"),
    ("linear_cross_entropy", "cross_entropy.cc", "out[wanted] += of_row.dlogp", "out[wanted] += 1.0f"),
    ("linear_cross_entropy", "cross_entropy.cc", "of_row.slope, of_row.rest, out);\n    const int64_t wanted",
     "of_row.slope, 0.0f, out);\n    const int64_t wanted"),
    ("linear_cross_entropy", "cross_entropy.cc", "1.0f / sum);", "1.0f);"),
    ("bias_act", "bias_act.cc", "v * (1.0f - v)", "v"),
    ("bias_act", "math.h", "(x < 0.0f ? e : 1.0f)", "1.0f"),
    ("sequence_reverse", "sequence_reverse.cc", "length - 1 - t", "T - 1 - t"),
    ("dropout", "draws.h", "0x9E3779B9u", "0x9E3779B8u"),
    ("dropout", "draws.h", "1.0f / static_cast<float>(call.param(\"keep\"))", "1.0f"),
    ("draw_mask", "dropout.cc", "if (at == 0) flags[0] = first != 0.0f;", ""),
    ("draw_mask", "dropout.cc", "first == 1.0f ? 1.0f : factor_of(call)", "factor_of(call)"),
    ("relu", "bits.cc", ">> 56", ">> 55"),
    ("pack_mask", "mask.cc", "mask[j] != 0.0f", "mask[j] == 0.0f"),
    ("pack_mask", "mask.cc", "found = *first", "found = 1.0f"),
    ("apply_mask", "mask.cc", "factor_of(call));", "1.0f);"),
    ("apply_mask", "mask.cc", 'call.write_zeros("dscale");', ""),
    ("relu", "relu.cc", "x[j] > 0.0f", "x[j] < 0.0f"),
    ("lstm_layer", "lstm_layer.cc", "sigmoid_of(f[k]) * c[k] + sigmoid_of(i[k]) * tanh_of(g[k]);\n    c[k]",
     "sigmoid_of(i[k]) * c[k] + sigmoid_of(f[k]) * tanh_of(g[k]);\n    c[k]"),
    ("lstm_layer", "lstm_layer.cc", "begin + place_[2] * H", "begin + 2 * H"),
    ("lstm_layer", "lstm_layer.cc", "pre + place_[3] * H", "pre + 3 * H"),
    ("lstm_layer", "lstm_layer.cc", "gate_f[k] = grads.f", "gate_f[k] = grads.i"),
    ("lstm_layer", "lstm_layer.cc", "dh[k] + dy[k]", "dy[k]"),
    ("lstm_layer", "recurrent_layer.h", "{sums, width_}, sums", "{bias_, 0}, sums"),
    ("lstm_layer", "recurrent_layer.h", "add_to(bias_ + at, bh.read(at, n, buffer), n);", ""),
    ("lstm_layer", "layer_grad.cc", 'write_bias("dbh", of_state_);', ""),
    ("lstm_layer", "layer_grad.cc", "first ? to.start(offset, columns) :", "false ? to.start(offset, columns) :"),
    ("lstm_layer", "layer_grad.cc", "add_product(dwh_, of_state_, (shape_.time(0) - chunk.time) * B, B, h0, false);",
     ""),
    ("lstm_layer", "lstm_layer.cc", "saved_ + (number * B + row) * H", "saved_ + row * H"),
    ("lstm_layer", "layer_grad.cc", "shape_.reverse ? time + 1 : time - 1", "time - 1"),
    ("lstm_layer", "lstm_layer.cc", "place = shape_.time(step) * B", "place = step * B"),
    ("lstm_layer", "gemm.cc", "begin ? Start{c, c_stride} : start", "start"),
    ("gru_layer", "gru_layer.cc", "sigmoid_of(r[j]) * s_n[j]", "s_n[j]"),
    ("gru_layer", "gru_layer.cc", "std::copy_n(bias_ + 3 * H", "std::copy_n(bias_ + 2 * H"),
    ("gru_layer", "recurrent_layer.h", "in_tiles(Cell::kInputGates * shape_.H", "in_tiles(width_"),
    ("gru_layer", "gru_layer.cc", "d_sn[j] = grads.sn", "d_sn[j] = grads.n"),
    ("gru_layer", "gru_layer.cc", "dh[j] = grads.h;", "dh[j] = 0.0f;"),
    ("gru_layer", "recurrent_layer.h", "Cell::kCarries ? gemm::Start{dh_, H} :", "false ? gemm::Start{dh_, H} :"),
    ("gru_layer", "gru_layer.cc", "y_.read(shape_.time(rows.step - 1)", "y_.read(shape_.time(rows.step)"),
    ("gru_layer", "gru_layer.cc", "rows.step == 0 ? h0_.read(here, n", "false ? h0_.read(here, n"),
    ("gru_layer", "gru_layer.cc", "bi.read(2 * H + at, n, buffer)", "bi.read(at, n, buffer)"),
    ("gru_layer", "layer_grad.cc", "i == 0 ? dx_.start(offset, I) : Start{dx, I}", "dx_.start(offset, I)"),
    ("gru_layer", "layer_grad.cc", "const int64_t offset = piece.row * columns;",
     "const int64_t offset = piece.column * columns;"),
    ("rnn_layer", "rnn_layer.cc", "1.0f - y[j] * y[j]", "1.0f"),
    ("rnn_layer", "rnn_layer.cc", "x[j] <= 0.0f ? 0.0f : x[j]", "x[j]"),
    ("rnn_layer", "rnn_layer.cc", "(y[j] > 0.0f ? 1.0f : 0.0f)", "1.0f"),
    ("rnn_layer", "recurrent_layer.h", "first = (time - chunk.time) * B", "first = (step - chunk.begin) * B"),
]  # fmt: skip
