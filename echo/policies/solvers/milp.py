"""The integer program whose solution is the optimal schedule."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import reduce
from math import gcd
from typing import Any, Iterable, Iterator, Mapping, Sequence

from echo.ir.graph import Entry, walk
from echo.ir.schedule import RecomputeSchedule, steps_of
from echo.ir.training_node import TrainingNode
from echo.policies.problem import Problem

# An integer program as columns and rows, the form that solvers take.

CONSTANT = -1  # the column of terms that do not depend on the schedule


@dataclass
class Program:
    """Columns, and rows with their bounds: lower <= row <= upper."""

    cost: list[float] = field(default_factory=list)
    integral: list[bool] = field(default_factory=list)
    top: list[float] = field(default_factory=list)  # upper bounds of the columns, all of which begin at 0
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    rows: list[dict[int, float]] = field(default_factory=list)

    def column(self, cost: float = 0.0, integral: bool = False, top: float = 1.0) -> int:
        self.cost.append(cost)
        self.integral.append(integral)
        self.top.append(top)
        return len(self.cost) - 1

    def row(self, terms: Mapping[int, float], lower: float, upper: float) -> None:
        constant = terms.get(CONSTANT, 0.0)
        self.rows.append({column: factor for column, factor in terms.items() if column != CONSTANT and factor})
        self.lower.append(lower - constant)
        self.upper.append(upper - constant)


# The integer program of `echo.policies.ilp`: every schedule of a training graph, its bytes and its seconds.
#
# In the spirit of Checkmate (Jain et al., MLSys 2020), in the steps of `echo.ir.schedule`. For each backward position
# k:
#
# - run[k, i], binary: candidate i is recomputed just before backward node k, and is read there;
# - kept[k, e]: the value of forward entry e is in memory when position k begins; integral where run is;
# - used[k, e, r]: once computed, e is alive until copy r or a later one has read it at position k, or beyond k.
#
# Copies at one position run in the order of their numbers. An output counts before the inputs are freed. The program
# does not know operators that work in place, nor chunks of a storage planner.

_INFINITE = float("inf")


class Model:
    """The program of one problem: least seconds within ``max_bytes``, or least bytes where that is None."""

    def __init__(self, problem: Problem, max_bytes: int | None, max_seconds: float | None) -> None:
        self.problem, self.training = problem, problem.training
        self.graph = _Reads(problem)
        self.program = Program()
        self.run: dict[tuple[int, int], int] = {}
        self.kept: dict[tuple[int, Entry], int] = {}
        self.used: dict[tuple[int, Entry, int], int] = {}
        self.unit = reduce(gcd, self.graph.bytes.values(), 0) or 1  # bytes are whole multiples of it
        self.limit = 0 if max_bytes is None else max_bytes // self.unit * self.unit
        self.whole = float(max(1, self.limit or sum(self.graph.bytes.values())))  # scales bytes to about one
        self.scale = max([second for second in problem.costs.seconds if second > 0], default=1.0)
        self.peak = self.program.column(1.0, top=_INFINITE) if max_bytes is None else None
        self._columns()
        for position in range(len(self.graph.backward)):
            self._presence(position)
            self._uses(position)
        self._limits(max_seconds)
        self._memory()

    @staticmethod
    def size(problem: Problem) -> int:
        """The binary variables that the program of a problem has at most."""
        return len(problem.candidates) * len(problem.training.backward)

    def schedule_of(self, values: Sequence[float]) -> RecomputeSchedule:
        positions_of: dict[int, list[int]] = defaultdict(list)
        for (position, node), column in sorted(self.run.items()):
            if values[column] > 0.5 and node in self.problem.candidates:
                positions_of[node].append(self.graph.backward[position])
        if not self.problem.may_split:
            return self.problem.splits(positions_of)
        return {node: tuple(positions) for node, positions in sorted(positions_of.items())}

    def bytes_of(self, values: Sequence[float]) -> int | None:
        """The peak of a solution, where it is the objective."""
        return None if self.peak is None else round(values[self.peak] * self.whole / self.unit) * self.unit

    def start(self, schedule: RecomputeSchedule) -> list[float]:
        """The columns of ``run`` of a schedule; a solver completes the others."""
        values = [0.0] * len(self.program.cost)
        position_of = {number: position for position, number in enumerate(self.graph.backward)}
        for step in steps_of(self.training, schedule, self.graph.again):
            if step.node != step.position:
                values[self.run[position_of[step.position], step.node]] = 1.0
        return values

    # Columns and rows -----------------------------------------------------------------------------------------

    def _columns(self) -> None:
        for position in range(len(self.graph.backward)):
            for node in self.graph.reachable[position]:
                cost = self.problem.costs.seconds[node] / self.scale if self.peak is None else 0.0
                self.run[position, node] = self.program.column(cost, integral=True)
            for entry in self.graph.entries:
                self.kept[position, entry] = self.program.column()

    def _in_memory(self, position: int, entry: Entry) -> dict[int, float]:
        """Terms whose sum says whether an entry is in memory when its readers at a position run."""
        terms = {self.kept[position, entry]: 1.0}
        if entry in self.graph.again and (position, entry.node) in self.run:
            terms[self.run[position, entry.node]] = 1.0
        return terms

    def _presence(self, position: int) -> None:
        program, reads = self.program, self.graph.backward_reads[position]
        for entry in self.graph.entries:
            in_memory = self._in_memory(position, entry)
            program.row(in_memory, 1.0 if entry in reads else 0.0, 1.0)
            for reader in self.graph.copy_readers[entry]:
                if (position, reader) in self.run:
                    program.row({**in_memory, self.run[position, reader]: -1.0}, 0.0, _INFINITE)
            if position + 1 < len(self.graph.backward):
                program.row({**in_memory, self.kept[position + 1, entry]: -1.0}, 0.0, _INFINITE)
        for node in self.graph.reachable[position]:  # a node is recomputed only where it is read at once
            outputs = self.graph.again_of[node]
            if any(entry in reads for entry in outputs):
                continue
            readers = {reader for entry in outputs for reader in self.graph.copy_readers[entry]}
            terms = {self.run[position, r]: 1.0 for r in readers if (position, r) in self.run}
            program.row({**terms, self.run[position, node]: -1.0}, 0.0, _INFINITE)

    def _uses(self, position: int) -> None:
        for entry in self.graph.entries:
            if entry in self.graph.backward_reads[position]:
                continue
            later = self._kept_after(position, entry)
            for reader in reversed(self.graph.copy_readers[entry]):
                if (position, reader) not in self.run:
                    continue
                column = self.used[position, entry, reader] = self.program.column()
                self.program.row({column: 1.0, self.run[position, reader]: -1.0}, 0.0, _INFINITE)
                if later is not None:
                    self.program.row({column: 1.0, later: -1.0}, 0.0, _INFINITE)
                later = column

    def _kept_after(self, position: int, entry: Entry) -> int | None:
        return self.kept.get((position + 1, entry))

    def _limits(self, max_seconds: float | None) -> None:
        seconds = {column: self.problem.costs.seconds[node] / self.scale for (_, node), column in self.run.items()}
        if max_seconds is not None:
            self.program.row(seconds, 0.0, max_seconds / self.scale)
        runs: dict[int, list[int]] = defaultdict(list)
        for (_, node), column in self.run.items():
            runs[node].append(column)
        for node, columns in runs.items():
            must_recompute = node in self.graph.must_recompute
            for entry in self.graph.again_of[node]:
                if must_recompute:
                    self.program.row({self.kept[0, entry]: 1.0}, 0.0, 0.0)
                elif not self.problem.may_split:  # all readers read the copy of a node that is recomputed
                    terms = {self.kept[0, entry]: 1.0, **dict.fromkeys(columns, 1.0)}
                    self.program.row(terms, 0.0, 1.0)
            if not self.problem.may_split or node not in self.problem.candidates:
                self.program.row(dict.fromkeys(columns, 1.0), 0.0, 1.0)

    # Memory ---------------------------------------------------------------------------------------------------

    def _memory(self) -> None:
        for terms in (*self._forward_steps(), *self._backward_steps()):
            scaled = {column: factor / self.whole for column, factor in terms.items()}
            if self.peak is None:
                self.program.row(scaled, -_INFINITE, self.limit / self.whole)
            else:
                self.program.row({**scaled, self.peak: -1.0}, -_INFINITE, 0.0)

    def _forward_steps(self) -> Iterator[dict[int, float]]:
        """The bytes that are alive at each step of the forward pass, as terms."""
        sizes = self.graph.bytes
        for number in self.graph.forward:
            terms: dict[int, float] = defaultdict(float)
            for entry, size in sizes.items():
                if not self.training.nodes[entry.node].forward or entry.node > number:
                    continue
                if entry in self.graph.to_the_end or self.graph.last_forward_use[entry] >= number:
                    terms[CONSTANT] += size
                elif (0, entry) in self.kept:
                    terms[self.kept[0, entry]] += size
            yield terms

    def _backward_steps(self) -> Iterator[dict[int, float]]:
        for position, number in enumerate(self.graph.backward):
            standing = self.graph.standing(number)
            for step in (*self.graph.reachable[position], number):
                terms: dict[int, float] = defaultdict(float)
                terms[CONSTANT] = standing
                for entry in self.graph.entries:
                    for column in self._alive(position, entry, step):
                        terms[column] += self.graph.bytes.get(entry, 0)
                if step == number:
                    terms[CONSTANT] += self.graph.made_by(number)
                else:
                    terms[self.run[position, step]] += self.graph.made_in_passing(step)
                yield terms

    def _alive(self, position: int, entry: Entry, step: int) -> Iterable[int]:
        """The columns that together say whether an entry is alive while ``step`` runs at a position."""
        run = self.run.get((position, entry.node)) if entry in self.graph.again else None
        if step < entry.node:
            return [self.kept[position, entry]]
        if step == entry.node:
            return [self.kept[position, entry]] if run is None else [self.kept[position, entry], run]
        if entry in self.graph.backward_reads[position]:
            return [CONSTANT]
        for reader in self.graph.copy_readers[entry]:
            if reader >= step and (position, reader) in self.run:
                return [self.used[position, entry, reader]]
        later = self._kept_after(position, entry)
        return [] if later is None else [later]


class _Reads:
    """The readers of each entry in a problem's training graph, and the nodes that may have to be recomputed."""

    def __init__(self, problem: Problem) -> None:
        training = self.training = problem.training
        self.forward = [number for number, node in training.operators() if node.forward]
        self.backward = training.backward
        self.to_the_end = frozenset(Entry(entry.node, entry.index) for entry in training.outputs)
        self.must_recompute = {entry.node for entry in problem.must_recompute}
        offered = {entry for entries in problem.candidates.values() for entry in entries} | problem.must_recompute
        self.again = frozenset(Entry(e.node, e.index) for e in offered) - self.to_the_end
        self.again_of: dict[int, list[Entry]] = defaultdict(list)
        for entry in sorted(self.again):
            self.again_of[entry.node].append(entry)
        self.bytes = {
            Entry(number, index): array_type.bytes
            for number, node in training.operators()
            for index, array_type in enumerate(node.outputs)
            if index not in node.unowned and array_type.bytes
        }
        self.last_use: dict[Entry, int] = {}
        self.last_forward_use: dict[Entry, int] = {entry: entry.node for entry in self.bytes}
        for number, node in training.operators():
            for entry in self._read_by(node):
                self.last_use[entry] = number
                if node.forward:
                    self.last_forward_use[entry] = number
        self.copy_readers: dict[Entry, list[int]] = defaultdict(list)
        for number in sorted(self.again_of):
            for entry in self._read_by_copy(number):
                self.copy_readers[entry].append(number)
        self.backward_reads = [set(self._read_by(training.nodes[number])) for number in self.backward]
        self.reachable = [self._reachable(reads) for reads in self.backward_reads]
        read = set().union(*self.backward_reads) | set(self.copy_readers) | self.again
        self.entries = sorted(e for e in read if training.nodes[e.node].forward and e not in self.to_the_end)

    def _read_by(self, node: TrainingNode) -> set[Entry]:
        """The entries that a node reads, without variables."""
        return {
            Entry(entry.node, entry.index)
            for position, entry in enumerate(node.inputs)
            if position not in node.shape_only and not self.training.nodes[entry.node].is_variable
        }

    def _read_by_copy(self, number: int) -> set[Entry]:
        node = self.training.nodes[number]
        return self._read_by(node) | ({Entry(number, 1)} if node.is_masked else set())

    def _reachable(self, reads: Iterable[Entry]) -> list[int]:
        """The nodes that may have to be recomputed for a backward node, in order."""

        def among(reads: Iterable[Entry]) -> list[int]:
            return [entry.node for entry in reads if entry in self.again]

        return sorted(walk(among(reads), lambda number: among(self._read_by(self.training.nodes[number]))))

    def standing(self, number: int) -> int:
        """Bytes that are alive just before a backward node runs, whatever the schedule."""
        return sum(
            size
            for entry, size in self.bytes.items()
            if entry.node < number
            and (
                entry in self.to_the_end
                or (not self.training.nodes[entry.node].forward and self.last_use.get(entry, -1) >= number)
            )
        )

    def made_by(self, number: int) -> int:
        return sum(self.bytes.get(Entry(number, i), 0) for i in range(len(self.training.nodes[number].outputs)))

    def made_in_passing(self, number: int) -> int:
        """Bytes of a copy's outputs that no node reads from it."""
        node = self.training.nodes[number]
        outputs: Any = range(1 if node.is_masked else len(node.outputs))
        return sum(self.bytes.get(Entry(number, i), 0) for i in outputs if Entry(number, i) not in self.again)
