"""Storage methods of echo's own, by numbers in the place of a match range of MXNet's memory planner."""

from __future__ import annotations

ASSIGNED = -1  # echo's own assignment (`echo.estimators.assignment`)
PEAK = -2  # the most bytes alive at once, which no assignment goes below: never applied, but quick to search by
