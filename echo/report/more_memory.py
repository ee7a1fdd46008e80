"""What a little more memory would buy, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    more = f"{100 * _MORE:.0f} % more memory ({limit / 2**20:,.1f} MB)"
    if fastest is None or fastest["time"] >= profile.plan.time_ratio - _LEAST_TOLD:
        return f"{more} would buy no time"
    return (
        f"{more} would buy a step of {_change(fastest['time'])} in the place of {_change(profile.plan.time_ratio)} time"
    )


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
