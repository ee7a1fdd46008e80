"""Everything that echo may do to the maps around an operator, forced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from echo.ir.op_spec import PLAN_ATTRIBUTE, RANGE_ATTRIBUTE
from echo.ir.ops import spec
from echo.ir.training_node import why_not_dropout
from tests.operators.case import Case
from tests.operators.graph import UNDER, Built, Setting
from tests.operators.run import EXECUTOR, STATIC, node_under


@dataclass(frozen=True)
class Variant:
    """The roles of the nodes that are recomputed, and the match range of the storage, None for MXNet's own.

    ``packed`` says that masks are kept as bits, ``everywhere`` that not only executors are asked.
    """

    name: str
    roles: tuple[str, ...] = ()
    match_range: int | None = None
    packed: bool = False
    everywhere: bool = False

    def suits(self, setting: Setting, runner: str) -> bool:
        """Whether it is worth its time there: masks are what a setting with masks is for."""
        if setting.masked and "masked" not in self.roles and self.name != "input":
            return False
        return runner == EXECUTOR or self.everywhere

    def __str__(self) -> str:
        return self.name

    def marks(self, built: Built, runner: str, outputs: str) -> dict[str, dict[str, str]] | None:
        """Attributes by node; None where this variant does nothing to this graph.

        ``outputs`` are those of the operator under test that may be recomputed.
        """
        roles: Mapping[str, list[str]] = {**built.roles, "last": built.roles["input"][-1:]}
        names = [name for role in self.roles for name in roles.get(role, ())]
        if self.roles and not (names or ("output" in self.roles and outputs)):
            return None
        found = {name: {PLAN_ATTRIBUTE: "0"} for name in names}
        if "output" in self.roles:
            if not outputs:
                return None
            found[UNDER] = {PLAN_ATTRIBUTE: outputs}
        if self.match_range is not None:
            text = "-1s" if self.match_range < 0 and runner == STATIC else str(self.match_range)
            found["*"] = {RANGE_ATTRIBUTE: text}
        return found


VARIANTS = (
    Variant("input", ("input",), everywhere=True),
    Variant("last input", ("last",)),
    Variant("heavy input", ("input", "heavy input")),
    Variant("reassigned", (), -1, everywhere=True),
    Variant("output", ("output",), everywhere=True),
    Variant("input, output", ("input", "masked", "output")),
    Variant("readers", ("reader",)),
    Variant("mask", ("masked",)),
    Variant("bits", ("masked",), packed=True, everywhere=True),
    Variant("bits, input, reassigned", ("masked", "input"), -1, packed=True),
    Variant("all, 1", ("input", "masked", "reader"), 1),
    Variant("all, -1", ("input", "masked", "reader"), -1, everywhere=True),
    Variant("all, output, 4", ("input", "masked", "reader", "output"), 4),
    Variant("all, output, -1", ("input", "masked", "reader", "output"), -1, everywhere=True),
    Variant("heavy chain", ("heavy input", "input", "masked", "output"), everywhere=True),
    Variant("heavy chain, -1", ("heavy input", "input", "masked", "output", "reader", "heavy reader"), -1,
            everywhere=True),
)  # fmt: skip


def recomputable_outputs(case: Case, graph: Any, runner: str) -> str:
    """The outputs of the operator under test that echo recomputes, as the hook reads them; none: empty.

    ``graph`` is the training graph of stock MXNet.
    """
    node = node_under(graph)
    attrs = {key: str(value) for key, value in case.attrs}
    if node is None or not spec(case.op).safety.recomputable:
        return ""
    if case.op == "Dropout" and why_not_dropout(attrs):
        return ""
    if runner != EXECUTOR and node.kind["stateful"] and case.op != "Dropout":
        return ""  # for whose state a CachedOp has no room twice
    return ",".join(map(str, range(len(node.kind["shapes"]) if spec(case.op).safety.every_output else 1)))
