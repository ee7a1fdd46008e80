"""echo behind ``torch.compile``: a backend, and the partitioner that it and other roads into torch share.

::

    model = torch.compile(model, backend=echo.torch.backend(memory_budget="6GB"))

Whatever fails while a graph is planned costs one warning, and torch's own partitioner divides that graph. Only a budget
that cannot be kept is an error.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields
from typing import Any, Callable, Iterable, Sequence

from torch import fx

from echo.errors import (
    REPORT,
    BudgetError,
    OptionError,
    UnsupportedError,
    VerificationError,
    one_line,
    reraise_interruption,
)
from echo.ir.schedule import RecomputeSchedule
from echo.system.process import Deadline
from echo.system.threads import ONCE
from echo.torch import compat, compilers
from echo.torch.capture import JointGraph, joint_graph
from echo.torch.cost import seconds_of
from echo.torch.inductor import joint_graph_of_inductor, schedule_of_torch
from echo.torch.partition import partitioned
from echo.torch.plan import GraphPlan
from echo.torch.planned_graph import PlannedGraph, planned_graph
from echo.torch.planner import is_replayed, plan_graph, reused
from echo.torch.ranks import Ranks
from echo.torch.verify import differences
from echo.torch.wishes import wishes

logger = logging.getLogger(__name__)


@dataclass
class Partitioner:
    """Divides joint graphs into forward and backward graphs: a ``partition_fn`` of AOTAutograd.

    Args:
        memory_budget: the most bytes alive at once in a step of one compiled graph, activations and gradients without
            parameters and inputs: bytes, a size such as ``"6GB"``, or a part of what the graph needs without echo, such
            as ``0.5``. None: torch's own partitioner, unless there is a bound on the time.
        max_overhead: the time of recomputation at most, as a part of the step: 0.1 is 10 %.
        max_time: the time of a step at most, as a multiple of a step without echo: 1.1 is 10 % more.
        keep: nodes that never run again: names or patterns (``*`` and ``?``), also of their operators (``"mm"``).
        recompute: nodes that run again, given the same way. Without a limit, only these do.
        allow: custom operators (``"mylib::gelu"``) that are functions of their arguments, and may run again.
        fused: whether pointwise operators become one kernel, as under Inductor (`echo.torch.cost`).
        max_planning: seconds that the search for a plan may take.
        plan: one or several plans that were made before (`GraphPlan.load`): a graph that one of them is for is divided
            by it, whatever the limits, and nothing is searched.
        verify: compare one step with torch's default partition on made-up inputs; a plan that differs is not used.
        strict: raise errors instead of leaving a graph to torch's own partitioner.

    ``plans`` has a `GraphPlan` for each graph that was planned, in the order in which torch compiled them.
    """

    memory_budget: int | float | str | None = None
    max_overhead: float | None = None
    max_time: float | None = None
    keep: Iterable[str] = ()
    recompute: Iterable[str] = ()
    allow: Iterable[str] = ()
    fused: bool = False
    max_planning: float = 10.0
    plan: GraphPlan | Iterable[GraphPlan] = ()
    verify: bool = False
    strict: bool = False
    plans: list[GraphPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        compat.check_version()
        self._given = (self.plan,) if isinstance(self.plan, GraphPlan) else tuple(self.plan)
        if not all(isinstance(one, GraphPlan) for one in self._given):
            raise OptionError(f"plan: expected a GraphPlan or several, as of GraphPlan.load, got {self.plan!r}")
        for name in ("keep", "recompute", "allow"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise OptionError(f"{name}: expected a list of names, got {value!r}")
        if not self.max_planning > 0:
            raise OptionError(f"max_planning: expected seconds above zero, got {self.max_planning!r}")
        if self.max_overhead is not None and not self.max_overhead >= 0:
            raise OptionError(f"max_overhead: expected zero or more, got {self.max_overhead!r}")
        if self.max_time is not None and not self.max_time >= 1:
            raise OptionError(f"max_time: expected a multiple of a step without echo, 1 or more, got {self.max_time!r}")
        if self.memory_budget is not None:
            from echo.plans.options import budget_bytes

            budget_bytes(self.memory_budget, 1 << 40)  # raises for what is no budget
        self.keep, self.recompute, self.allow = sorted(self.keep), sorted(self.recompute), sorted(self.allow)
        limits = (self.memory_budget, self.max_overhead, self.max_time, self.keep, self.recompute, self.allow)
        self._ranks = Ranks.of(repr((*limits, self.fused, self.max_planning)), self.max_planning)

    def __getstate__(self) -> dict[str, Any]:
        """The options alone: a copy, or a process that loads one, plans by itself."""
        options = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "plans"}
        return {**options, "plan": self._given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(
        self, module: fx.GraphModule, inputs: Sequence[Any], **options: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and backward graphs of a joint graph.

        Raises:
            BudgetError: the budget is below the least that was reached; ``torch.compile`` raises it as the
                ``inner_exception`` of its own error.
        """
        if not (self._has_limits or self._given) or compat.is_region(module, inputs):
            return self._own(module, inputs, options)
        try:
            return self._planned(module, inputs, options)
        except (BudgetError, OptionError):
            raise
        except Exception as error:
            reraise_interruption(error)
            if self.strict:
                raise
            advice = "" if isinstance(error, UnsupportedError) else f". {REPORT}"
            text = f"torch's own partitioner divides a graph, because planning failed: {one_line(error)}{advice}"
            logger.log(logging.WARNING if ONCE.first(text) else logging.DEBUG, "echo: %s", text)
            return self._own(module, inputs, options)

    @property
    def _has_limits(self) -> bool:
        """Whether a graph without a plan of the user's is planned."""
        return any(limit is not None for limit in (self.memory_budget, self.max_overhead, self.max_time)) or bool(
            self.recompute
        )

    def _own(
        self, module: fx.GraphModule, inputs: Sequence[Any], options: dict[str, Any]
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """What torch does without echo."""
        own = compat.min_cut_partition if self.fused else compat.default_partition
        return own(module, inputs, **options)

    def _planned(
        self, module: fx.GraphModule, inputs: Sequence[Any], options: dict[str, Any]
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        whole = compat.without_duplicates(module) if self.fused else compat.copied(module)
        with compat.on_real_tensors():
            count = options["num_fwd_outputs"]
            if self.fused:
                joint = joint_graph_of_inductor(whole, count, self.allow)
            else:
                joint = joint_graph(whole, count, self.allow, snapshots=True)
        plan = reused(self._given, joint, self._seconds(joint), self.strict) if self._given else None
        if plan is None and not self._has_limits:
            return self._own(module, inputs, options)
        if plan is None:
            stock = schedule_of_torch(whole, joint, inputs, options) if self.fused else {}
            plan = self._ranks.shared(
                joint, lambda: self._searched(joint, stock), lambda seconds: self._graph(joint, seconds, stock)
            )
        if not is_replayed(plan):
            raise VerificationError("a replay of the plan does not come to its peak")
        pair = partitioned(whole, joint, plan.schedule, inputs, **options)
        if self.verify:
            wrong = differences(pair, whole, inputs, **options)
            if wrong:
                raise VerificationError(f"results differ from torch's default partition: {', '.join(wrong)}")
        self.plans.append(plan)
        logger.info("echo: %s", plan)
        return pair

    def _seconds(self, joint: JointGraph) -> tuple[float, ...]:
        """The seconds of each node on this device."""
        with compat.on_real_tensors():
            return seconds_of(joint, fused=self.fused)

    def _graph(self, joint: JointGraph, seconds: Sequence[float], stock: RecomputeSchedule) -> PlannedGraph:
        return planned_graph(joint, seconds, *wishes(joint, self.keep, self.recompute, self.strict), stock)

    def _searched(self, joint: JointGraph, stock: RecomputeSchedule) -> GraphPlan:
        """The plan of a graph by operators' times on this device."""
        return plan_graph(
            joint, self._seconds(joint), memory_budget=self.memory_budget, max_overhead=self.max_overhead,
            max_time=self.max_time, keep=self.keep, recompute=self.recompute, stock=stock, strict=self.strict,
            deadline=Deadline.after(self.max_planning),
        )  # fmt: skip


class Backend:
    """A backend of ``torch.compile``; ``partitioner.plans`` are the plans of the graphs that it compiled.

    ``compiler`` is that of `backend`. A copy has the same options, and no plans, as of a process that begins.
    """

    __name__ = "echo"

    def __init__(self, partitioner: Partitioner, compiler: str | Callable[..., Any]) -> None:
        self.partitioner, self.compiler = partitioner, compiler
        if compiler == "inductor":
            self._compiled = compilers.inductor_with(partitioner, repr(partitioner))
        else:
            self._compiled = compilers.eager_with(partitioner, None if isinstance(compiler, str) else compiler)

    def __reduce__(self) -> tuple[Any, ...]:
        return Backend, (self.partitioner, self.compiler)

    @property
    def plans(self) -> list[GraphPlan]:
        """The plans of all graphs that were compiled so far."""
        return self.partitioner.plans

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compiles a graph of Dynamo's."""
        result: Callable[..., Any] = self._compiled(module, inputs)
        return result


def backend(
    memory_budget: int | float | str | None = None,
    *,
    compiler: str | Callable[..., Any] = "inductor",
    **options: Any,
) -> Backend:
    """A backend for ``torch.compile`` that keeps a memory budget by recomputation.

    Args:
        memory_budget: as for `Partitioner`, for each graph that ``torch.compile`` makes of the model.
        compiler: ``"inductor"``; ``"aot_eager"``, which runs operator by operator and keeps every bit of eager mode; or
            a function from a graph module and its inputs to a function of a list of inputs, as AOTAutograd takes.
        options: the other fields of `Partitioner`. ``fused`` is True for Inductor, else False.

    Raises:
        OptionError: an option is unknown or has a value that makes no sense.
        UnsupportedError: this version of torch is not supported, or not with this compiler.
    """
    known = {item.name for item in fields(Partitioner)} - {"plans", "memory_budget"}
    for name in options:
        if name not in known:
            raise OptionError(f"unknown option {name!r}: expected one of {', '.join(sorted(known))}")
    if isinstance(compiler, str) and compiler not in ("inductor", "aot_eager"):
        raise OptionError(f'compiler: expected "inductor", "aot_eager" or a function, got {compiler!r}')
    return Backend(Partitioner(memory_budget, **{"fused": compiler == "inductor", **options}), compiler)
