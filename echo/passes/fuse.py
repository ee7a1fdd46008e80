"""The pass that fuses, and the bytes of workspaces that fused operators draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import AbstractSet, Callable, ClassVar

from echo.errors import reraise_interruption
from echo.estimators.footprint import workspaces
from echo.kernels.library import MOST_BYTES
from echo.passes.analysis import named
from echo.passes.fusion_timing import FusionProfitability
from echo.passes.patterns import LAYERS, MASKS
from echo.passes.patterns.apply import Fused, Types, fuse
from echo.passes.patterns.graph_view import Fusion
from echo.passes.patterns.legality import normed_state
from echo.passes.request import Framework, Request
from echo.plans.decisions import Note
from echo.plans.options import MEMORY

# Fused operators in the original graph: the first stage, before the graph is differentiated.

_BITS = ("no operator is fused that would change last bits: {name} normalizes a product of the state of a recurrent "
         "cell, which amplifies each rounding from step to step (fuse='memory' fuses)")  # fmt: skip


@dataclass(frozen=True)
class Fuse:
    """Puts fused operators where the graph's structure, shapes and types allow them.

    EcoRNN (MICRO'18), section 5, fuses LSTM cells by hand; Echo (ISCA'20), section 2, names attention scores. Without
    ``layers``, the steps of a layer stay apart, so that backward runs them one by one, too.
    """

    name: ClassVar[str] = "fuse"
    needs: ClassVar[tuple[type, ...]] = (Request,)
    gives: ClassVar[type] = Fused
    layers: bool = True

    @property
    def label(self) -> str:
        """The name, in messages for the user, of the operators that this pass puts in."""
        return "fused operators, whole layers too" if self.layers else "fused operators"

    def run(self, request: Request) -> Fused:
        if not request.options.fuses:
            return Fused(request.graph)
        norm = "" if request.options.fuse == MEMORY else normed_state(request.graph)
        if norm:
            return Fused(request.graph, notes=(Note(_BITS.format(name=repr(norm))),), bits=norm)
        user_constraints, framework = request.options.user_constraints, request.framework
        fused = with_operators(request, MASKS if self.layers else MASKS | LAYERS)
        if not all(named(request.graph, (each,)) or named(fused.graph, (each,)) for each in user_constraints):
            return Fused(request.graph)  # so that the error names the user's own operators
        if fused.match_sites and framework.why_no_fusion:
            return Fused(request.graph, notes=(Note(f"no operator is fused: {framework.why_no_fusion}"),))
        return fused


def with_operators(request: Request, without: AbstractSet[str]) -> Fused:
    """The original graph with fused operators; ``without`` are patterns that are not matched.

    No operator whose workspace is larger than what MXNet gives takes a place: it would fail when it runs. Nor does one
    that may be slower on this device than what is there, unless the user asks for memory (`echo.passes.fusion_timing`).
    """
    framework, pinned = request.framework, named(request.graph, request.options.user_constraints)
    refused: dict[tuple[str, str], str] = {}
    why_slower = why_left(request)
    while True:
        fused = fuse(
            request.graph, framework.types, framework.adds, pinned, without, refused, why_slower, framework.setting,
            None if framework.why_no_fusion else framework.inferred, request.matcher,
        )  # fmt: skip
        if not fused.match_sites or framework.why_no_fusion:
            return fused
        large = too_large(framework.on(fused.graph))
        if large.keys() <= refused.keys():
            return fused
        refused.update(large)


def why_left(request: Request) -> Callable[[Fusion, Types], str]:
    """Returns the reason why a fusion is not profitable here, as a function; on GPUs, it times both forms."""
    options = request.options
    times = request.framework.device == "gpu" and options.fuse != MEMORY and options.memory_budget is None
    return FusionProfitability(request) if times else lambda *_: ""


def too_large(framework: Framework) -> dict[tuple[str, str], str]:
    """Why MXNet gives some fused operators of a graph no workspace, by kind and name."""
    try:
        training = framework.differentiate()
    except Exception as error:  # planning this graph comes to the same, and says so
        reraise_interruption(error)
        return {}
    large = {number: size for number, size in workspaces(training, framework.device).items() if size > MOST_BYTES}
    return {
        (training.nodes[number].op, training.nodes[number].name): (
            f"a workspace of {size:,} bytes: MXNet gives an operator at most {MOST_BYTES:,}"
        )
        for number, size in large.items()
    }


# The bytes that fused operators draw as they run, alongside all that is planned.


@dataclass(frozen=True)
class Workspaces:
    """``largest`` is the largest workspace of a graph's operators; so much is drawn from each slot."""

    largest: int
    workspace_slots: int

    @property
    def bytes(self) -> int:
        """The bytes that all slots hold once the largest workspace was drawn from each."""
        return self.largest * self.workspace_slots


@dataclass(frozen=True)
class CountWorkspaces:
    """Asks the kernels what each of the graph's fused operators draws; each space then holds the largest of these."""

    name: ClassVar[str] = "count workspaces"
    needs: ClassVar[tuple[type, ...]] = (Request,)
    gives: ClassVar[type] = Workspaces

    def run(self, request: Request) -> Workspaces:
        framework = request.framework
        drawn = workspaces(framework.differentiate(), framework.device)
        return Workspaces(max(drawn.values(), default=0), framework.workspace_slots)
