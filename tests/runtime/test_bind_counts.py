"""Work that a first bind does not repeat: graphs as JSON, symbols made of them, and matches of patterns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Callable

import mxnet as mx
import pytest

import echo
from echo.ir.graph import Graph
from echo.passes.patterns import PATTERNS, apply, substitute
from echo.passes.patterns.graph_view import Pattern, View

pytestmark = pytest.mark.usefixtures("cheap_planning")
STEPS, WORDS, UNITS = 8, 200, 32
# The original graph; two with fused operators, which are compared; the new operators of each, to infer their types; and
# the graph that is bound. Marks are attributes of a copy.
MOST_PRINTED = 6
MOST_READ = 1
MOST_MATCHES = 500  # of 248 nodes


def language_model() -> mx.sym.Symbol:
    stack = mx.rnn.SequentialRNNCell()
    for cell in (mx.rnn.LSTMCell(UNITS, prefix="l0_"), mx.rnn.DropoutCell(0.3), mx.rnn.LSTMCell(UNITS, prefix="l1_")):
        stack.add(cell)
    words = mx.sym.Embedding(mx.sym.var("data"), input_dim=WORDS, output_dim=UNITS, name="embed")
    states, _ = stack.unroll(STEPS, inputs=words, merge_outputs=True)
    scores = mx.sym.FullyConnected(mx.sym.Reshape(states, shape=(-1, UNITS)), num_hidden=WORDS, name="pred")
    return mx.sym.SoftmaxOutput(scores, mx.sym.Reshape(mx.sym.var("softmax_label"), shape=(-1,)), name="softmax")


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often functions were called, by name."""
    seen: Counter[str] = Counter()

    def counted(owner: Any, name: str, key: str, static: bool = False) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def call(*args: Any, **more: Any) -> Any:
            seen[key] += 1
            result = original(*args, **more)
            if key == "printed":
                text = repr(result)
                seen["printed again"] += text in seen
                seen[text] = 1
            return result

        monkeypatch.setattr(owner, name, staticmethod(call) if static else call)

    counted(Graph, "to_json", "values")
    counted(Graph, "to_text", "printed")
    counted(Graph, "from_json", "read", static=True)
    counted(substitute, "match", "matches")

    def counting(pattern: Pattern) -> Pattern:
        def match(view: View, number: int) -> Any:
            seen["matches"] += 1
            return pattern.match(view, number)

        return replace(pattern, match=match)

    monkeypatch.setattr(apply, "PATTERNS", {name: counting(pattern) for name, pattern in PATTERNS.items()})
    return seen


def test_first_bind_prints_no_graph_twice_and_tries_few_matches(counts: Counter[str]) -> None:
    symbol = language_model()
    inputs = {name: (16, STEPS) for name in ("data", "softmax_label")}
    requests = {name: "null" if name in inputs else "write" for name in symbol.list_arguments()}
    with_once(symbol, requests, inputs)
    counts.clear()
    optimized = echo.optimize(symbol, max_overhead=None)
    optimized.simple_bind(mx.cpu(), grad_req=requests, **inputs)
    (plan,) = optimized.plans
    assert "lstm_cell" in {name for name, _ in plan.fused}
    assert counts["printed again"] == 0
    assert 0 < counts["printed"] <= MOST_PRINTED
    assert counts["values"] == 0, "a graph is written as a text, without a value of its JSON"
    assert 0 < counts["read"] <= MOST_READ
    assert 0 < counts["matches"] <= MOST_MATCHES


def with_once(symbol: mx.sym.Symbol, requests: dict[str, str], inputs: dict[str, tuple[int, int]]) -> None:
    """What a process does once, such as the check of the hook, is done here, with another plan."""
    echo.optimize(symbol, policy="none").simple_bind(mx.cpu(), grad_req=requests, **inputs)
