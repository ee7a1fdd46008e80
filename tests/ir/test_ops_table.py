"""The table of operators: it has a row for each that tests build, and is the only one."""

from __future__ import annotations

import ast
import ctypes
import json
from pathlib import Path

import mxnet as mx
import pytest

from echo.frontend import install
from echo.frontend.symbols import graph_of
from echo.ir import ops
from echo.ir.graph import PREFIX, READS
from echo.ir.op_spec import OpSpec
from echo.ir.ops import may_draw, ops_with, spec
from tests.support.operator_builds import BUILDS, HEAVY_BUILDS, LIGHT_BUILDS, symbol_with

ROOT = Path(__file__).resolve().parents[2]


def tables_in(tree: ast.AST) -> set[int]:
    """The lines of sets, sequences and mappings that two operators of the table are members or keys of.

    Operators that are called as a value of ``act_type`` do not count.
    """
    known = ops_with(lambda spec: True) - {"tanh", "sigmoid", "relu", "softsign", "max", "sum"}
    found = set()
    for node in ast.walk(tree):
        items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        names = {item.value for item in items if isinstance(item, ast.Constant)}
        if len(names & known) > 1:
            found.add(node.lineno)
    return found


def test_table_covers_the_light_operators() -> None:
    light = ops_with(lambda spec: spec.safety.recomputable and not spec.cost.heavy)
    fused = {PREFIX + kernel for kernel in READS if not spec(PREFIX + kernel).cost.heavy}  # tests/kernels has those
    assert set(LIGHT_BUILDS) == light - fused
    assert fused - light == {PREFIX + "draw_mask", PREFIX + "pack_mask"}, "whose result is what is kept"


def test_table_holds_heavy_operators() -> None:
    heavy = ops_with(lambda spec: spec.cost.heavy)
    assert set(HEAVY_BUILDS) <= heavy <= ops_with(lambda spec: spec.safety.recomputable)


def test_unknown_operator_has_an_empty_row() -> None:
    assert spec("MyOwn") == OpSpec()
    assert not any((OpSpec().safety.recomputable, OpSpec().safety.address_stable_reads, OpSpec().cost.measurable))


def test_operators_that_may_draw() -> None:
    drawing = ["Dropout", "_random_uniform", "_sample_multinomial", "_shuffle", "_npi_bernoulli", "_npi_gumbel"]
    drawing += ["normal", "Custom", "_foreach", "unknown operator"]
    others = ["tanh", "FullyConnected", "LeakyReLU", "RNN", "BilinearSampler", "LogisticRegressionOutput", "gamma"]
    others += ["_zeros", "_full", "_npi_arange"]
    assert [op for op in [*drawing, *others] if may_draw(op, {})] == drawing
    assert may_draw("LeakyReLU", {"act_type": "rrelu"})
    assert not may_draw("Dropout", {"p": "0.0"})
    assert may_draw("RNN", {"num_layers": "2", "p": "0.5"})
    assert not may_draw("RNN", {"num_layers": "1", "p": "0.5"})


_RANDOM = ["exponential", "gamma", "negative_binomial", "normal", "poisson", "uniform", "generalized_negative_binomial"]
_NP_RANDOM = ["exponential", "gumbel", "logistic", "lognormal", "normal", "rayleigh", "uniform"]
_NP_RANDOM_OF_ONE = ["chisquare", "gamma", "pareto", "power", "weibull"]


def _drawn() -> list[mx.sym.Symbol]:
    """One symbol for each function of MXNet's that draws random numbers."""
    one, two = mx.sym.var("one", shape=(3,)), mx.sym.var("two", shape=(3,))
    plain, np_, npx = mx.sym.random, mx.sym.np.random, mx.sym.npx.random
    made = [getattr(plain, name)(shape=(2, 3)) for name in _RANDOM]
    made += [getattr(plain, f"{name}_like")(data=one) for name in _RANDOM]
    made += [plain.multinomial(one), plain.shuffle(one), plain.randint(0, 9, shape=(2,)), plain.uniform(one, two)]
    made += [getattr(np_, name)(size=(2, 3)) for name in _NP_RANDOM]
    made += [getattr(np_, name)(2.0, size=(2, 3)) for name in _NP_RANDOM_OF_ONE]
    made += [np_.beta(2.0, 3.0, size=(2, 3)), np_.choice(5, size=(2,)), np_.randint(0, 9, size=(2,))]
    made += [npx.bernoulli(prob=0.5, size=(2, 3)), npx.normal_n(batch_shape=(2,)), npx.uniform_n(batch_shape=(2,))]
    return [symbol.as_nd_ndarray() if hasattr(symbol, "as_nd_ndarray") else symbol for symbol in made]


def test_every_operator_that_draws_is_known() -> None:
    for symbol in _drawn():
        graph = graph_of(symbol)
        assert any(may_draw(node.op, node.attrs) for node in graph.nodes if not node.is_variable), graph


def test_an_operator_has_one_row() -> None:
    with pytest.raises(ValueError, match="two rows"):
        ops._table(((OpSpec(), "tanh exp"), (OpSpec().having(heavy=True), "tanh")))


def test_each_heavy_fused_operator_has_a_formula_of_its_own() -> None:
    """Of the others time follows the bytes that they move."""
    for kernel in READS:
        row = spec(PREFIX + kernel)
        assert (row.cost.flops is not None) == row.cost.heavy, kernel
        assert row.cost.flops is not ops._product, kernel


def test_operators_are_listed_in_no_other_table() -> None:
    """No set, list or mapping of operators stands in another file, but for patterns and their timing.

    Charts of reports have words such as "sort" and "round", which are operators of MXNet's, too, and so have torch's.
    """
    assert tables_in(ast.parse("HEAVY = frozenset({'dot', 'batch_dot'})")) == {1}
    assert tables_in(ast.parse("FLOPS = {'dot': 1, 'RNN': 2}")) == {1}
    assert tables_in(ast.parse("x = op == 'dot' or op in ('RNN',)")) == set()
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / "echo").rglob("*.py")
        if not {"patterns", "reference", "report", "torch"} & set(path.parts)
        and path.name not in ("ops.py", "fusion_timing.py")
        for line in tables_in(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()


@pytest.mark.parametrize("op", BUILDS)
def test_names_are_those_in_saved_graphs(op: str) -> None:
    (node,) = (node for node in json.loads(symbol_with(BUILDS[op]).tojson())["nodes"] if node["name"] == "under")
    assert node["op"] == op


def test_every_listed_operator_exists() -> None:
    without_kernels = install.extension_blocker()  # loads them
    size, names = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    mx.base.check_call(mx.base._LIB.MXListAllOpNames(ctypes.byref(size), ctypes.byref(names)))
    recomputable = ops_with(lambda spec: spec.safety.recomputable)
    listed = {op for op in recomputable if not (without_kernels and op.startswith(PREFIX))}
    assert not listed - {names[index].decode() for index in range(size.value)}
