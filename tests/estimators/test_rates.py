"""Whether a measured time can be true: the roofline by the rates of other operators."""

from __future__ import annotations

import pytest

from echo.estimators.operator_groups import Group, Work
from echo.estimators.rates import BYTES_PER_SECOND, Rates, Roofline
from echo.meter.timer import LAUNCH

MOVED = 1 << 20


def group(number: int, flops: float = 0.0, moved: float = MOVED) -> Group:
    return Group(number, 1, f"group {number}", ("op", number), Work(flops, moved), not flops, False, None)


def roofline(rate: float, count: int = 5, flops: float = 0.0) -> Roofline:
    """The roofline of a device on which every operator works at one rate, and the operator 0 at any."""
    groups = [group(number, flops * number, MOVED * number) for number in range(1, count + 1)]
    return Roofline([(group(0, flops), 1e-9), *((each, each.size / rate) for each in groups)])


@pytest.mark.parametrize("rate", [1e8, 1e10, 1e12])
@pytest.mark.parametrize("flops", [0.0, 1e9])
@pytest.mark.parametrize(
    ("times", "allowed"), [(0.45, False), (0.55, True), (1.0, True), (19.0, True), (22.0, False), (1e3, False)]
)
def test_roofline_by_rates_of_others_allows_half_to_twenty_times(
    times: float, allowed: bool, rate: float, flops: float
) -> None:
    tried = group(0, flops)
    seconds = times * tried.size / rate + (LAUNCH * 20 if times > 20 else 0.0)
    moving = [(group(number, 0.0, 1.0), 1.0 / 1e15) for number in range(20, 25)] if flops else []
    known = roofline(rate, flops=flops)
    if moving:  # products are not limited by their bytes here
        known = Roofline([*moving, *((group(n, flops * n), flops * n / rate) for n in range(1, 6))])
    assert known.allows(tried, seconds) is allowed


def test_roofline_of_one_fast_operator_among_slow_ones_is_theirs() -> None:
    slow = [(group(number), MOVED / 1e9) for number in range(1, 20)]
    known = Roofline([(group(0), MOVED / 1e13), *slow])
    assert not known.allows(group(0), MOVED / 1e13)
    assert all(known.allows(each, seconds) for each, seconds in slow)


def test_roofline_with_few_others_allows_what_other_devices_take() -> None:
    usual = MOVED / BYTES_PER_SECOND
    known = roofline(1e3, count=3)
    assert all(known.allows(group(0), times * usual) for times in (0.1, 1.0, 100.0))
    assert not known.allows(group(0), usual / 100)
    assert not known.allows(group(0), usual * 1000)


def test_launches_are_not_too_fast_for_the_roofline() -> None:
    assert roofline(BYTES_PER_SECOND).allows(group(0, moved=64), LAUNCH / 10)


def test_rates_without_measurements_are_constants() -> None:
    assert Rates().estimate(group(1)) == pytest.approx(LAUNCH + MOVED / BYTES_PER_SECOND)
