"""echo: train the same MXNet model in less memory. ``exact=True`` keeps every bit.

::

    import echo
    symbol = echo.optimize(symbol)                   # plans itself when it is bound
    plan = echo.plan(symbol, data=(128, 50), softmax_label=(128, 50))
    print(plan)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, TypeVar

from echo import compat, errors, native, startup
from echo.errors import (
    BudgetError,
    ChangedInputError,
    EchoError,
    GraphError,
    KernelError,
    LeftAloneError,
    NativeError,
    OptionError,
    PlanError,
    ShapeError,
    TimeLimitError,
    UnsupportedError,
    VerificationError,
)

if TYPE_CHECKING:
    import mxnet as mx  # noqa: TID251  (for annotations alone: planning never imports it)

    from echo.ir.schedule import RecomputeSchedule
    from echo.plans.frontier import Frontier
    from echo.plans.options import Options
    from echo.plans.plan import Plan
    from echo.policies.problem import Problem
    from echo.report.profile import Profile
    from echo.runtime.transparent import Enabled

    _Policy = str | Callable[[Problem], RecomputeSchedule]
    _Shapes = Mapping[str, tuple[int, ...]]

    _Model = TypeVar("_Model", mx.sym.Symbol, mx.gluon.Block)

# Imported when they are first asked for: a program that never plans does not wait for them.
_VALUES = {
    "Frontier": "echo.plans.frontier",
    "Options": "echo.plans.options",
    "Plan": "echo.plans.plan",
    "Profile": "echo.report.profile",
}

__all__ = [
    "BudgetError",
    "ChangedInputError",
    "EchoError",
    "Frontier",
    "GraphError",
    "KernelError",
    "LeftAloneError",
    "NativeError",
    "OptionError",
    "Options",
    "Plan",
    "PlanError",
    "Profile",
    "ShapeError",
    "TimeLimitError",
    "UnsupportedError",
    "VerificationError",
    "compat",
    "disable",
    "enable",
    "errors",
    "frontier",
    "load_plan",
    "native",
    "optimize",
    "plan",
    "profile",
]


def optimize(
    symbol: _Model,
    *,
    policy: _Policy = "search",
    max_overhead: float | str | None = "auto",
    max_time: float | None = None,
    heavy: str = "auto",
    memory_budget: int | float | str | None = None,
    keep: Iterable[str] = (),
    recompute: Iterable[str] = (),
    fuse: bool | str = True,
    exact: bool = False,
    strict: bool = False,
    optimizer_states: int = 0,
    max_planning: float | None = 10.0,
    plan: Plan | Iterable[Plan] = (),
    verify: bool = False,
    ctx: mx.Context | None = None,
    grad_req: str | Mapping[str, str] | Iterable[str] | None = None,
    type_dict: Mapping[str, Any] | None = None,
    shapes: _Shapes | None = None,
    **arrays: tuple[int, ...],
) -> _Model:
    """Returns the symbol with a plan, which trains in less memory; ``exact=True`` keeps every bit.

    A Gluon block comes back itself: it, and every block in it, plans when it is hybridized (``hybridize``, before or
    after) and called for training, once for each shape of its inputs.

    The symbol plans itself when it is bound (``bind``, ``simple_bind``, ``Module.bind``), since only then its shapes
    are known. Shapes given here, as for ``infer_shape`` (``data=(128, 50)``), plan at once, so that errors show early
    and the bind is fast.

    Args:
        symbol: the training symbol, or a Gluon block that can be hybridized.
        policy, max_overhead, max_time, heavy, memory_budget, keep, recompute, fuse, exact, strict, optimizer_states,
            max_planning, plan, verify: see `echo.Options`.
        ctx: the device; by default MXNet's current context. Symbols only, as the next three.
        grad_req: as for ``simple_bind``; by default "write" for every argument but labels (``NAME_label``) and
            those whose shapes are given.
        type_dict: types of arguments, as for ``simple_bind``.
        shapes: shapes of arguments by name, for instance of one that is named like an option.
        arrays: shapes of arguments, as keywords.

    Raises:
        OptionError: an option that echo does not know, or what is neither a symbol nor a hybrid block.
        ShapeError: what is given for an argument is no shape.
        BudgetError: the memory budget cannot be met (at once with shapes, else at bind).
        PlanError: the given plan was made for something else (at once with shapes, else at bind).
        UnsupportedError: a version of MXNet other than 1.9.1.
    """
    planned: _Model = _runtime("api").optimize(**locals())
    return planned


def plan(
    symbol: mx.sym.Symbol | mx.gluon.HybridBlock,
    *,
    policy: _Policy = "search",
    max_overhead: float | str | None = "auto",
    max_time: float | None = None,
    heavy: str = "auto",
    memory_budget: int | float | str | None = None,
    keep: Iterable[str] = (),
    recompute: Iterable[str] = (),
    fuse: bool | str = True,
    exact: bool = False,
    strict: bool = False,
    optimizer_states: int = 0,
    max_planning: float | None = 10.0,
    plan: Plan | Iterable[Plan] = (),
    verify: bool = False,
    ctx: mx.Context | None = None,
    grad_req: str | Mapping[str, str] | Iterable[str] | None = None,
    type_dict: Mapping[str, Any] | None = None,
    shapes: _Shapes | None = None,
    **arrays: tuple[int, ...],
) -> Plan:
    """Plans a symbol for these shapes and binds nothing.

    Args:
        symbol: the training symbol, or a HybridBlock.
        policy, max_overhead, max_time, heavy, memory_budget, keep, recompute, fuse, exact, strict, optimizer_states,
            max_planning, plan, verify: see `echo.Options`.
        ctx, grad_req, type_dict: as for `optimize`; of these, a block takes ``ctx``.
        shapes, arrays: as for `optimize`; enough to infer all other shapes. For a block, the shapes of its inputs in
            order, under any names.

    Raises:
        ShapeError: a shape stays unknown; the message names the arguments.
        OptionError, BudgetError, UnsupportedError: as for `optimize`.
    """
    planned: Plan = _runtime("api").plan(**locals())
    return planned


def frontier(
    symbol: mx.sym.Symbol | mx.gluon.HybridBlock,
    *,
    budgets: int = 10,
    policy: _Policy = "search",
    heavy: str = "auto",
    keep: Iterable[str] = (),
    recompute: Iterable[str] = (),
    fuse: bool | str = True,
    exact: bool = False,
    strict: bool = False,
    optimizer_states: int = 0,
    max_planning: float | None = 10.0,
    ctx: mx.Context | None = None,
    grad_req: str | Mapping[str, str] | Iterable[str] | None = None,
    type_dict: Mapping[str, Any] | None = None,
    shapes: _Shapes | None = None,
    **arrays: tuple[int, ...],
) -> Frontier:
    """Returns the whole curve of memory and time: plans from the least memory that can be reached to stock's.

    Args:
        symbol: the training symbol, or a HybridBlock.
        budgets: number of memory budgets, 2 to 100.
        policy, heavy, keep, recompute, fuse, exact, strict, optimizer_states, max_planning: see `echo.Options`.
        ctx, grad_req, type_dict, shapes, arrays: as for `plan`.

    Raises:
        OptionError: a budget, a bound, a plan, or a number of budgets that makes no sense; and what `plan` raises.
    """
    curve: Frontier = _runtime("api").frontier(**locals())
    return curve


def profile(
    symbol: mx.sym.Symbol | mx.gluon.HybridBlock,
    *,
    compare: Iterable[str] = ("echo",),
    run: bool = False,
    budgets: int = 0,
    policy: _Policy = "search",
    max_overhead: float | str | None = "auto",
    max_time: float | None = None,
    heavy: str = "auto",
    memory_budget: int | float | str | None = None,
    keep: Iterable[str] = (),
    recompute: Iterable[str] = (),
    fuse: bool | str = True,
    exact: bool = False,
    strict: bool = False,
    optimizer_states: int = 0,
    max_planning: float | None = 10.0,
    plan: Plan | Iterable[Plan] = (),
    ctx: mx.Context | None = None,
    grad_req: str | Mapping[str, str] | Iterable[str] | None = None,
    type_dict: Mapping[str, Any] | None = None,
    shapes: _Shapes | None = None,
    **arrays: tuple[int, ...],
) -> Profile:
    """Profiles where the memory of a training step goes: every array with its bytes, layer, kind and lifetime.

    The sum is what the executor holds: the arrays that it is given, and what MXNet's own memory planner plans.

    Args:
        symbol: the training symbol, or a HybridBlock.
        compare: what is compared with the original graph: "echo", the graph that `plan` gives with the same options,
            and "mirror", MXNet's own recomputation (``MXNET_BACKWARD_DO_MIRROR``).
        run: each graph also takes two training steps on zeros, in a process of its own: what the process, MXNet's
            storage counter and a GPU see of it. Takes the time and the memory of the model.
        budgets: number of memory budgets to plan for, too, as `frontier` does; 0 for none.
        policy, max_overhead, max_time, heavy, memory_budget, keep, recompute, fuse, exact, strict, optimizer_states,
            max_planning, plan: see `echo.Options`.
        ctx, grad_req, type_dict, shapes, arrays: as for `plan`.

    Raises:
        OptionError: an unknown name in ``compare``, or ``run`` for a block; and what `plan` raises.
        UnsupportedError: with ``run``, the model does not run here.
    """
    profiled: Profile = _runtime("api").profile(**locals())
    return profiled


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan that `Plan.save` wrote; ``echo.optimize(symbol, plan=plan)`` applies it without a search.

    Raises:
        GraphError: the file is not one, or damaged; the message names the field.
        OSError: it cannot be read.
    """
    from echo.plans.plan import Plan

    return Plan.load(path)


def enable(
    *,
    policy: _Policy = "search",
    max_overhead: float | str | None = "auto",
    max_time: float | None = None,
    heavy: str = "auto",
    memory_budget: int | float | str | None = None,
    keep: Iterable[str] = (),
    recompute: Iterable[str] = (),
    fuse: bool | str = True,
    exact: bool = False,
    strict: bool = False,
    optimizer_states: int = 0,
    max_planning: float | None = 10.0,
    plan: Plan | Iterable[Plan] = (),
    verify: bool = False,
    **unknown: Any,
) -> Enabled:
    """Switches transparent mode on: every training symbol that is bound from now on gets a plan, as with ``ECHO=1``.

    Errors inside echo cost a warning and never the training run (``strict=True`` raises); what no given ``plan`` was
    made for gets a new one.

    Args:
        policy, max_overhead, max_time, heavy, memory_budget, keep, recompute, fuse, exact, strict, optimizer_states,
            max_planning, plan, verify: see `echo.Options`.
        unknown: none; a misspelt option raises an error that says which may be meant.

    Returns:
        a context manager that restores the previous state.

    Raises:
        OptionError: an option that echo does not know.
        UnsupportedError: a version of MXNet other than 1.9.1.
    """
    given = {name: value for name, value in locals().items() if name != "unknown"}
    from echo.plans.options import Options

    enabled: Enabled = _runtime("transparent").enable(Options.of(**given, **unknown))
    return enabled


def disable() -> None:
    """Ends transparent mode; executors that are bound already keep their plans."""
    _runtime("transparent").disable()


def _runtime(name: str) -> Any:
    """A module of `echo.runtime`, all of which import MXNet.

    Raises:
        UnsupportedError: MXNet is not there; the message says what to install.
    """
    from importlib import import_module

    try:
        return import_module(f"echo.runtime.{name}")
    except ModuleNotFoundError as error:
        if error.name != "mxnet":
            raise
        wheels = "pip install 'mxnet-echo[cpu]', or [cu102], [cu112], [cu117] for NVIDIA's GPUs"
        raise UnsupportedError(f"echo plans models of MXNet {compat.SUPPORTED}, which is not here: {wheels}") from error


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("mxnet-echo")
    if name in _VALUES:
        from importlib import import_module

        return globals().setdefault(name, getattr(import_module(_VALUES[name]), name))
    raise AttributeError(f"module 'echo' has no attribute {name!r}")


startup.watch()  # `echo.compat` prepares mxnet when it is imported; ECHO=1 may have been set since Python started
