"""Fused operators that may be slower than the libraries that MXNet uses on GPUs: these have to be timed first.

There MXNet's own operators are those of cuDNN and cuBLAS, with tensor cores. Where both forms were timed on the user's
device and the fused one is not slower, it takes their place; with ``fuse="memory"`` or a memory budget it always
does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Mapping

from echo.estimators.cost_model import UnavailableError, UnmeasurableError
from echo.ir.graph import Entry
from echo.passes.patterns.apply import Types
from echo.passes.patterns.attention import ATTENTION
from echo.passes.patterns.graph_view import Fusion, View
from echo.passes.patterns.recurrent_layers import GRU_LAYER, LSTM_LAYER, RNN_LAYER
from echo.passes.patterns.rnn import RNN
from echo.passes.patterns.sample import Sample, sample
from echo.passes.patterns.single_operators import BIAS_ACT
from echo.passes.patterns.softmax_loss import CROSS_ENTROPY, SOFTMAX_OUTPUT
from echo.passes.request import Request
from echo.plans.options import MEMORY
from echo.system.files import digest_of

OWN, FUSED = "own", "fused"
# Which of its sizes makes a pattern's operators as much smaller: maps of at most so many bytes are timed.
_ROWS = {
    RNN.name: "T", ATTENTION.name: "N", BIAS_ACT.name: "N", SOFTMAX_OUTPUT.name: "N", CROSS_ENTROPY.name: "R",
    LSTM_LAYER.name: "B", GRU_LAYER.name: "B", RNN_LAYER.name: "B",
}  # fmt: skip
_LAYERS = {LSTM_LAYER.name, GRU_LAYER.name, RNN_LAYER.name}
_MOST_BYTES = 256 << 20
_WIDE = 64  # up to here attention's tiles hold a whole row
# On an H200 (``benchmarks/results/gpu_check.json``), attention of up to so many keys is faster than separate operators,
# of 256 slower; layers of fewer units are 5 to 36 times faster, and the lead shrinks with the units.
_FEW_KEYS = 64
_MANY_UNITS = 1024
_HOW = "fuse='memory' takes it all the same"


def may_be_slower(fusion: Fusion, types: Types) -> bool:
    """Whether a fused operator may be slower than what it takes the place of, on a GPU."""
    if fusion.pattern == CROSS_ENTROPY.name:
        return "V,I" in fusion.shapes.values()  # with the layer's products
    shapes = [(types[entry].shape, text) for entry, text in fusion.shapes.items()]
    if fusion.pattern in _LAYERS:
        return any(shape[-1] >= _MANY_UNITS for shape, text in shapes if text == "B,H")
    if fusion.pattern != ATTENTION.name:
        return fusion.pattern in _ROWS
    if any(_size(shape, text, "S") > _FEW_KEYS for shape, text in shapes if "S" in _names(text)):
        return True
    return any(shape[-1] > _WIDE for shape, text in shapes if text.endswith((",D", ",V")))


@dataclass
class FusionProfitability:
    """Says why the user's own operators stay: the fused one is slower here, or was not timed; empty where it is not.

    ``limit``, ``all_limit``: seconds that measuring one pair may take, and all of them.
    """

    request: Request
    limit: float = 1.0
    all_limit: float = 3.0

    def __post_init__(self) -> None:
        self._end = time.perf_counter() + min(self.all_limit, self.request.deadline.with_room().left / 2)
        options, framework = self.request.options, self.request.framework
        self._asks = framework.device == "gpu" and options.fuse != MEMORY and options.memory_budget is None

    def __call__(self, fusion: Fusion, types: Types) -> str:
        if not self._asks or not may_be_slower(fusion, types) or self.request.framework.why_no_fusion:
            return ""
        pair = _of_most_bytes(View(self.request.graph), fusion, types)
        key = _key(pair)
        reasons = self.request.timed
        if key not in reasons:
            reasons[key] = self._why(fusion, pair, key)
        return reasons[key]

    def _why(self, fusion: Fusion, pair: Sample, key: str) -> str:
        table = self.request.framework.cost_table()
        names = {form: f"{form} form of {fusion.label}: {key}" for form in (OWN, FUSED)}
        seconds = {form: table.get(name) for form, name in names.items()}
        if None in seconds.values():
            times = self._timed(fusion, pair)
            if isinstance(times, str):
                return f"it was not timed on this device: {times} ({_HOW})"
            for form, name in names.items():
                table.add(name, times[form])
            table.save()
            seconds = dict(times)
        own, fused = 1e3 * (seconds[OWN] or 0.0), 1e3 * (seconds[FUSED] or 0.0)
        return "" if fused <= own else f"slower on this device: {fused:.3g} ms, MXNet's own {own:.3g} ms ({_HOW})"

    def _timed(self, fusion: Fusion, pair: Sample) -> Mapping[str, float] | str:
        limit = min(self.limit, self._end - time.perf_counter())
        late = f"that would take more than {max(limit, 0):.1f} s"
        if limit <= 0:
            return late
        self.request.progress(f"fuse: timing {fusion.label}")
        try:
            seconds = self.request.framework.race({OWN: pair.own, FUSED: pair.fused}, pair.types, limit)
        except (UnmeasurableError, UnavailableError) as error:
            return str(error)
        return late if seconds is None else seconds


def _of_most_bytes(view: View, fusion: Fusion, types: Types) -> Sample:
    """The sample of a fusion, with as many rows as keep the arrays of both forms and their gradients small enough.

    Weights do not get smaller with the rows, and do not count: with a few rows alongside them nothing could be
    compared.
    """
    letter = _ROWS[fusion.pattern]
    names = {name for text in fusion.shapes.values() for name in _names(text)}
    if letter not in names or "b" in names:  # rows are batches of heads, which reshapes inside take apart
        return sample(view, fusion, types)
    rows = next(
        _size(types[entry].shape, text, letter) for entry, text in fusion.shapes.items() if letter in _names(text)
    )
    inside = {Entry(number) for number in fusion.replaced} | set(fusion.shapes) | set(fusion.outputs)
    by_rows = (entry for entry in inside if entry in types and letter in fusion.shapes.get(entry, letter))
    total = 4 * sum(types[entry].bytes for entry in by_rows)
    return sample(view, fusion, types, {letter: max(1, min(rows, rows * _MOST_BYTES // max(1, total)))})


def _names(text: str) -> list[str]:
    return [name.strip("?#") for name in text.replace("...", "").split(",")]


def _size(shape: tuple[int, ...], text: str, letter: str) -> int:
    names = _names(text)
    return shape[names.index(letter) - len(names)]


def _key(made: Sample) -> str:
    """A text that is equal for equal graphs on equal arrays."""
    types = ", ".join(f"{name} {tensor}" for name, tensor in made.types.items())
    return f"{types}; {digest_of(str(made.own.to_json()), str(made.fused.to_json()).encode())[:16]}"
