"""The profile of a model: the memory of its training step without echo and with a plan, side by side."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Mapping

from echo.errors import GraphError
from echo.plans.plan import Plan
from echo.report.segment import Segment
from echo.report.usage import STOCK, Usage, from_columns, to_columns
from echo.system.files import read_json, shortened, write_in_one_step
from echo.system.terminal import preserve_python_rng

FORMAT = "echo-profile-1"


@dataclass(frozen=True)
class Profile:
    """A profile of the memory of a training step; prints as tables, saves and loads as JSON.

    ``usages`` has the graphs that are compared: "stock", the user's own; "echo", with ``plan``; "mirror", with MXNet's
    own recomputation (``MXNET_BACKWARD_DO_MIRROR``). ``device`` is "cpu" or "gpu"; ``versions`` are by name.
    ``frontier`` has plans for other budgets, as `echo.plans.frontier.Frontier.to_json`, if those were requested.
    ``segment`` is one segment of echo's graph, if that is compared and has one.
    """

    usages: Mapping[str, Usage]
    plan: Plan
    device: str
    versions: Mapping[str, str]
    frontier: tuple[Mapping[str, float], ...] = ()
    segment: Segment | None = None

    def __str__(self) -> str:
        with preserve_python_rng():
            from echo.report.text import render  # rich is needed to print, not to profile

            return render(self)

    def _repr_html_(self) -> str:
        from echo.report.pages import shown  # which is for notebooks alone

        return shown(self)

    def to_json(self) -> dict[str, Any]:
        """The profile as a JSON value, `FORMAT`; docstrings of `Usage` and `Tensor` say what its numbers mean.

        Arrays of a graph are columns of equal length under ``tensors``: ``name``, ``bytes``, ``first``, ``last``; and
        ``op``, ``layer`` and ``kind``, which are positions in ``texts``.
        """
        usages = {
            name: {
                "planned": usage.planned,
                "beside": dict(usage.beside),
                "steps": list(usage.steps),
                "forward_steps": usage.forward_steps,
                "measured": dict(usage.measured),
                "tensors": to_columns(usage.tensors),
            }
            for name, usage in self.usages.items()
        }
        return {
            "format": FORMAT,
            "device": self.device,
            "versions": dict(self.versions),
            "usages": usages,
            "plan": self.plan.to_json(),
            "frontier": [dict(row) for row in self.frontier],
            "segment": self.segment and self.segment.to_json(),
        }

    @staticmethod
    def from_json(value: Any) -> Profile:
        """Reads what `to_json` wrote.

        Raises:
            GraphError: not a profile, or one of another format.
        """
        if not isinstance(value, dict):
            raise GraphError(f"expected a JSON object, got {shortened(repr(value))}")
        try:
            if value["format"] != FORMAT:
                raise GraphError(f"expected format {FORMAT}, got {value['format']!r}")
            usages = {str(name): _read_usage(usage) for name, usage in value["usages"].items()}
            if STOCK not in usages:
                raise GraphError(f"expected the usage {STOCK!r}, got {', '.join(usages) or 'none'}")
            versions = {str(name): str(version) for name, version in value["versions"].items()}
            plan, rows = Plan.from_json(value["plan"]), tuple(map(_read_point, value["frontier"]))
            segment = Segment.from_json(value["segment"]) if value.get("segment") else None
            return Profile(usages, plan, str(value["device"]), versions, rows, segment)
        except KeyError as error:
            raise GraphError(f"it lacks {error}") from error
        except (IndexError, TypeError, ValueError, AttributeError) as error:
            raise GraphError(f"not a profile: {type(error).__name__}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the profile as a JSON file in one step."""
        text = json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False)
        write_in_one_step(path, f"{text}\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Profile:
        """Reads a profile that `save` wrote.

        Raises:
            GraphError: the file is no profile, or one of another version of echo.
            OSError: it cannot be read, or is no regular file.
        """
        try:
            return Profile.from_json(read_json(path))
        except (ValueError, GraphError) as error:
            raise GraphError(f"{path} is not a profile: {error}") from error


def _read_point(value: Mapping[str, Any]) -> Mapping[str, float]:
    for name in ("budget", "total", "time", "overhead"):
        if type(value[name]) not in (int, float) or value[name] < 0:
            raise GraphError(f"frontier: expected {name} to be a number, got {value[name]!r}")
    return dict(value)


def _read_usage(value: Mapping[str, Any]) -> Usage:
    sizes = {name: value[name] for name in ("planned", "forward_steps")}
    sizes.update({f"{group} {name}": size for group in ("beside", "measured") for name, size in value[group].items()})
    for name, size in sizes.items():
        if type(size) is not int or (size < 0 and not name.startswith("measured")):
            raise GraphError(f"{name}: expected a number of bytes, got {size!r}")
    if not all(isinstance(step, str) for step in value["steps"]):
        raise GraphError("steps: expected names of operators")
    return Usage(
        planned=value["planned"],
        beside=dict(value["beside"]),
        steps=tuple(value["steps"]),
        forward_steps=value["forward_steps"],
        tensors=from_columns(value["tensors"]),
        measured=dict(value["measured"]),
    )
