"""In which settings, and by which runners, each case is tried."""

from __future__ import annotations

from typing import Iterator, NamedTuple, Tuple

from tests.operators.build import Setting
from tests.operators.case import Case
from tests.operators.run import DYNAMIC, EXECUTOR, STATIC

Runner = Tuple[str, str]  # and what grad_req asks for
ALL: tuple[Runner, ...] = ((EXECUTOR, "write"), (EXECUTOR, "add"), (STATIC, "add"), (DYNAMIC, "write"))
SOME: tuple[Runner, ...] = ((EXECUTOR, "write"), (STATIC, "write"))
ONE: tuple[Runner, ...] = ((EXECUTOR, "write"),)


class Trial(NamedTuple):
    setting: Setting
    runners: tuple[Runner, ...]


def fast(case: Case) -> list[Trial]:
    """What finds every fault that is known, in little time."""
    images = any(given.kind == "x" and len(given.axes) == 4 for given in case.inputs)
    return [Trial(Setting("conv", consumer="pool") if images else Setting(), ONE)]


def full(case: Case) -> Iterator[Trial]:
    """Everything."""
    ranks = {len(given.axes) for given in case.inputs if given.kind == "x"}
    yield Trial(Setting(), ALL)
    yield Trial(Setting(masked="numbers", consumer="heavy"), SOME)
    yield Trial(Setting(shared=True, consumer="heavy"), SOME)
    if 2 in ranks:
        yield Trial(Setting("dense"), SOME)
    if 4 in ranks:
        yield Trial(Setting("conv"), ALL)
        yield Trial(Setting("plain conv"), SOME)
        yield Trial(Setting("conv", consumer="heavy"), SOME)
        yield Trial(Setting("conv", consumer="pool", shared=True), SOME)
        yield Trial(Setting("conv", consumer="pool"), SOME)
    if 4 in ranks and case.has_channels:
        for channels in (3, 16, 32):
            yield Trial(Setting("conv", consumer="heavy", masked="numbers", channels=channels), SOME)
            yield Trial(Setting("conv", consumer="pool", channels=channels), SOME)


def typed(case: Case) -> list[Trial]:
    """Other types of numbers, which not every operator takes."""
    return [Trial(Setting(dtype=dtype), ((EXECUTOR, "write"), (STATIC, "add"))) for dtype in ("float16", "float64")]
