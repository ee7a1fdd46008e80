"""In which settings, and by which runners, each case is tried."""

from __future__ import annotations

from typing import Iterator, NamedTuple, Tuple

from echo.ir.ops import spec
from tests.operators.case import Case
from tests.operators.graph import Setting
from tests.operators.run import DYNAMIC, EXECUTOR, STATIC

Runner = Tuple[str, str]  # and what grad_req asks for
ALL: tuple[Runner, ...] = ((EXECUTOR, "write"), (STATIC, "add"), (DYNAMIC, "write"))
SOME: tuple[Runner, ...] = ((EXECUTOR, "add"), (STATIC, "write"))
HEAVY: tuple[Runner, ...] = (
    (EXECUTOR, "add"),
    (STATIC, "write"),
    (DYNAMIC, "add"),
)  # with those of ALL, each both ways
ONE: tuple[Runner, ...] = ((EXECUTOR, "write"),)


class Trial(NamedTuple):
    setting: Setting
    runners: tuple[Runner, ...]


def fast(case: Case) -> list[Trial]:
    """Settings that find the known faults in little time."""
    images = any(given.kind == "x" and len(given.axes) == 4 for given in case.inputs)
    return [Trial(Setting("conv", consumer="pool") if images else Setting(), ONE)]


def full(case: Case) -> Iterator[Trial]:
    """Light operators around it; masks in front of it; images in the layouts that oneDNN blocks, and one that it does
    not."""
    ranks = {len(given.axes) for given in case.inputs if given.kind == "x"}
    yield Trial(Setting(), ALL)
    yield Trial(Setting(masked="numbers", consumer="heavy"), ONE)
    heavy = spec(case.op).cost.heavy
    if heavy:
        yield Trial(Setting(consumer="heavy"), HEAVY)
    if heavy and 2 in ranks:
        yield Trial(Setting("dense", shared=True), ONE)
        yield Trial(Setting("dense", consumer="heavy"), ALL)
    if heavy and 4 in ranks:
        yield Trial(Setting("conv", consumer="heavy", channels=16), (*ALL, *HEAVY))
        yield Trial(Setting("plain conv", consumer="heavy", channels=3), HEAVY)
    if 4 in ranks:
        yield Trial(Setting("conv"), ALL)
        yield Trial(Setting("conv", consumer="pool"), SOME)
        yield Trial(Setting("plain conv", consumer="heavy"), ONE)
    if 4 in ranks and case.has_channels:
        yield Trial(Setting("conv", consumer="heavy", masked="numbers", channels=16), SOME)
        yield Trial(Setting("conv", consumer="pool", shared=True, channels=32), ONE)
        yield Trial(Setting("conv", consumer="heavy", channels=3), ONE)


def typed(case: Case) -> list[Trial]:
    """Other types of numbers, which not every operator takes."""
    return [Trial(Setting(dtype=dtype), ONE) for dtype in ("float16", "float64")]
