"""Every operator that echo recomputes gives the same bits when it runs twice."""

from __future__ import annotations

import pytest

from echo.ir.ops import spec
from tests.support.cases import recomputable_outputs
from tests.support.operator_builds import BUILDS, TYPED, VARIANTS, Build, check, node_under, run, symbol_with
from tests.support.training import assert_same, recomputing


def check_mirrored(build: Build, readers: bool) -> None:
    """Recomputed by MXNet's own mirroring: the same bits. Its clones are read by gradients of mirrored nodes alone.

    With ``readers`` the products are mirrored too, so that they read the clone; without, a clone may be there whose
    output nothing reads.
    """
    symbol = symbol_with(build)
    outputs = recomputable_outputs(node_under(symbol), "cpu", hook=False)
    if not outputs:
        return
    marked = {"under": list(outputs)}
    if readers:
        products = [name for name in symbol.get_internals().list_outputs() if name.startswith(("product", "chosen"))]
        marked.update({name[: -len("_output")]: [0] for name in products})
    expected, stock = run(symbol)
    got, graph = run(recomputing(symbol, marked, hook=False))
    assert "Name=under_mirror\n" in graph or not readers
    assert "Name=under_mirror" not in stock
    assert_same(got, expected)


@pytest.mark.every(7)
@pytest.mark.parametrize("op", BUILDS)
def test_recomputed_by_the_hook(op: str) -> None:
    check(BUILDS[op])


@pytest.mark.every(7)
@pytest.mark.parametrize("op", [op for op in BUILDS if not spec(op).safety.needs_hook])
def test_recomputed_by_mirroring(op: str) -> None:
    check_mirrored(BUILDS[op], readers=True)


@pytest.mark.every(11)
@pytest.mark.parametrize("op", [op for op in BUILDS if not spec(op).safety.needs_hook])
def test_mirrored_with_an_unread_output(op: str) -> None:
    check_mirrored(BUILDS[op], readers=False)


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("op", TYPED)
def test_recomputed_in_other_types(op: str, dtype: str) -> None:
    check(BUILDS[op], dtype)


@pytest.mark.every(3)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_recomputed_by_the_hook_keeps_its_bits(variant: str) -> None:
    check(VARIANTS[variant])


@pytest.mark.every(3)
@pytest.mark.parametrize("readers", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_mirrored_variants(variant: str, readers: bool) -> None:
    check_mirrored(VARIANTS[variant], readers)
