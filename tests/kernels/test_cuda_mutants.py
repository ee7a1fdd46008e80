"""Whether the tests of the CUDA kernels can fail: bugs put into their source one by one, which have to be noticed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.cuda_emulation import KERNELS, built, compile_kernels, kept
from tests.kernels.cuda_mutant import CAUGHT

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")

BARRIER = "__syncthreads();"
# the bug: file, text, its replacement, which of its occurrences, the library to compile, the cases to run
MUTANTS = {
    "no barrier before a tile is read": ("tile.cuh", BARRIER, "", 0, "attention_grad", "attention"),
    "no barrier before a tile is overwritten": ("tile.cuh", BARRIER, "", 1, "attention_grad", "attention"),
    "no barrier after a tile of weights": ("tile.cuh", BARRIER, "", 3, "attention_grad", "attention"),
    "no barrier before the warps' sums are stored": ("steps.cuh", BARRIER, "", 1, "lstm", "lstm_layer"),
    "no barrier before the warps' sums are read": ("steps.cuh", BARRIER, "", 2, "lstm", "lstm_layer"),
    "no barrier before the next batch tile": ("steps.cuh", BARRIER, "", 3, "lstm", "lstm_layer T=3 B=66"),
    "no warp barrier": ("steps.cuh", "__syncwarp();", "", 0, "lstm", "lstm_layer"),
    "no barrier of the grid": (
        "steps.cuh", "if (step + 1 < a.steps) grid_barrier", "if (false) grid_barrier", 0, "lstm", "lstm_layer",
    ),
    "no barrier of the grid, backward": (
        "steps.cuh", "if (step + 1 < steps) grid_barrier", "if (false) grid_barrier", 0, "lstm", "lstm_layer",
    ),
    "a barrier of the grid that waits for too few": ("device.cuh", "< goal)", "+ 1 < goal)", 0, "lstm", "lstm_layer"),
    "a sum over half a warp": ("device.cuh", "int lane = 16; lane", "int lane = 8; lane", 0, "rows", "layer_norm"),
    "a sum over too few of a row's threads": (
        "attention.cuh", "int lane = 8; lane", "int lane = 4; lane", 1, "attention_grad", "attention",
    ),
    "a column too many": ("device.cuh", "column < columns;", "column <= columns;", 0, "cells", "lstm_cell"),
    "a row too few": ("device.cuh", "row < rows; row +=", "row < rows - 1; row +=", 1, "rows", "layer_norm"),
    "the wrong gate": (
        "formulas.h", "c + i.value * g.value", "c + i.value * o.value", 0, "cells", "lstm_cell",
    ),
    "a missing factor": (
        "formulas.h", "d * gate.g.value * gate.i.slope",
        "d * gate.g.value", 0, "cells", "lstm_cell",
    ),
    "the weight of the other state": ("cells.cuh", "sigmoid(a.sign * z", "sigmoid(z", 0, "cells", "gru_reset"),
    "a state mixed with itself": ("formulas.h", "d * (value - h)", "d * value", 0, "cells", "gru_mix"),
    "added where it should be written": ("device.cuh", "if (to.add) {", "if (true) {", 0, "cells", "gru_cell"),
    "written where it should be added": ("device.cuh", "if (to.add) {", "if (false) {", 0, "cells", "gru_cell"),
    "the next step's cell": (
        "lstm.cuh", "before = t + a.direction", "before = t - a.direction", 0, "lstm", "lstm_layer",
    ),
    "the next step's state": (
        "gru.cuh", "before = t + a.direction", "before = t - a.direction", 0, "gru", "gru_layer",
    ),
    "a state that goes nowhere but through the gates": (
        "gru.cuh", "if (step || a.dgates_after) dh += a.past[at];", "", 0, "gru", "gru_layer",
    ),
    "the reset gate in front of the sum": (
        "gru.cuh", "inputs[2 * a.hidden] + sigmoid(r) * s", "sigmoid(r) * (inputs[2 * a.hidden] + s)", 0, "gru",
        "gru_layer",
    ),
    "the gradient of the state's part for that of the input's": (
        "gru.cuh", "*inputs = d.n;", "*inputs = d.sn;", 0, "gru", "gru_layer",
    ),
    "a gate of the next unit": (
        "steps.cuh", "unit * Cell::kColumns + g", "unit * Cell::kGates + g", 0, "gru", "gru_layer",
    ),
    "rows of one round alone": (
        "steps.cuh", "row += kThreads / units", "row += kThreads", 0, "rnn", "rnn_layer",
    ),
    "tanh for relu": ("rnn.cuh", "a.relu ? (sum", "false ? (sum", 0, "rnn", "rnn_layer"),
    "a slope of relu for that of tanh": ("rnn.cuh", "slope = a.relu ?", "slope = true ?", 0, "rnn", "rnn_layer"),
    "an old maximum": ("attention.cuh", "expf(most[i] - zero)", "1.f", 0, "attention_grad", "attention"),
    "large scores left as they are": (
        "attention_grad.cuh", "if (is_whole(a) || !any_large(a, tile)) return;", "return;", 0, "attention_grad",
        "large scores",
    ),
    "large scores of few keys left as they are": (
        "attention_grad.cuh", "is_whole(a) ? whole_row(p[i], ds[i]) : of.delta", "of.delta", 0, "attention_grad",
        "large scores",
    ),
    "what a logarithm lost left out": ("attention_grad.cuh", " - of.rest", "", 0, "attention_grad", "large scores"),
    "delta from results that are rounded": (
        "attention_grad.cuh", "found[i].delta = row_sum(found[i].delta);",
        "found[i].delta = query_statistics(a, tile, query).delta;", 0, "attention_grad", "large scores",
    ),
    "scores that wait where another thread keeps its own": (
        "attention_grad.cuh", "<T, by_key>(a, tile, query, key, shared, p, ds)",
        "<T, !by_key>(a, tile, query, key, shared, p, ds)", 0, "attention_grad", "attention",
    ),
    "keys beyond the length": (
        "attention.cuh", "Long keys = tile.keys;", "Long keys = a.keys;", 0, "attention_grad", "attention",
    ),
    "a length off by one": ("pointwise.cuh", "length - 1 - t", "length - t", 0, "pointwise", "sequence_reverse"),
    "bits of the wrong neighbour": ("pointwise.cuh", "high << 4", "high << 3", 0, "pointwise", "relu"),
    "any element for the first": (
        "pointwise.cuh", "if (first < 32) return;", "", 0, "pointwise", "pack_mask",
    ),
    "a mask without its value": (
        "pointwise.cuh", "a.scale ? *a.scale : a.constant", "a.constant", 0, "pointwise", "apply_mask",
    ),
    "a round too few": ("pointwise.cuh", "round < 10", "round < 9", 0, "pointwise", "dropout"),
    "the mean of the gradient left out": (
        "formulas.h", "(d - mean_d - ", "(d - ", 0, "rows", "layer_norm",
    ),
    "a chunk of rows too short": (
        "rows.cuh", "smaller((chunk + 1) * a.chunk, a.rows)",
        "smaller((chunk + 1) * a.chunk, a.rows) - 1", 0, "rows", "layer_norm",
    ),
    "one bias left out": ("gemm.cuh", "(g.bias2 ? get<B>(g.bias2, n) : 0.f)", "0.f", 0, "gemm", "lstm_layer"),
    "a bias where there is none": ("gemm.cuh", "if (g.bias)", "if (true)", 0, "gemm", "softmax_output"),
    "no barrier before the warps' numbers are overwritten": (
        "softmax_output.cuh", BARRIER, "", 0, "softmax_output", "softmax_output",
    ),
    "no barrier before the warps' numbers are read": (
        "softmax_output.cuh", BARRIER, "", 1, "softmax_output", "softmax_output",
    ),
    "exponentials of an old maximum": (
        "device.cuh", "sum *= expf(most - now);", "", 0, "softmax_output", "softmax_output",
    ),
    "a gradient without its label": (
        "softmax_output.cuh", "target - column == k ? hit : miss", "miss", 0, "softmax_output", "softmax_output",
    ),
    "a gradient of a row that is ignored": (
        "softmax_output.cuh", "target == kIgnored ? 0.f :", "false ? 0.f :", 0, "softmax_output", "softmax_output",
    ),
    "ignored labels counted": (
        "softmax_output.cuh", "if (target != ignored) count", "count", 0, "softmax_output", "softmax_output",
    ),
    "a label of another tile": (
        "softmax_output.cuh", "column + at);", "at);", 0, "softmax_output", "softmax_output",
    ),
    "every part instead of the first": (
        "softmax_output.cuh", "part * a.rows + m", "m", 0, "softmax_output", "softmax_output",
    ),
    "an entropy without its label's gradient": (
        "softmax_output.cuh", "(row.target - column == k ? row.hit : 0.f)", "0.f", 0, "cross_entropy", "linear_cross",
    ),
    "a target's gradient as any other": (
        "cross_entropy.cuh", "j + k == of_row.target", "false", 0, "cross_entropy", "cross_entropy",
    ),
    "entropies of other rows": (
        "cross_entropy.cuh", "a.of_rows[row] =", "a.of_rows[0] =", 0, "cross_entropy", "linear_cross",
    ),
    "a part of the norm's gradient left out": (
        "formulas.h", " - norm * mean_product)", ")", 0, "norm_cell", "lstm_norm_cell",
    ),
    "a mask of another head": (
        "attention.cuh", "item % a.heads * a.head_stride", "item / a.heads * a.head_stride", 0,
        "attention_grad", "forms",
    ),
    "no fill instead of scores": (
        "attention.cuh", "x != 0.f ? score : a.fill", "score", 0, "attention_grad", "forms",
    ),
    "lengths of items for queries": (
        "attention.cuh", "if (Call::kMasked && a.per_query && row < a.queries)", "if (false)", 0,
        "attention_grad", "forms",
    ),
    "bits of another query": (
        "attention.cuh", "a.queries + row) * a.keys + column", "a.queries) * a.keys + column", 0, "attention_grad",
        "forms",
    ),
    "a gradient of a score that was replaced": (
        "attention.cuh", "[row * a.row_stride + column]) != 0.f;", "[0]) != 2.f;", 0, "attention_grad", "forms",
    ),
    "weights without their factors": (
        "attention_grad.cuh", "multiply_by_factors<T>(a, tile, query, tile.first, p);", "", 0,
        "attention_grad", "forms",
    ),
    "the first bit drawn again": ("pointwise.cuh", ": drawn != 0.f;", ": true;", 0, "pointwise", "draws"),
}  # fmt: skip


def mutated(text: str, old: str, new: str, which: int) -> str:
    parts = text.split(old)
    assert len(parts) > which + 1, f"{old!r} is not there {which + 1} times"
    return old.join(parts[: which + 1]) + new + old.join(parts[which + 1 :])


@pytest.mark.every(61)
@pytest.mark.parametrize("name", MUTANTS)
def test_is_noticed(name: str) -> None:
    file, old, new, which, library, beginning = MUTANTS[name]
    fibers, driver, kernels = built()

    def make(folder: Path) -> None:
        for path in [*(KERNELS / "cuda").glob("*.*h"), KERNELS / "formulas.h"]:
            shutil.copy(path, folder)
        source = folder / file
        source.write_text(mutated(source.read_text(), old, new, which))
        compile_kernels(folder, fibers, folder / f"{library}.cuh", "mutant", "-Wno-error")

    mutant = kept(make, "mutant", MUTANTS[name]) / "mutant.so"
    script = [sys.executable, "-m", "tests.kernels.cuda_mutant", str(driver), str(kernels), str(mutant), "3", beginning]
    done = subprocess.run(script, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == CAUGHT or done.returncode < 0, f"not noticed\n{done.stderr}"
