"""What a little more memory would buy, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echo.system.terminal import megabytes

if TYPE_CHECKING:
    from echo.report.profile import Profile

_MORE = 0.1  # of what the plan's executor holds
_LEAST_TOLD = 0.001  # of a step of stock MXNet: less is noise of the prediction


def more_memory(profile: Profile) -> str:
    """The fastest plan that takes at most a tenth more memory than the profile's, against it; empty without a frontier.

    Times are predicted, and against a step of the user's own graph.
    """
    if not profile.frontier:
        return ""
    limit = (1 + _MORE) * profile.plan.after.total
    fitting = [row for row in profile.frontier if row["total"] <= limit]
    fastest = min(fitting, key=lambda row: row["time"], default=None)
    more = f"{100 * _MORE:.0f} % more memory (up to {megabytes(limit)} MB)"
    if fastest is None or fastest["time"] >= profile.plan.time_ratio - _LEAST_TOLD:
        return f"{more} would buy no time"
    plan, before = f"a plan of {megabytes(fastest['total'])} MB", _change(profile.plan.time_ratio)
    return (
        f"{more} would buy {plan}, whose step takes {_change(fastest['time'])} than stock's; this one's takes {before}"
    )


def _change(ratio: float) -> str:
    return f"{100 * abs(ratio - 1):.1f} % {'less' if ratio < 1 else 'more'} time"
