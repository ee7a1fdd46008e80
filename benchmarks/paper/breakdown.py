"""What holds the memory of translation ("tbd"), and how much does one more LSTM cell take?

    python -m benchmarks.paper.breakdown [--fresh]

Claims 6 and 8 of the evaluation: by part of the model, from the arrays alive at the peak (`echo.profile`), by their
names; and what one more step of a layer adds to planned memory, as a multiple of the step's output. Writes
results/paper_breakdown.json and results/paper_cell.json: existing rows are planned again only with --fresh.
"""

from __future__ import annotations

from functools import lru_cache, partial

import mxnet as mx

import echo
from benchmarks.models import Model
from benchmarks.paper import nmt
from benchmarks.paper.planning import VARIANTS, Found, Results, measure_from_command_line
from echo.estimators.footprint import FEATURE_MAPS
from echo.report.profile import Profile
from echo.report.usage import GAPS, Tensor, Usage, layer_by

NAME, CELL_NAME = "paper_breakdown", "paper_cell"
GRAPHS = {"stock": "stock", "default": "echo"}  # ways of planning, as a profile calls their graphs
#: Parts of the names of a part's operators and weights. The rest are embeddings, and the inputs of cells.
PARTS = {
    "attention": ("attention",),
    "RNN": ("encode", "decoder", "feed"),
    "output": ("outputs", "logits", "softmax"),
}
OTHER = "other"
CELL_WAYS = ("stock", "unfused", "default")
_UNITS, _BATCH, _STEPS = 512, 128, 20


def parts(usage: Usage) -> dict[str, int]:
    """Bytes at the peak by part; `GAPS` is planned memory in which no array lives then."""
    named = layer_by("|".join(word for words in PARTS.values() for word in words))
    of_word = {word: part for part, words in PARTS.items() for word in words}

    def part(tensor: Tensor) -> str:
        return of_word.get(named(tensor), OTHER)

    found = dict.fromkeys((*PARTS, OTHER), 0) | dict(usage.layers(part))
    return {**found, GAPS: usage.planned - usage.live_peak, "workspaces": sum(usage.beside.values())}


def cells(steps: int) -> Model:
    """One layer of LSTM cells on inputs that need no gradient, whose outputs are summed."""
    with mx.name.NameManager():
        inputs = list(mx.sym.split(mx.sym.var("data"), num_outputs=steps, axis=0, squeeze_axis=True, name="steps"))
        outputs, _ = mx.rnn.LSTMCell(_UNITS, prefix="cell_").unroll(steps, inputs=inputs, merge_outputs=False)
        symbol = mx.sym.make_loss(mx.sym.add_n(*outputs), name="loss")
    return Model(f"LSTM, {steps} steps", symbol, {"data": (steps, _BATCH, _UNITS)})


def outputs_a_step(name: str) -> dict[str, float]:
    """Bytes that one more step takes over the bytes of its output: feature maps at the peak, and all planned memory.

    The part of the inputs that is the step's own, as large as its output, is left out.
    """
    short, long = (_cells_held(steps, name) for steps in (_STEPS, 2 * _STEPS))
    return {figure: (long[figure] - short[figure]) / _STEPS / (4 * _BATCH * _UNITS) - 1 for figure in short}


def _cells_held(steps: int, name: str) -> dict[str, int]:
    model = cells(steps)
    compare, options = ((), {}) if name == "stock" else (("echo",), VARIANTS[name])
    profile = echo.profile(
        model.symbol, compare=compare, grad_req=model.grad_req(), **{**options, "max_planning": None}, **model.shapes
    )
    usage = profile.usages["echo" if compare else "stock"]
    return {"maps": usage.by_kind[FEATURE_MAPS], "planned": usage.planned}


@lru_cache(maxsize=None)
def _profile() -> Profile:
    model = nmt.model("nmt_tbd", nmt.SETTINGS["tbd"])
    return echo.profile(model.symbol, grad_req=model.grad_req(), max_planning=None, **model.shapes)


def _parts_of(graph: str) -> dict[str, int]:
    return parts(_profile().usages[graph])


def run(fresh: bool = False) -> list[Found]:
    """Profiles the model and plans the cell."""
    results = Results(NAME, fresh)
    for name, graph in GRAPHS.items():
        results.fill(results.row(graph=name), "parts", partial(_parts_of, graph))
    cell = Results(CELL_NAME, fresh)
    for name in CELL_WAYS:
        cell.fill(cell.row(graph=name), "outputs_a_step", partial(outputs_a_step, name))
    return results.rows


if __name__ == "__main__":
    measure_from_command_line(__doc__, run)
