"""The plan of one graph: what is recomputed, what is fused, the bytes before and after, and how long a step takes."""

from __future__ import annotations

import atexit
import json
import logging
import os
from dataclasses import dataclass, field, fields, replace
from typing import Any, Callable, Mapping, NamedTuple

from echo.errors import GraphError, OptionError
from echo.ir.training_graph import StorageStrategy
from echo.plans import decisions
from echo.plans.decisions import (
    HIDDEN,
    LAYOUT_COPIES,
    RECOMPUTE,
    STASH,
    WORKSPACES,
    Decision,
    Mark,
    Memory,
    MissedFusion,
    Note,
    NoteKind,
    near_misses,
)
from echo.plans.key import PlanKey
from echo.plans.text import Alternatives, Cost, NotFused, Why, render, why
from echo.system.files import digest_of, read_json, shortened, write_in_one_step
from echo.system.terminal import counted, preformatted, preserve_python_rng, size_text
from echo.system.threads import Lock

# The seconds of a training step, as a plan predicts them.


class StepTime(NamedTuple):
    """Predicted seconds of a step: ``before``, of the original graph, and ``after``, of the one that is bound.

    Both are sums of seconds of single operators on the user's device, measured where that is possible.
    """

    before: float
    after: float

    @property
    def ratio(self) -> float:
        """``after`` as a multiple of ``before``."""
        return self.after / self.before if self.before else 1.0

    @property
    def change(self) -> str:
        """The change, as in "-71.4 %"."""
        return f"{100 * (self.ratio - 1):+.1f} %"


# The plan: which feature maps are stashed or recomputed, why, and the bytes and seconds of the result.

FORMAT = "echo-plan-8"
_LEAST_SAID = 1 << 19  # bytes, of what a summary names alongside planned memory
APPLIED = {"hook": "native hook", "mirror": "MXNet's own mirroring", "none": "nothing to apply"}
_FIELD_TYPES = {
    "step_seconds": decisions.REAL, "overhead_seconds": decisions.REAL, "recomputed_nodes": decisions.NUMBER,
    "policy": decisions.TEXT, "device": decisions.TEXT, "applied": decisions.TEXT, "reason": decisions.TEXT,
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Decisions and totals. Prints as a table, compares by value, saves and loads as JSON.

    ``match_range`` is what MXNet's memory planner is asked to use (None: its own; `StorageStrategy.ASSIGNED`: echo
    assigns storage instead). ``step_seconds`` is the predicted time of a step of the graph that is bound, with its
    fused operators, if nothing were recomputed, ``overhead_seconds`` what recomputation adds, and ``stock_seconds`` the
    predicted time of a step of the original graph, None where that was not looked at (another bucket of a model, in
    transparent mode). ``recomputed_nodes`` counts the operators that are recomputed, each as often as it is.
    ``applied`` is "hook" (the native gradient pass), "mirror" (MXNet's own attributes) or "none" (the original graph as
    it is). ``key`` is the key of the plan, and ``marks`` apply it. ``fused`` has the patterns whose place fused
    operators take, each with the node of the user at which it is found; decisions and marks are about the graph with
    these operators. Places such as ("batched_products:10", node) are layouts of products
    (`echo.passes.patterns.batched_products`): the node is the first of the group, in the graph with all other fused
    operators. ``missed`` are near-misses of patterns. ``reason`` says why nothing is recomputed, empty where something
    is.
    """

    decisions: tuple[Decision, ...]
    before: Memory
    after: Memory
    match_range: int | None
    step_seconds: float
    overhead_seconds: float
    recomputed_nodes: int
    policy: str
    device: str
    applied: str
    key: PlanKey
    marks: tuple[Mark, ...] = ()
    notes: tuple[Note, ...] = ()
    fused: tuple[tuple[str, int], ...] = ()
    missed: tuple[MissedFusion, ...] = ()
    reason: str = ""
    stock_seconds: float | None = None
    _alternatives: Alternatives | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def fingerprint(self) -> str:
        """Identifies what the plan was made for: `echo.plans.key.PlanKey` says what is in it."""
        return self.key.fingerprint

    @property
    def exact(self) -> bool:
        """Whether outputs and gradients keep every bit: no operator is fused."""
        return not self.fused

    @property
    def overhead(self) -> float:
        """Predicted recomputation as a fraction of a step of the original graph; of the bound one if it is unknown."""
        step = self.stock_seconds or self.step_seconds
        return self.overhead_seconds / step if step else 0.0

    @property
    def time(self) -> StepTime | None:
        """The predicted time of a step before and after, fused operators included; None where it is not known."""
        if self.stock_seconds is None:
            return None
        return StepTime(self.stock_seconds, self.step_seconds + self.overhead_seconds)

    @property
    def time_ratio(self) -> float:
        """The predicted time of a step as a multiple of the user's own, or where that is not known, without clones."""
        return 1.0 + self.overhead if self.time is None else self.time.ratio

    @property
    def recomputed(self) -> tuple[Decision, ...]:
        return tuple(decision for decision in self.decisions if decision.action == RECOMPUTE)

    @property
    def changes_nothing(self) -> bool:
        """Whether the original graph is bound as it is."""
        return self.applied == "none"

    @property
    def failed(self) -> tuple[Note, ...]:
        """A note for each way to plan that failed and was left out, and one where planning had to end early."""
        return tuple(note for note in self.notes if note.kind is not NoteKind.REMARK)

    @property
    def is_late(self) -> bool:
        """Whether the search had to end early: the plan is the best that it found until then."""
        return any(note.kind is NoteKind.LATE for note in self.notes)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The texts for the user: why the original graph stays as it is, what failed, the notes, and near-misses."""
        near = (
            f"not fused ({len(same)} x, as {same[0].name!r}): {same[0].reason}" for same in near_misses(self.missed)
        )
        return (*self.general_remarks, *near)

    @property
    def general_remarks(self) -> tuple[str, ...]:
        """The remarks but for those on near-misses."""
        stays = (f"{self.reason}: the original graph is bound as it is",) if self.changes_nothing else ()
        rest = (note for note in self.notes if note.kind is NoteKind.REMARK)
        return (*stays, *map(str, self.failed), *map(str, rest))

    def summary(self) -> str:
        """One line: "334 MB -> 142 MB planned (-57 %), +4.0 % time, 812 feature maps recomputed".

        With fused operators: "..., -71.5 % time (recomputation +3.1 %), ...", or "..., recomputation +3.1 % time, ..."
        where the time of the original graph is not known.
        """
        before, after = self.before.planned, self.after.planned
        hidden = self.before.static.get(HIDDEN, 0)
        inside = f" and {size_text(hidden)} {HIDDEN}" if hidden else ""
        before += hidden
        kinds = {LAYOUT_COPIES: self.after.layout_copies, WORKSPACES: self.after.workspaces}
        least = min(_LEAST_SAID, before / 20)  # so that the change in per cent is that of what is told
        others = "".join(f" and {size_text(size)} {kind}" for kind, size in kinds.items() if size > least)
        after += sum(kinds.values())
        change = round(100 * (after - before) / before) if before else 0
        again = counted(len(self.recomputed), "feature map")
        return (
            f"{size_text(before - hidden)}{inside} -> {size_text(self.after.planned)} planned{others} "
            f"({f'{change:+}' if change else 0} %), {self.time_text()}, {again} recomputed"
        )

    def time_text(self) -> str:
        """The predicted change of a step's time in words."""
        again = f"+{100 * self.overhead:.1f} %"
        if not self.fused:
            return f"{again} time"
        part = f"recomputation {again}"
        return f"{part} time" if self.time is None else f"{self.time.change} time ({part})"

    def __str__(self) -> str:
        with preserve_python_rng():
            head = f"echo plan ({self.policy}, {self.device}, {APPLIED[self.applied]}): {self.summary()}"
            requests = [argument.request for argument in self.key.arguments]
            assumed = f"planned for gradients of {len(requests) - requests.count('null')} of {len(requests)} arguments"
            remarks = (*self.general_remarks, f"{assumed} (grad_req)")
            return render(head, self.before, self.after, self.decisions, self.missed, remarks)

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def residuals(self) -> tuple[str, ...]:
        """The feature maps that wait for the backward pass, a line each, the largest first.

        The lines are like those of JAX's ``print_saved_residuals``, with bytes instead of shapes.
        """
        stashed = sorted((map_ for map_ in self.decisions if map_.action == STASH), key=lambda map_: -map_.bytes)
        return tuple(
            f"{map_.bytes:,} bytes, output {map_.output} of {map_.op} {map_.name}: {map_.reason}" for map_ in stashed
        )

    def why(self, name: str) -> Why | NotFused:
        """Why a feature map is stashed or recomputed, and what it would cost to change that; or why nothing is fused.

        Bytes and seconds of the changed plan are exact; they are computed by this call. A plan that was loaded from a
        file does not know them.

        Args:
            name: of the node, or ``"name:output"`` where several of its outputs are feature maps.

        Raises:
            OptionError: no gradient reads such a feature map; the message names some alike.
        """
        cost = Cost(self.after.chosen, self.overhead_seconds)
        return why(name, self.decisions, self.missed, cost, self._alternatives)

    def with_alternatives(self, alternatives: Alternatives) -> Plan:
        """Returns the same plan with a function that gives `why` its costs; it is neither compared nor saved."""
        plan = replace(self)
        object.__setattr__(plan, "_alternatives", alternatives)
        return plan

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_alternatives": None}

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON value."""
        value = {"format": FORMAT, **{key: item for key, item in vars(self).items() if key != "_alternatives"}}
        value["before"], value["after"] = (dict(vars(memory)) for memory in (self.before, self.after))
        value["decisions"] = [dict(vars(decision)) for decision in self.decisions]
        value["marks"] = [[mark.node, mark.op, dict(mark.attrs)] for mark in self.marks]
        value["key"] = self.key.to_json()
        value["fused"] = [list(place) for place in self.fused]
        value["missed"] = [dict(vars(missed)) for missed in self.missed]
        value["notes"] = [[note.kind.value, note.text] for note in self.notes]
        return value

    @staticmethod
    def from_json(value: Any) -> Plan:
        """Reads what `to_json` wrote.

        Raises:
            GraphError: not a plan, or one with fields missing or unknown.
        """
        try:
            return _read(value)
        except _UNREADABLE as error:
            raise GraphError(f"not a plan: {_reason(error)}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as a JSON file in one step, with a digest by which `load` refuses a file that was edited."""
        value = self.to_json()
        text = json.dumps({"digest": _digest(value), **value}, indent=1, allow_nan=False)
        write_in_one_step(path, f"{text}\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """Reads a plan that `save` wrote.

        Where the file comes from does not matter, nor whether line ends were changed; its values may not be.

        Raises:
            GraphError: the file is not one, or was edited or damaged.
            OptionError: the path is of another type.
            OSError: it cannot be read, or is no regular file.
        """
        if not isinstance(path, (str, bytes, os.PathLike)):
            raise OptionError(f"expected the name of a file, got {shortened(repr(path))}")
        try:
            value = read_json(path)
            digest = value.pop("digest", None) if isinstance(value, dict) else None
            plan = _read(value)
            if digest != _digest(value):
                raise GraphError("it was edited or damaged since it was saved; echo.plan makes a new one")
            return plan
        except (GraphError, *_UNREADABLE) as error:
            raise GraphError(f"{path} is not a plan: {_reason(error)}") from error


_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)
_LISTS: Mapping[str, Callable[[Any], Any]] = {
    "decisions": decisions.read_decision, "notes": decisions.read_note, "marks": decisions.read_mark,
    "fused": decisions.read_match_site, "missed": decisions.read_missed,
}  # fmt: skip


def _read(value: Any) -> Plan:
    """The plan in a JSON value; one of `_UNREADABLE`, or a GraphError, where there is none."""
    if not isinstance(value, dict):
        raise GraphError(f"expected a JSON object, got {shortened(repr(value))}")
    if value["format"] != FORMAT:
        is_other = str(value["format"]).startswith(FORMAT.rstrip("0123456789"))
        which = " of another version of echo" if is_other else ""
        raise GraphError(f"expected format {FORMAT}, got {value['format']!r}{which}")
    values = {key: item for key, item in value.items() if key != "format"}
    unknown = sorted(values.keys() - {each.name for each in fields(Plan)})
    if unknown:
        raise GraphError(f"expected no other fields than those of a plan, got {shortened(', '.join(unknown))}")
    for name, read in _LISTS.items():
        values[name] = tuple(map(read, decisions.as_list(name, values[name])))
    values.update({name: decisions.read_memory(name, values[name]) for name in ("before", "after")})
    values["key"] = PlanKey.from_json(values["key"])
    plan = Plan(**values)
    for key in ("reason", "stock_seconds"):
        values[key]  # a file has to have it, although it has a default
    _check(plan)
    return plan


def _reason(error: Exception) -> str:
    """Explains in words why a JSON value is no plan, from the error that reading it raised."""
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    is_type = isinstance(error, (TypeError, AttributeError))
    return f"something in it is of another type: {error}" if is_type else str(error)


def _digest(value: Mapping[str, Any]) -> str:
    """The digest of a plan's values, whatever the layout of the file."""
    return digest_of(FORMAT, json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def _check(plan: Plan) -> None:
    decisions.check("plan", plan, _FIELD_TYPES)
    if plan.stock_seconds is not None:
        decisions.check("plan", plan, {"stock_seconds": decisions.REAL})
    match_range = plan.match_range
    is_number = isinstance(match_range, int) and not isinstance(match_range, bool)
    if match_range is not None and (not is_number or not StorageStrategy.ASSIGNED <= match_range < decisions.MOST):
        raise GraphError(f"plan: match_range must be a number or null, got {match_range!r}")
    if plan.applied not in APPLIED:
        raise GraphError(f"plan: applied must be one of {tuple(APPLIED)}, got {plan.applied!r}")


# The log lines on the plans of a process: on a graph that is much larger than those before, and on all at the end.

logger = logging.getLogger("echo")


class Summary:
    """Counts the ``graphs`` that were planned, and those that are bound ``unchanged``. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.graphs = self.unchanged = 0
        self._most, self._largest = -1, ""
        self._told = 0  # planned bytes of the largest graph that has a line

    def add(self, plan: Plan) -> None:
        """Logs a plan: the first one at the level ``INFO``, and one of a graph twice as large as those told before.

        The others are logged at ``DEBUG``: so the last line at ``INFO`` is that of about the largest graph.
        """
        with self._lock.held():
            first = not self.graphs
            told = plan.before.planned >= 2 * self._told
            self.graphs += 1
            self.unchanged += plan.changes_nothing
            if plan.before.planned > self._most:
                self._most, self._largest = plan.before.planned, _line(plan)
            self._told = max(plan.before.planned, 1) if told else self._told
        if first:
            atexit.register(self.log)
        logger.log(logging.INFO if told else logging.DEBUG, "echo: %s", _line(plan))

    def add_unchanged(self) -> None:
        """Counts a graph that is bound unchanged without a plan, which one with a plan came before."""
        with self._lock.held():
            self.graphs += 1
            self.unchanged += 1

    def log(self) -> None:
        """Logs the line about all graphs, where there was more than one."""
        if self.graphs > 1:
            logger.info("echo: %s", self)

    def __str__(self) -> str:
        unchanged = f", {self.unchanged} of them unchanged" if self.unchanged else ""
        return f"{self.graphs} graphs bound{unchanged}; the largest: {self._largest}"


def _line(plan: Plan) -> str:
    return plan.remarks[0] if plan.changes_nothing else plan.summary()
