"""A request for a plan: a graph, options, and the protocol by which a framework answers for that graph."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Callable, ContextManager, Iterator, Mapping, NamedTuple, Protocol, Sequence

from echo.errors import BudgetError, OptionError, UnsupportedError, one_line, reraise_interruption
from echo.estimators.cost_model import CostModel
from echo.estimators.cost_table import CostTable
from echo.estimators.footprint import OPTIMIZER, WEIGHTS
from echo.estimators.inplace import memory_frozen_reason
from echo.estimators.storage_planner import Evaluator
from echo.ir.graph import Entry, Graph, Setting
from echo.ir.op_spec import GradientRule
from echo.ir.schedule import RecomputeSchedule
from echo.ir.training_graph import TrainingGraph
from echo.ir.training_node import TensorType
from echo.passes.patterns.apply import Matcher
from echo.passes.rules import RULES
from echo.plans.decisions import WORKSPACES, Note, NoteKind
from echo.plans.key import PlanKey
from echo.plans.options import AUTO, DEFAULT_MAX_OVERHEAD, SEARCH, Options
from echo.policies.least import Known
from echo.policies.problem import WarmStart
from echo.system.process import NEVER, Deadline


class Framework(Protocol):
    """Everything that planning asks about the graph and where it runs; a stage that does not run asks for nothing.

    `echo.frontend.framework` asks MXNet. ``device`` is "cpu" or "gpu". ``hook`` says whether the native hook applies
    plans; otherwise attributes of MXNet do, and the training graph holds the forward nodes alone. ``onednn``: gradients
    of activations are those of oneDNN; ``cudnn``: those of convolutions are cuDNN's, and never added to an array;
    ``fuses``: MXNet fuses pointwise operators of the original graph, and of no other. ``match_range`` is what MXNet's
    memory planner would use by itself, ``static`` the bytes that are there all the time, by kind; ``workspace_slots``
    counts what they draw workspaces from. ``key`` is the key of the plan, ``family`` a text that is equal for graphs
    that train the same weights. ``why_no_fusion`` says why no operator can be fused, empty where they can; ``adds``,
    that gradients may be added to arrays that the user has. ``repeats_bits``: a copy of a compute-heavy operator
    computes the same bits. ``setting`` is what patterns have to know.
    """

    device: str
    hook: bool
    match_range: int
    static: Mapping[str, int]
    workspace_slots: int
    key: PlanKey
    family: str

    @property
    def onednn(self) -> bool: ...
    @property
    def cudnn(self) -> bool: ...
    @property
    def fuses(self) -> bool: ...
    @property
    def why_no_fusion(self) -> str: ...
    @property
    def adds(self) -> bool: ...
    @property
    def repeats_bits(self) -> bool: ...
    @property
    def setting(self) -> Setting: ...

    def types(self) -> Mapping[Entry, TensorType]:
        """The shape and type of each entry of the graph that a node may read."""

    def inferred(self, graph: Graph, variables: Mapping[str, TensorType]) -> Mapping[Entry, TensorType] | None:
        """The types of all entries of another graph, whose variables have these types; None where it has none."""

    def argument_names(self) -> Sequence[str]:
        """The names of ``key.arguments``."""

    def on(self, graph: Graph) -> Framework:
        """The framework of another graph with the same arguments; ``key`` stays the user's."""

    def differentiate(self) -> TrainingGraph:
        """The training graph of the user's symbol."""

    def differentiating(self) -> ContextManager[None]:
        """Has a thread differentiate a large graph while this is open, for `differentiate` to return."""

    def apply_gradient_rules(
        self, training: TrainingGraph, gradient_rules: Mapping[int, GradientRule]
    ) -> TrainingGraph:
        """The training graph in which the gradients of some nodes are computed by these rules."""

    def original_bytes(self) -> int:
        """The bytes that MXNet's own memory planner plans for the original graph where echo does not bind it."""

    def mxnet_memory_plan(self, graph: Graph, match_range: int) -> tuple[int, tuple[bool, ...]]:
        """The bytes that MXNet's own memory planner plans for a rewritten graph, and `TrainingGraph.accumulations`."""

    def evaluator(self, training: TrainingGraph, seconds: Sequence[float]) -> tuple[Evaluator, int]:
        """The evaluator of choices on this training graph, and the effort that a search may spend on it."""

    def cost_table(self) -> CostTable:
        """The measured costs of this device."""

    def costs(self, training: TrainingGraph, time_limit: float, clock_limit: float) -> CostModel:
        """Seconds of every node, measured on this device, else estimated.

        Measuring takes at most ``time_limit`` seconds of work, and ``clock_limit`` seconds by the clock.
        """

    def race(
        self, graphs: Mapping[str, Graph], types: Mapping[str, TensorType], limit: float
    ) -> Mapping[str, float] | None:
        """Seconds of a training step of each of these small graphs on this device, whose arguments have these types.

        None where that takes longer than ``limit`` seconds.

        Raises:
            UnmeasurableError: they do not run here.
            UnavailableError: nothing can be measured now.
        """


class Unreached(NamedTuple):
    """A graph that missed the budget: the fewest bytes of it so far, and the search for fewer until a deadline."""

    bytes: int
    search: Callable[[Deadline], BudgetError]


@dataclass(frozen=True)
class Request:
    """One graph to plan; ``warm_start`` comes from a graph of the same model, if one was planned before.

    With ``follows`` nothing is searched: the warm start decides. ``effort`` is a search's part of its usual
    effort. Without ``details`` the plan leaves out where the memory is, which takes as long to compute as a short
    search. ``notes`` gets one for each way to plan that failed and was left out, or that the user's options do not
    allow. At the ``deadline`` the best plan so far is taken.
    ``fused``: the graph has fused operators; ``workspaces`` are the bytes of their workspaces. ``timed`` remembers what
    came of timing fused operators (`echo.passes.fusion_timing`), ``known`` what searches for budgets found. With
    ``known_only`` nothing else is looked at. ``light`` is the plan's schedule of light operators, from which a search
    for one with compute-heavy operators starts. ``stock_seconds`` returns the seconds of a step of the original graph,
    where those of this one are others, or None if they are not known. ``unreached`` gets, for each graph without a plan
    that keeps the budget, the search for the fewest bytes that can be reached by a deadline. ``matcher`` remembers what
    patterns match in it. ``timing`` gets the moments between which operators were measured.
    """

    graph: Graph
    options: Options
    framework: Framework
    progress: Callable[[str], None] = field(default=lambda _: None)
    warm_start: WarmStart | None = None
    details: bool = True
    follows: bool = False
    effort: float = 1.0
    notes: list[Note] = field(default_factory=list, compare=False)
    deadline: Deadline = NEVER
    fused: bool = False
    workspaces: int = 0
    timed: dict[str, str] = field(default_factory=dict, compare=False)
    known: Known = field(default_factory=Known, compare=False)
    known_only: bool = False
    unreached: list[Unreached] = field(default_factory=list, compare=False)
    light: RecomputeSchedule | None = None
    stock_seconds: Callable[[], float | None] = field(default=lambda: None, compare=False)
    matcher: Matcher = field(default_factory=Matcher, compare=False)
    timing: list[tuple[float, float]] = field(default_factory=list, compare=False)

    def original_seconds(self, costs: CostModel) -> float:
        """Seconds of a step of the original graph; ``costs`` are those of this one."""
        if not self.fused:
            return costs.step_seconds
        ratio = 1.0 if self.warm_start is None else self.warm_start.step_ratio
        return (costs.is_timed and self.stock_seconds()) or ratio * costs.step_seconds

    def most_recomputation(self, costs: CostModel) -> float | None:
        """The bound on the seconds of recomputation in a step, or None.

        Where ``max_time`` cannot be one, since nothing was measured, the default of ``max_overhead`` is.
        """
        options, part = self.options, self.options.overhead_bound
        if part is None and options.max_time is None:
            return None
        original, bounds = self.original_seconds(costs), []
        # of further shapes of a model hardly anything is measured: there, as for the overhead, estimates have to do
        if options.max_time is not None and (costs.is_timed or self.warm_start is not None):
            bounds = [max(0.0, options.max_time * original - costs.step_seconds)]
        elif options.is_bounded_by_time:
            part = DEFAULT_MAX_OVERHEAD
        if part is not None:  # of recomputation, and of the step with it
            longest = (1 + part) * original
            if costs.is_timed and options.max_overhead == AUTO:
                longest -= RULES.unsure * part * original + RULES.host
            bounds += [part * original, max(0.0, longest - costs.step_seconds)]
        return min(bounds, default=None)

    def weighs_seconds(self, costs: CostModel) -> bool:
        """Whether seconds of the original graph count against few bytes: they were measured, and no option decides."""
        options = self.options
        asks = options.asks_for_memory or options.max_overhead != "auto" or options.recompute
        return costs.is_timed and not (self.fused or asks or options.policy != SEARCH)

    def part_of_all_bytes(self, training: TrainingGraph, saved: int) -> float:
        """The bytes that a plan saves as a part of all that an executor of the graph holds."""
        return saved / max(1, training.planned_bytes + sum(self.static.values()))

    @property
    def is_late(self) -> bool:
        """Whether planning has to end: the deadline is over, or a search ended that had to leave time for the rest."""
        return self.deadline.is_over or any(note.kind is NoteKind.LATE for note in self.notes)

    @property
    def memory_frozen_reason(self) -> str:
        """Why nothing about the memory of the graph may change; empty where it may."""
        return memory_frozen_reason(self.graph, self.framework.device)

    def note_late(self) -> None:
        """Adds the note that the search was stopped, once."""
        budget = self.options.memory_budget
        what = "planning" if budget is None else f"planning for memory_budget={budget}"
        text = f"{what} stopped, to end in max_planning={self.deadline.seconds:g} s: the best plan so far is taken"
        late = Note(text, NoteKind.LATE)
        if late not in self.notes:
            self.notes.append(late)

    @contextlib.contextmanager
    def fallback_scope(self, label: str) -> Iterator[None]:
        """An error in this context ends only this way to plan, called ``label``, and becomes a note that it failed.

        One of the options becomes a remark: they name nodes that this way, but not every way, rules out.

        Raises:
            BudgetError, UnsupportedError: as they came, since they are no faults of this way.
            Exception: any error, where the user is ``strict``.
        """
        try:
            yield
        except (BudgetError, UnsupportedError):
            raise
        except OptionError as error:
            self.notes.append(Note(f"planned without {label}: {error}"))
        except Exception as error:
            reraise_interruption(error)
            if self.options.strict:
                raise
            text = f"planned without {label}, which failed: {one_line(error)}"
            self.notes.append(Note(text, NoteKind.FAILED))

    @property
    def static(self) -> dict[str, int]:
        """The bytes that are there all the time, by kind, with workspaces and the optimizer states that count."""
        sizes = dict(self.framework.static)
        if self.options.optimizer_states:
            sizes[OPTIMIZER] = self.options.optimizer_states * sizes.get(WEIGHTS, 0)
        if self.workspaces:
            sizes[WORKSPACES] = self.workspaces
        return sizes
