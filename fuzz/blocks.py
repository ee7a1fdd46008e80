"""Random Gluon blocks: what an optimized block computes is what it computes without echo."""

from __future__ import annotations

import contextlib
import logging
import random
import re
from dataclasses import replace
from typing import Any, Iterator

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn, rnn

import echo
from echo.frontend.mxnet_settings import match_range
from fuzz import block_training, storage, training
from fuzz.deepening import deepened
from fuzz.drawing import Drawing, as_counted, calm, is_wide
from fuzz.exact import comparable, dropout_in_single, program_in_float64, states_in_float64
from fuzz.judgement import verdict
from fuzz.operators import ANY, IMAGE, LAYER_CHAINS, LAYERS, MATRIX, SEQUENCE
from fuzz.options import draw_options, unmet
from fuzz.outcome import MAGNITUDES, NUDGES, Refused, Undefined
from fuzz.program import Line, Program
from fuzz.symbol_script import code_of
from fuzz.symbols import EXPECTED, RANGES

_BY_RANK = {2: MATRIX, 3: SEQUENCE, 4: IMAGE}
_INPUT = re.compile(r"var\('(\w+)'")
_NOT_HERE = re.compile(r"var\(|prefix|mx\.(rnn|gluon)\.")  # what makes arguments, which a block has as parameters
_KINDS = ("train", "train", "train", "predict", "several", "together", "retain", "grad", "larger", "inference")
_STATIC_KINDS = ("train", "train", "train", "predict", "retain", "grad", "larger", "inference")
# Layers without gradient outside of training: oneDNN's max pooling writes no workspace, which MXNet's gradient of it
# reads, and its layers of cells are made for inference: MXNet's gradient is an error, or what memory held before.
_TRAINED = ("MaxPool", "'max'", "rnn.LSTM(", "rnn.GRU(", "rnn.RNN(")
_FAR = 1 << 40  # to the seed that is drawn instead of one
_FLAGS = ({}, {}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}, {"inline_limit": 0})
program_of = Program.from_json


def draw(seed: int) -> Program:
    """The program of a seed."""
    program = as_counted(calm(_Drawing(random.Random(seed), is_wide(seed)).program()), is_wide(seed))
    return draw(seed + _FAR) if _ends_mxnet(program) else program


def _ends_mxnet(program: Program) -> bool:
    """Whether layers of cells read what convolutions compute: an error of MXNet's alone, or the end of the process.

    It is "We can't generate TBlob for MKLDNN data", in blocks of all kinds.
    """
    convolved: set[int] = set()
    for number in sorted(program.needed()):
        line = program.lines[number]
        after_convolution = not convolved.isdisjoint(line.inputs)
        if after_convolution and "rnn." in line.code:
            return True
        if after_convolution or "nn.Conv" in line.code:
            convolved.add(number)
    return False


class _Drawing(Drawing):
    """Draws lines of a block's ``hybrid_forward``; ``CONSTRUCTOR@(...)`` is a layer that is called."""

    def __init__(self, rng: random.Random, wide: bool = False) -> None:
        super().__init__(rng, wide)
        self.layers: dict[int, Any] = {}

    def program(self) -> Program:
        rng = self.rng
        with mx.name.NameManager():
            self._arguments()
            for _ in range(rng.choice((8, 12) if self.is_deep else (3, 5, 8, 12))):
                self._step()
        read = {n for line in self.lines for n in line.inputs}
        loose = [n for n, line in enumerate(self.lines) if line.shape and n not in read and line.inputs]
        maps = [n for n, line in enumerate(self.lines) if line.shape and line.inputs] or [0]
        heads = (loose or maps)[-rng.choice((1, 1, 2, 3)) :]
        program = Program(tuple(self.lines), tuple(heads))
        operators = ["Activation", "tanh", "BatchNorm", "sigmoid", "elemwise_mul", "FullyConnected", "Convolution"]
        options, how = draw_options(rng, operators, small=False), self._how()
        if any(word in program.lines[n].code for word in _TRAINED for n in program.needed()):
            how["steps"] = ["train" if kind == "inference" else kind for kind in how["steps"]]
        # a second gradient of MXNet's own Dropout passes on what it gets, as if nothing had been dropped
        if any("Dropout" in program.lines[n].code for n in program.needed()):
            how["steps"] = ["train" if kind == "retain" else kind for kind in how["steps"]]
        self.deepen(options, how, small=False)
        return replace(program, options=options, how=how)

    def _how(self) -> dict[str, Any]:
        rng, how = self.rng, {}
        flags = rng.choice(_FLAGS)
        kinds = _STATIC_KINDS if flags.get("static_alloc") else _KINDS
        how["steps"] = [rng.choice(kinds) for _ in range(rng.randint(2, 4))]
        if flags:
            how["flags"] = flags
        for name, share in (("add", 0.2), ("frozen", 0.2), ("context", 0.1), ("poison", 0.85)):
            if rng.random() < share:
                how[name] = 1
        if rng.random() < 0.2:
            how["magnitude"] = rng.choice(MAGNITUDES)
        if len(self.layers) > 2 and rng.random() < 0.4:  # no gradient of the data is asked for
            how["constant"] = 1
            how["steps"] = ["train" if kind == "grad" else kind for kind in how["steps"]]
        return how

    def _arguments(self) -> None:
        super()._arguments()
        self.lines = [line for line in self.lines if line.code.startswith("var(")]
        self.symbols = self.symbols[: len(self.lines)]

    def _step(self) -> None:
        rng = self.rng
        maps = [n for n, line in enumerate(self.lines) if line.shape]
        base = rng.choice(maps[-4:] if rng.random() < 0.8 else maps)
        if self._chained(maps, LAYER_CHAINS, lookalikes=0):
            return
        line = self.lines[base]
        rank = len(line.shape)
        kind = rng.random()
        again = [n for n in self.layers if self.lines[self.lines[n].inputs[0]].shape == line.shape]
        if kind < 0.1 and again:  # a layer once more
            layer = rng.choice(again)
            code = f"self.layer{layer}" + self.lines[layer].code.partition("@")[2]
            self._add(Line(code, (base, layer)))
            return
        table = LAYERS.get(rank, ()) if kind < 0.5 and line.dtype == "float32" else ()
        table = table or (_BY_RANK.get(rank, ANY) if kind < 0.75 and line.dtype == "float32" else ANY)
        code = rng.choice([each for each in table if not _NOT_HERE.search(each)] or list(ANY[:8]))
        others = [n for n in maps if self.lines[n].shape == line.shape and self.lines[n].dtype == line.dtype]
        inputs = (base, rng.choice(others)) if "{1}" in code else (base,)
        code = self._filled(code, line.shape).replace("mx.sym.", "F.")
        self._add(Line(code, inputs))

    def _add(self, line: Line) -> bool:
        number = len(self.lines)
        added = super()._add(line)
        if added and "@" in line.code:
            self.layers[number] = self._made
        return added

    def _evaluate(self, line: Line, code: str) -> Any:
        """Layers are made, and called with symbols; their parameters get names of their own."""
        names = {"F": mx.sym, "nn": nn, "rnn": rnn, "mx": mx, "var": mx.sym.var}
        names.update({f"v{n}": self.symbols[n] for n in line.inputs})
        constructor, at, rest = code.partition("@")
        if at:
            names["made"] = self._made = eval(constructor, names)
            code = "made" + rest
        elif code.startswith("self.layer"):
            number = line.inputs[-1]
            names["self"] = type("Layers", (), {f"layer{number}": self.layers[number]})
        symbol = eval(code, names)
        whole = symbol[0] if isinstance(symbol, (list, tuple)) else symbol
        known = {name for each in line.inputs for name in self.symbols[each].list_inputs()}
        layers = [names["made"]] if at else [self.layers[n] for n in line.inputs if n in self.layers]
        known.update(name for layer in layers for name in layer.collect_params())
        if line.inputs and not known.issuperset(whole.list_inputs()):
            raise ValueError("an operator with parameters of its own, which a block has in layers")
        return symbol


def shapes_of(program: Program) -> dict[str, Any]:
    """The shape and type of each input of the block."""
    lines = [program.lines[n] for n in program.needed()]
    return {_INPUT.match(line.code)[1]: (line.shape, line.dtype) for line in lines if line.code.startswith("var(")}


def source_of(program: Program) -> str:
    """The block as Python."""
    made, called, inputs = [], [], []
    for number in program.needed():
        line = program.lines[number]
        code = line.code.format(*(f"v{program.meant(each)}" for each in line.inputs))
        if code.startswith("var("):
            inputs.append(f"v{number}")
            continue
        constructor, at, rest = code.partition("@")
        if at:
            made.append(f"            self.layer{number} = {constructor}")
            code = f"self.layer{number}{rest}"
        called.append(f"        v{number} = {code}")
    outputs = ", ".join(f"v{program.meant(head)}" for head in program.heads)
    return "\n".join([
        "class Net(gluon.HybridBlock):", "    def __init__(self):", "        super().__init__(prefix='net_')",
        "        with self.name_scope():", *(made or ["            pass"]), "",
        f"    def hybrid_forward(self, F, {', '.join(inputs)}):", *called, f"        return {outputs}",
    ])  # fmt: skip


def maker_of(program: Program) -> Any:
    """The class of the block.

    Raises:
        Refused: it cannot be written down.
    """
    names: dict[str, Any] = {"gluon": gluon, "nn": nn, "rnn": rnn, "mx": mx}
    try:
        exec(source_of(program), names)
    except Exception as error:
        raise Refused(str(error)) from error
    return names["Net"]


def stock_run(program: Program, poison: bool = False) -> Any:
    """The block without echo.

    Raises:
        Refused: MXNet does not run it.
    """
    try:
        return block_training.train(maker_of(program), shapes_of(program), program.how, poison=poison)
    except Refused:
        raise
    except Exception as error:
        raise Refused(str(error)) from error


def _may_grow(program: Program) -> bool:
    """Whether all parameters keep their shapes for a larger batch. MXNet does not ask, and reads beyond their ends."""
    make, shapes = maker_of(program), shapes_of(program)
    try:
        once, twice = (block_training.made(make, shapes, program.how, size).collect_params() for size in (1, 2))
    except Exception:
        return False
    return [one.shape for one in once.values()] == [one.shape for one in twice.values()]


@deepened
def check(program: Program) -> str | None:
    """The fault of echo in this program; None without one.

    Raises:
        Refused: MXNet itself does not run it.
        Undefined: MXNet itself computes now this, now that.
    """
    steps = program.how.get("steps", ())
    if "larger" in steps and not _may_grow(program):
        steps = ["train" if kind == "larger" else kind for kind in steps]
        return check(replace(program, how={**program.how, "steps": steps}))
    expected = stock_run(program)
    warnings = training.Warnings()
    logging.getLogger("echo").addHandler(warnings)
    try:
        got = block_training.train(
            maker_of(program), shapes_of(program), program.how, program.options, bool(program.how.get("poison"))
        )
    except (echo.BudgetError, echo.OptionError):
        return None
    except echo.TimeLimitError as error:
        return unmet(program.options, error)
    except Exception as error:
        what = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        try:
            stock_run(program, poison=bool(program.how.get("poison")))
        except Refused:  # as where an RNN goes backward outside of training, without static_shape
            raise Undefined(what) from error
        return what
    finally:
        logging.getLogger("echo").removeHandler(warnings)
    fused = program.options.get("fuse", True)
    wrong = training.differences(got, expected, fused)
    if not wrong:
        said = next((f"warning: {text}" for text in warnings.texts if not text.startswith(EXPECTED)), None)
        return said or _growth(program) or None
    nudged = (stock_run(replace(program, how={**program.how, **nudge})) for nudge in NUDGES)
    exact = _exact(program) if fused else ()
    return verdict(wrong, got, expected, _others(program), nudged if fused else (), exact)


def _growth(program: Program) -> str:
    if not program.how.get("storage"):
        return ""
    make, shapes = maker_of(program), shapes_of(program)
    return storage.storage_growth(
        lambda: block_training.train(make, shapes, program.how),
        lambda: block_training.train(make, shapes, program.how, program.options),
        program.how.get("context", 0),
    )


def _others(program: Program) -> Iterator[Any]:
    """The same without echo, under other match ranges, and once more."""
    for value in RANGES:
        with match_range(value):
            yield stock_run(program)
    yield stock_run(program)
    yield stock_run(program, poison=True)


def _exact(program: Program) -> Iterator[Any]:
    """The same in float64, where that is to be had."""
    if not comparable(program):
        return
    with contextlib.suppress(Refused), states_in_float64(), dropout_in_single():
        yield stock_run(program_in_float64(program))


def alone(seed: int) -> None:
    """The program of a seed without echo: where that ends the process, too, MXNet is at fault."""
    stock(draw(seed))


def stock(program: Program) -> Any:
    """The results of a program without echo; None if MXNet refuses it."""
    with contextlib.suppress(Refused):
        return stock_run(program)
    return None


def run(seed: int) -> str | None:
    """The fault of echo in the program of a seed."""
    return check(draw(seed))


SCRIPT = '''"""Found by the fuzzer of blocks, seed {seed}: {what}"""
import os
os.environ.update(OMP_NUM_THREADS="1", MXNET_SUBGRAPH_VERBOSE="0")
from mxnet import gluon
from mxnet.gluon import nn, rnn
from fuzz.deepening import start
{training}


{source}


shapes, how, options = {shapes!r}, {how!r}, {options!r}
start(how)
got = train(Net, shapes, how, options, poison=bool(how.get("poison")))
wrong = differences(got, train(Net, shapes, how), options.get("fuse", True))
for name, off in wrong.items():
    print(name, off)
grown = how.get("storage") and storage_growth(
    lambda: train(Net, shapes, how), lambda: train(Net, shapes, how, options), how.get("context", 0))
print(grown or "storage does not grow")
raise SystemExit(1 if wrong or grown else 0)
'''


def script(seed: int, program: Program, what: str) -> str:
    """A script that shows what is wrong, and needs nothing but echo."""
    code = map(code_of, (training, block_training, storage))
    text = "\n\n\n".join(code).replace("from fuzz.training import held, value_of\n", "")
    what = what.replace("\\", "/").replace('"', "'")
    return SCRIPT.format(seed=seed, what=what, training=text, source=source_of(program), shapes=shapes_of(program),
                         how=program.how, options=program.options)  # fmt: skip
