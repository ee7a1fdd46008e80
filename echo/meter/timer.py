"""Times operators in the measuring process: batches of repetitions, a clock that knows its noise, and races."""

from __future__ import annotations

import functools
import math
import os
import resource
import time
from functools import partial
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from echo.meter.capi import CODES, SIZES, Array, Borrowed, Executor, Library, Microbenchmark, Variable

# Seconds of one run of a graph, without the work of the host and of other programs around it.
#
# On a CPU the host does little; but other programs take their turns on it, and the seconds of the clock then count
# them, too. Those that the processor spends on the threads of this process do not: on the one that computes, or on
# that of several which computes the most, after the main thread has given it its work. The fewer of both count. A GPU
# works off its queue while the host goes on: there runs are given to it one after the other, and the host
# waits for the last. Waiting varies by some 10 microseconds, a thousandth of such a batch.

Run = Callable[[int], None]  # runs a graph so many times, and waits for the last

_GPU = 2  # MXNet's number for the type of device
_BATCH_SECONDS = 10e-3
_MOST_RUNS = 100
_MOST_LOOKS = 1_000_000  # some tenths of a second
_TICK = 1e-3  # seconds; systems that count the time of processes in ticks have some of 1 to 10 ms
_SEVERAL = 0.2  # of the thread that computes the most: other threads compute, too
_MORE_ROUNDS = 1  # times as many rounds again, for runs that were interrupted all the time


class Moment(NamedTuple):
    """Seconds by the clock, and those that the processor has spent on each thread of this process."""

    clock: float
    threads: dict[int, float]


class Sample(NamedTuple):
    """Seconds of a run; ``disturbed`` says that other programs took the processor from one of several threads.

    The others then waited for it, and may have spent the time of the processor on that.
    """

    seconds: float
    disturbed: bool = False


def shortest(samples: Sequence[Sample]) -> Sample:
    """Returns the fewest seconds of some samples, which count as disturbed if each of them was."""
    return Sample(min(sample.seconds for sample in samples), all(sample.disturbed for sample in samples))


def sample(run: Run, device: tuple[int, int]) -> Sample:
    """Returns the seconds of one run of a graph."""
    if device[0] != _GPU:
        return _on_the_processor(run)
    alone = _timed(run, 1)
    runs = min(_MOST_RUNS, int(_BATCH_SECONDS / max(alone, 1e-9)))
    return Sample(_timed(run, runs) / runs if runs > 1 else alone)


def in_turns(runs: Sequence[Run], device: tuple[int, int], rounds: int, before: Callable[[], None]) -> list[Sample]:
    """Returns the shortest sample of each graph; they run in turns, so that what disturbs one disturbs all.

    ``before`` is called before each run. There are so many rounds, and more while a graph has no undisturbed sample.
    """
    samples: list[list[Sample]] = [[] for _ in runs]
    for turn in range(rounds * (1 + _MORE_ROUNDS)):
        if turn >= rounds and not any(shortest(found).disturbed for found in samples):
            break
        for run, found in zip(runs, samples):
            before()
            found.append(sample(run, device))
    return [shortest(found) for found in samples]


def now() -> Moment:
    """Returns the seconds until now."""
    return Moment(time.perf_counter(), _of_threads())


def work_since(start: Moment, device: tuple[int, int]) -> float:
    """Returns the seconds of work since a moment: other programs do not make them more, a GPU works by the clock."""
    end = now()
    clock = end.clock - start.clock
    return clock if device[0] == _GPU else min(clock, sum(_main_and_most(start, end)))


def _on_the_processor(run: Run) -> Sample:
    interrupted, before = _interruptions(), _of_threads()
    clock = _timed(run, 1)
    start, end = Moment(0.0, before), Moment(clock, _of_threads())
    is_interrupted = _interruptions() > interrupted
    if not _counts_finely():
        return Sample(clock, is_interrupted)
    main, most = _main_and_most(start, end)
    several = sum(_others(start, end)) > most * (1 + _SEVERAL)
    return Sample(min(clock, main + most), is_interrupted and several)


def _others(start: Moment, end: Moment) -> list[float]:
    """Returns the seconds of all threads but the main one."""
    return [now - start.threads.get(thread, 0.0) for thread, now in end.threads.items() if thread != os.getpid()]


def _main_and_most(start: Moment, end: Moment) -> tuple[float, float]:
    """Returns the seconds of the main thread, and those of the other thread that computed the most."""
    main = end.threads.get(os.getpid(), 0.0) - start.threads.get(os.getpid(), 0.0)
    return main, max(_others(start, end), default=0.0)


def _timed(run: Run, times: int) -> float:
    """Returns the seconds by the clock."""
    start = time.perf_counter()
    run(times)
    return time.perf_counter() - start


def _of_threads() -> dict[int, float]:
    """Returns the seconds that the processor spent on each thread, by its number; of all in one where that is unknown.

    Linux makes the number of a thread's clock from that of the thread: clock_getcpuclockid(3).
    """
    try:
        return {thread: time.clock_gettime(~thread << 3 | 6) for thread in map(int, os.listdir("/proc/self/task"))}
    except (AttributeError, OSError):  # not Linux, or a thread that has just ended
        return {0: time.process_time()}


def _interruptions() -> int:
    """Returns how often a thread of this process had to leave a processor to another program."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@functools.lru_cache(maxsize=None)
def _counts_finely() -> bool:
    start = time.process_time()
    steps = (tick - start for tick in (time.process_time() for _ in range(_MOST_LOOKS)) if tick != start)
    return next(steps, _TICK) < _TICK


# Seconds of single operators, measured inside MXNet's executor.
#
# In a training graph the engine dispatches operators without Python, so a node is measured as several copies in one
# small executor, on random finite inputs of its own shapes. A gradient operator stands alongside the forward operator
# that it belongs to, and the forward time is taken off.

LAUNCH = 6e-6  # seconds: about what an operator takes that does nothing
# A timed run takes about this long, or has this many copies, or copies that read and write this many bytes.
_RUN_SECONDS = 1.5e-3
_MOST_HOT_COPIES, _MOST_COLD_COPIES = 64, 16
_MOST_COPIED_BYTES = 12 << 20
_MOST_COPIED_ON_GPU = 128 << 20  # more than its caches hold
_LEAST_SECONDS = LAUNCH / 10  # differences below are noise
_LONG_RUN = 3e-3  # a run that takes thrice this long is cut down to it, if it can be
_HOT_RUNS, _COLD_RUNS = 3, 2  # of which the shortest counts
# A copy of this many bytes drives operands out of the caches, as the rest of a training step does: with it the
# operators of an NMT step take the time that the profiler sees in the whole graph, without it 0.6 times that.
_FLUSH_BYTES = 16 << 20
_MOST_KEPT_BYTES = 256 << 20  # of arrays for the next measurements
# Bytes that an operator reads and writes: so many stay in the caches from run to run, so many do not. A sum of two
# arrays took 5.3 ms for each 100 MB at 18 MB, 8.2 at 74, 10.1 at 147, 10.2 at 294 (two cores of a Xeon, 260 MB of L3).
CACHED_BYTES, STREAMED_BYTES = 16 << 20, 128 << 20


class OperatorTimer:
    """Times operators on one device.

    Light forward operators, the candidates for recomputation, find their inputs in the caches, as in a chain of clones
    that run one after the other, and so do products of unrolled layers. All others run after the caches were flushed.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._reusable: dict[Variable, list[Array]] = {}
        self._kept_bytes = 0
        self._call: Sample | None = None
        self._copy: Executor | None = None
        self._streaming: float | None = None
        self._shortest: dict[object, Sample] = {}
        self._copies: dict[str, int] = {}

    def once(self, microbenchmark: Microbenchmark) -> Sample:
        """Seconds of one run alone.

        Raises:
            MxnetError: MXNet does not run it.
        """
        return self._alone(microbenchmark, 1)

    def too_long(self, microbenchmark: Microbenchmark, once: float) -> float:
        """Returns how many times longer than wanted a run of ``once`` seconds is; 0 where that does not matter."""
        return once / _LONG_RUN if once > 3 * _LONG_RUN and not microbenchmark.heavy else 0.0

    def seconds(self, microbenchmark: Microbenchmark, once: Sample) -> Sample:
        """Seconds of one run among other operators; ``once`` are those of one run alone.

        Asked again, it answers by all runs so far. Other programs may take their turns during any of them, and what
        stands alongside an operator is taken off: so the shortest run of each counts, not the shortest difference.

        Raises:
            MxnetError: MXNet does not run it.
        """
        if microbenchmark.heavy:
            overhead = self._alone(microbenchmark, 0) if microbenchmark.forward else self._overhead()
            alone = once.seconds - overhead.seconds
            if alone > _LONG_RUN:  # it stands out: more runs would take the time of other operators
                return Sample(alone, once.disturbed or overhead.disturbed)
        copies = self._copies.setdefault(repr(microbenchmark), self._copies_of(microbenchmark, once.seconds))
        return self._among_copies(microbenchmark, copies)

    def _copies_of(self, microbenchmark: Microbenchmark, once: float) -> int:
        base = self._alone(microbenchmark, 0) if microbenchmark.forward else self._overhead()
        # copies whose sum stands out from the forward operator alongside them
        needed = max(_RUN_SECONDS, base.seconds) / max(once - base.seconds, LAUNCH)
        most = _MOST_HOT_COPIES if microbenchmark.hot else _MOST_COLD_COPIES
        most_bytes = _MOST_COPIED_BYTES if self._library.device[0] == 1 else _MOST_COPIED_ON_GPU
        return max(1, int(min(needed, most, most_bytes / microbenchmark.bytes)))

    def _among_copies(self, microbenchmark: Microbenchmark, copies: int) -> Sample:
        executors = [self._bind(microbenchmark, copies)]
        if microbenchmark.over >= 0:
            executors.append(self._bind(microbenchmark, copies, overhead=True))
        elif microbenchmark.forward:
            executors.append(self._bind(microbenchmark, 0))
        found = self._best(executors, microbenchmark.hot)
        whole, *others = (self._shorter((repr(microbenchmark), at), each) for at, each in enumerate(found))
        overhead = others[0] if others else self._overhead()
        seconds = (whole.seconds - overhead.seconds) / copies
        return Sample(max(seconds, _LEAST_SECONDS), whole.disturbed or overhead.disturbed)

    def streaming(self) -> float:
        """Seconds a byte by which operators are slower whose arrays come from memory than those that caches hold.

        They are measured once, which takes a quarter of a second.

        Raises:
            MxnetError: MXNet does not run the sum of two arrays.
        """
        if self._streaming is not None:
            return self._streaming
        seconds_a_byte = []
        for moved in (CACHED_BYTES, STREAMED_BYTES):
            array = Variable((moved // 12,))  # two are read and one is written, of 4 bytes an element
            (whole,) = self._best([self._bind(Microbenchmark("elemwise_add", {}, (array, array)), 1)], hot=True)
            seconds_a_byte.append((whole.seconds - self._overhead().seconds) / moved)
        self._streaming = max(seconds_a_byte[1] - seconds_a_byte[0], 0.0)
        return self._streaming

    def _overhead(self) -> Sample:
        """Seconds of running an executor that does next to nothing."""
        if self._call is None:
            executor = self._bind(Microbenchmark("_copy", {}, (Variable((1,)),)), 1)
            self._call = shortest([self._sample(executor) for _ in range(5)])
        return self._call

    def _best(self, executors: list[Executor], hot: bool) -> list[Sample]:
        """The shortest sample of each executor, after a first run; they run in turns."""
        for executor in executors:
            executor.forward()
        runs = [executor.forward for executor in executors]
        rounds, before = (_HOT_RUNS, _nothing) if hot else (_COLD_RUNS, self._flush)
        return in_turns(runs, self._library.device, rounds, before)

    def _alone(self, microbenchmark: Microbenchmark, copies: int) -> Sample:
        """The shortest run so far that is not among others; with no copies, of the operator alongside it."""
        executor = self._bind(microbenchmark, copies)
        found = shortest([self._sample(executor), self._sample(executor)])
        if microbenchmark.forward and not copies:  # the microbenchmark of that operator counts, too
            microbenchmark = Microbenchmark(microbenchmark.forward, microbenchmark.attrs, microbenchmark.forward_inputs)
        run = microbenchmark.op, repr(microbenchmark.attrs), microbenchmark.inputs, microbenchmark.forward_inputs
        return self._shorter(run, found)

    def _shorter(self, what: object, found: Sample) -> Sample:
        """The shortest of all samples of this."""
        self._shortest[what] = shortest([found, self._shortest.get(what, found)])
        return self._shortest[what]

    def _sample(self, executor: Executor) -> Sample:
        return sample(executor.forward, self._library.device)

    def _bind(self, microbenchmark: Microbenchmark, copies: int, overhead: bool = False) -> Executor:
        arrays = self._arrays_for(microbenchmark.variables(copies))
        return Executor(self._library, microbenchmark.graph(copies, overhead), arrays)

    def _arrays_for(self, variables: dict[str, Variable]) -> dict[str, Array]:
        """One array for each variable; arrays of earlier measurements are used again."""
        if self._kept_bytes > _MOST_KEPT_BYTES:
            self._reusable.clear()
            self._kept_bytes = 0
        taken: dict[Variable, int] = {}
        arrays = {}
        for name, variable in variables.items():
            alike = self._reusable.setdefault(variable, [])
            position = taken.get(variable, 0)
            if position == len(alike):
                alike.append(self._array(variable))
                self._kept_bytes += math.prod(variable.shape) * SIZES[CODES[variable.flag]]
            arrays[name] = alike[position]
            taken[variable] = position + 1
        return arrays

    def _array(self, variable: Variable) -> Array:
        if variable.blocked and self._library.device[0] == 1:
            return self._blocked(variable)
        return self._library.array(variable.shape, variable.flag, variable.below)

    def _blocked(self, variable: Variable) -> Array:
        """An array in oneDNN's own layout: the output of a convolution that costs little."""
        batch, channels, *sizes = variable.shape
        kernel = "(" + ", ".join("1" for _ in sizes) + ")"
        attrs = {"no_bias": "True", "num_filter": str(channels), "kernel": kernel}
        shapes = (batch, 1, *sizes), (channels, 1, *(1 for _ in sizes))
        inputs = tuple(Variable(shape, variable.flag) for shape in shapes)
        microbenchmark = Microbenchmark("Convolution", attrs, inputs)
        arrays = {
            name: self._library.array(item.shape, item.flag) for name, item in microbenchmark.variables(1).items()
        }
        executor = Executor(self._library, microbenchmark.graph(1), arrays)
        executor.forward()
        output: Borrowed = executor.outputs[0]
        return output  # it keeps its memory, whatever becomes of the executor

    def _flush(self) -> None:
        if self._copy is None:
            microbenchmark = Microbenchmark("_copy", {}, (Variable((_FLUSH_BYTES // 4,)),))
            variables = microbenchmark.variables(1).items()
            zeros = {name: self._library.constant(item.shape, item.flag, 0) for name, item in variables}
            self._copy = Executor(self._library, microbenchmark.graph(1), zeros)
        self._copy.forward()


def _nothing() -> None:
    """Leaves the caches as they are."""


# Small graphs that compute the same, timed against each other: forward and backward, in turns, on one device.

_LEAST_ROUNDS, _MOST_ROUNDS = 2, 9
_HOPELESS = 1.2  # times the best of the first round


def race(
    library: Library, graphs: Mapping[str, Any], types: Mapping[str, Sequence[Any]], limit: float
) -> dict[str, float] | None:
    """The fewest seconds of a training step of each graph; all read the same arrays, of these shapes and flags.

    None where that takes longer than ``limit`` seconds of work. Graphs that are slower drop out, except the first.

    Raises:
        MxnetError: MXNet does not run one of them.
    """
    start = now()
    seconds: dict[str, list[float]] = {name: [] for name in graphs}
    arrays = {name: library.array(shape, flag, 0, -0.1, 0.1) for name, (shape, flag) in types.items()}
    gradients = {name: library.constant(shape, flag, 0) for name, (shape, flag) in types.items()}
    executors = {name: Executor(library, graph, arrays, gradients) for name, graph in graphs.items()}
    heads = [output.like(1) for output in next(iter(executors.values())).outputs]
    for turn in range(1 + _MOST_ROUNDS):
        for name in list(executors):
            if turn:
                seconds[name].append(sample(partial(executors[name].step, heads), library.device).seconds)
            else:  # which makes MXNet's primitives
                executors[name].step(heads)
            if turn <= _LEAST_ROUNDS and work_since(start, library.device) > limit:
                return None
        another = work_since(start, library.device) / (turn + 1)
        if turn >= _LEAST_ROUNDS and work_since(start, library.device) + another > limit:
            break
        if turn == 1:
            best = min(times[0] for times in seconds.values())
            for name in [name for name in list(executors)[1:] if seconds[name][0] > _HOPELESS * best]:
                del executors[name]
    return {name: min(times) for name, times in seconds.items()}
