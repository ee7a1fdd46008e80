"""Random programs of symbols: lines that MXNet can infer the shapes of, each built as soon as it is drawn."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any, Mapping, Sequence

import mxnet as mx

from fuzz.deepening import DEEP
from fuzz.lookalikes import OF_PATTERNS, lookalike
from fuzz.operators import ANY, CHAINS, HEADS, IMAGE, MATRIX, SEQUENCE
from fuzz.options import deepen, draw_options
from fuzz.outcome import MAGNITUDES
from fuzz.program import Line, Program, argument

CHANNELS = (3, 5, 8, 8, 12, 16, 16, 32)
_MOST_ELEMENTS = 8192  # of one map
_MOST_OF_ARGUMENTS = 1 << 24  # elements of one array: products of wide maps have weights of gigabytes otherwise
WIDE = 32  # times as large are batches of programs of which storage is counted, lest all of it is below what is counted
_BY_RANK = {2: MATRIX, 3: SEQUENCE, 4: IMAGE}
_MAKES = re.compile(r"var\(|prefix")  # arguments, which must not have the names of others
_OPERATOR = re.compile(r"(?:sym|contrib|linalg)\.(\w+)\(")
_CONTROL_FLOW = ("contrib.foreach", "contrib.while_loop", "contrib.cond")


def scope() -> dict[str, Any]:
    """The names that programs know."""
    return {"mx": mx, "var": mx.sym.var}


def is_wide(seed: int) -> bool:
    """Whether storage of the program of a seed is counted."""
    return seed % 5 == 4


def draw(seed: int) -> Program:
    """The program of a seed."""
    return as_counted(calm(Drawing(random.Random(seed), is_wide(seed)).program()), is_wide(seed))


def calm(program: Program) -> Program:
    """The program without poison, if MXNet's own results may hang on when the engine comes to its work.

    Control flow looks at the layouts of its arrays when it is handed out. Next to convolutions these are the layouts of
    arrays that lay there before. With the writes of poison in between, stock MXNet computes other gradients in one run
    of 500, and in one of 8 after the work of planning, though no plan came of it; without them, none of 900 did.
    """
    code = [program.lines[number].code for number in program.needed()]
    raced = any(word in line for line in code for word in _CONTROL_FLOW) and any("Conv" in line for line in code)
    return replace(program, how={k: v for k, v in program.how.items() if k != "poison"}) if raced else program


def as_counted(program: Program, wide: bool) -> Program:
    """The program with options under which echo promises to hold no more, if it is ``wide``."""
    if not wide:
        return program
    options = {name: value for name, value in program.options.items() if name != "recompute"}
    return replace(program, options={**options, "fuse": False}, how={**program.how, "storage": 1})


class Drawing:
    """Draws lines that MXNet can infer the shapes of, each built as soon as it is drawn."""

    def __init__(self, rng: random.Random, wide: bool = False) -> None:
        self.rng = rng
        self.most_elements = _MOST_ELEMENTS * WIDE if wide else _MOST_ELEMENTS
        self.lines: list[Line] = []
        self.symbols: list[Any] = []
        self.dtype = rng.choices(("float32", "float64", "float16"), (88, 6, 6))[0]
        self.batch = rng.choice((1, 2, 3, 4)) * (WIDE if wide else 1)
        self.has_lookalikes = False
        self.is_deep = rng.random() < 0.5

    def program(self) -> Program:
        rng = self.rng
        with mx.name.NameManager():
            self._arguments()
            for _ in range(rng.choice((9, 14, 20) if self.is_deep else (4, 6, 9, 14, 20))):
                self._step()
            heads = self._heads()
        program = Program(tuple(self.lines), tuple(heads))
        operators = sorted({name for n in program.needed() for name in _OPERATOR.findall(self.lines[n].code)})
        graph = mx.sym.Group([self.symbols[head] for head in heads])
        options = draw_options(rng, operators, small=len(program.needed()) < 7)
        options["fuse"] = options["fuse"] or self.has_lookalikes
        requests, how = self._requests(graph), self._how()
        self.deepen(options, how, small=len(program.needed()) < 7)
        return replace(program, options=options, requests=requests, how=how)

    def deepen(self, options: dict[str, Any], how: dict[str, Any], small: bool) -> None:
        """Half of all programs get options and rules by which compute-heavy operators run twice."""
        if self.is_deep:
            deepen(self.rng, options, small)
            how["deep"] = self.rng.choice(DEEP)

    def _how(self) -> dict[str, Any]:
        rng, how = self.rng, {}
        if rng.random() < 0.1:
            how["context"] = 1
        if rng.random() < 0.3:
            how["bind"] = "arrays"
        if rng.random() < 0.15:
            how["steps"] = 3
        if rng.random() < 0.1:
            how["predicts"] = 1
        if rng.random() < 0.85:
            how["poison"] = 1
        if rng.random() < 0.2:
            how["magnitude"] = rng.choice(MAGNITUDES)
        return how

    def _requests(self, graph: Any) -> dict[str, str]:
        """Whole layers get the same word: MXNet itself is undefined for a trained bias of a frozen weight."""
        kind = self.rng.choice(("write", "write", "add", "frozen", "mixed"))
        words = {"write": ("write",), "add": ("add",), "frozen": ("write", "null"), "mixed": ("write", "add", "null")}
        names = graph.list_arguments()
        chosen = {layer: self.rng.choice(words[kind]) for layer in sorted({n.rsplit("_", 1)[0] for n in names})}
        requests = {name: chosen[name.rsplit("_", 1)[0]] for name in names}
        if "write" not in requests.values() and "add" not in requests.values():
            return {}
        return {name: word for name, word in requests.items() if word != "write"}

    def _arguments(self) -> None:
        rng, batch = self.rng, self.batch
        channels = rng.choice(CHANNELS)
        side, time = rng.choice((4, 5, 8)), rng.choice((2, 3, 4))
        if batch <= 4 and rng.random() < 0.15:  # axes that can be taken for each other
            channels = time = batch
        shapes = {2: (batch * 2, channels), 3: (time, batch, channels), 4: (batch, channels, side, side)}
        for number in range(rng.choice((1, 2, 2))):
            shape = shapes[rng.choice((2, 3, 4, 4) if not number else (2, 3, 4))]
            self._add(argument(f"data{number}", shape, self.dtype))
        if rng.random() < 0.2:
            sparse = ", sparse_grad=True" if rng.random() < 0.4 else ""
            self._add(Line(f"mx.sym.Embedding(var('below9_words', shape=({time}, {batch})), input_dim=9, "
                           f"output_dim={channels}{sparse})", (), None))  # fmt: skip

    def _step(self) -> None:
        rng = self.rng
        maps = [n for n, line in enumerate(self.lines) if line.shape]
        recent = maps[-4:]
        base = rng.choice(recent if rng.random() < 0.8 else maps)
        if self._chained(maps, CHAINS):
            return
        line = self.lines[base]
        if rng.random() < 0.06 and line.inputs and not _MAKES.search(line.code):
            self._add(line)  # the same again
            return
        if rng.random() < 0.08 and len(line.shape) in (2, 3):
            self._shared(base)
            return
        table = _BY_RANK.get(len(line.shape), ANY) if rng.random() < 0.6 and line.dtype != "float16" else ANY
        code = rng.choice(table)
        others = [n for n in maps if self.lines[n].shape == line.shape and self.lines[n].dtype == line.dtype]
        code = self._changed(code, 0.5)
        inputs = (base, rng.choice(others)) if "{1}" in code else (base,)
        self._add(Line(self._filled(code, line.shape), inputs))

    def _changed(self, code: str, part: float) -> str:
        """A part of the templates that patterns are about become lookalikes."""
        if any(word in code for word in OF_PATTERNS) and self.rng.random() < part:
            self.has_lookalikes = True
            return lookalike(self.rng, code)
        return code

    def _chained(self, maps: list[int], chains: Mapping[int, Sequence[str]], lookalikes: float = 0.2) -> bool:
        """Mostly, in a program that is to run compute-heavy operators twice: the last line goes on in a chain."""
        base, rng = maps[-1], self.rng
        line = self.lines[base]
        if not self.is_deep or line.dtype == "float16" or len(line.shape or ()) not in chains or rng.random() < 0.25:
            return False
        code = self._changed(rng.choice(chains[len(line.shape or ())]), lookalikes)
        others = [n for n in maps if self.lines[n].shape == line.shape and self.lines[n].dtype == line.dtype]
        inputs = (base, rng.choice(others)) if "{1}" in code else (base,)
        return self._add(Line(self._filled(code, line.shape), inputs))

    def _shared(self, base: int) -> None:
        """A product with a weight that several products may share."""
        line = self.lines[base]
        size, hidden = line.shape[-1], self.rng.choice((8, 16, line.shape[-1]))
        name = f"shared{size}_{hidden}"
        known = [n for n, each in enumerate(self.lines) if each.code.startswith(f"var('{name}'")]
        if not known and self._add(argument(name, (hidden, size), line.dtype)):
            known = [len(self.lines) - 1]
        if not known:
            return
        code = f"mx.sym.FullyConnected({{0}}, weight={{1}}, no_bias=True, num_hidden={hidden}, flatten=False)"
        self._add(Line(code, (base, *known[:1])))

    def _filled(self, code: str, shape: Any) -> str:
        rng, axis = self.rng, self.rng.randrange(len(shape))
        ones = tuple(size if at == axis else 1 for at, size in enumerate(shape))
        given = {"axis": axis, "k": rng.choice(CHANNELS), "n": len(self.lines), "shape": shape, "ones": ones}
        given.update({f"d{at}": size for at, size in enumerate(shape)})
        for name, value in given.items():
            code = code.replace(f"<{name}>", str(value))
        return code

    def _add(self, line: Line) -> bool:
        """Takes a line in, with its shape, if MXNet does; several outputs follow as one line each."""
        code = line.code.format(*(f"v{n}" for n in line.inputs))
        try:
            symbol = self._evaluate(line, code)
            if isinstance(symbol, (list, tuple)):
                symbol, line = symbol[0], replace(line, code=f"{line.code}[0]")
            (arguments, shapes, _), kinds = symbol._infer_shape_impl(True), symbol._infer_type_impl(True)[1]
        except (mx.MXNetError, ValueError, AssertionError, IndexError, TypeError, AttributeError):
            return False
        if any(not shape or not 0 < _elements(shape) <= self.most_elements for shape in shapes) or None in kinds:
            return False
        if any(_elements(shape) > _MOST_OF_ARGUMENTS for shape in arguments):
            return False
        self.symbols.append(symbol)
        if len(shapes) == 1:
            self.lines.append(replace(line, shape=tuple(shapes[0]), dtype=kinds[0].__name__))
            return True
        self.lines.append(replace(line, shape=None))
        whole = len(self.lines) - 1
        for output in self.rng.sample(range(len(shapes)), self.rng.randint(1, len(shapes))):
            self.symbols.append(symbol[output])
            self.lines.append(Line(f"{{0}}[{output}]", (whole,), tuple(shapes[output]), kinds[output].__name__))
        return True

    def _evaluate(self, line: Line, code: str) -> Any:
        return eval(code, {**scope(), **{f"v{n}": self.symbols[n] for n in line.inputs}})

    def _heads(self) -> list[int]:
        read = {n for line in self.lines for n in line.inputs}
        loose = [n for n, line in enumerate(self.lines) if line.shape and n not in read and line.inputs]
        maps = [n for n, line in enumerate(self.lines) if line.shape and line.inputs] or [0]
        chosen = (loose or maps)[-self.rng.choice((1, 2, 3)) :]
        if self.rng.random() < 0.2:
            chosen = [*chosen, self.rng.choice(maps)]
        heads = []
        for base in dict.fromkeys(chosen):
            code = self.rng.choice(HEADS) if self.lines[base].dtype == "float32" else "{0}"
            before = len(self.lines)
            taken = code != "{0}" and self._add(Line(self._filled(code, self.lines[base].shape), (base,)))
            heads.append(before if taken else base)
        return heads


def _elements(shape: tuple[int, ...]) -> int:
    size = 1
    for each in shape:
        size *= each
    return size
