"""The two products of dot attention as einsums: which of their letters are batches, heads, queries, keys and depths.

Axes have these names: N, or b and h where the batch has two axes; T of queries, S of keys, D of the depth of queries
and keys, V of the depth of values.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

from echo.ir.graph import Node

EINSUM = "_npi_einsum"
_BATCHES = {1: "N", 2: "bh"}  # the names of the batch's axes, by their number


class Scoring(NamedTuple):
    """An einsum of queries and keys: the positions of its inputs, and the axes of each."""

    queries: int
    keys: int
    query_axes: str
    key_axes: str


class Weighing(NamedTuple):
    """An einsum of weights and values: the positions of its inputs, the axes of the values and of the result."""

    weights: int
    values: int
    value_axes: str
    result_axes: str


def scoring(node: Node) -> Scoring | None:
    """The axes of an einsum that may be the product of queries and keys, None where it cannot.

    Its result is [batches, queries, keys], as softmax over the last axis reads it.
    """
    terms = _terms(node)
    if terms is None:
        return None
    *inputs, out = terms
    names = _named(out, "TS")
    if names is None:
        return None
    queries = 0 if out[-2] in inputs[0] else 1
    summed = (set(inputs[0]) & set(inputs[1])) - set(out)
    if len(summed) != 1:
        return None
    names[summed.pop()] = "D"
    axes = [_renamed(inputs[at], names) for at in (queries, 1 - queries)]
    batch = _BATCHES[len(out) - 2]
    if [sorted(text) for text in axes] != [sorted(batch + "TD"), sorted(batch + "SD")]:
        return None
    return Scoring(queries, 1 - queries, *axes)


def weighings(node: Node) -> Iterator[Weighing]:
    """The ways in which an einsum may be the product of weights [batches, queries, keys] and values."""
    terms = _terms(node)
    if terms is None:
        return
    *inputs, out = terms
    for weights in (0, 1):
        values = inputs[1 - weights]
        names = _named(inputs[weights], "TS")
        own = set(values) - set(inputs[weights])
        if names is None or len(own) != 1:
            continue
        names[own.pop()] = "V"
        batch = _BATCHES[len(inputs[weights]) - 2]
        axes = [_renamed(text, names) for text in (values, out)]
        if [sorted(text) for text in axes] == [sorted(batch + "SV"), sorted(batch + "TV")]:
            yield Weighing(weights, 1 - weights, *axes)


def _terms(node: Node) -> tuple[str, str, str] | None:
    """The letters of both inputs and of the result; None of an einsum that is written or works in another way."""
    text = node.attrs.get("subscripts", "").replace(" ", "")
    inputs, arrow, out = text.partition("->")
    terms = [*inputs.split(","), out]
    if node.op != EINSUM or not arrow or len(terms) != 3:
        return None
    plain = all(term.isalpha() and len(set(term)) == len(term) for term in terms)
    return (terms[0], terms[1], terms[2]) if plain else None


def _named(term: str, last: str) -> dict[str, str] | None:
    """Names for the letters of a term: of the batch's axes, and of the ``last`` ones; None where they are too many."""
    batch = _BATCHES.get(len(term) - len(last))
    return None if batch is None else dict(zip(term, batch + last))


def _renamed(term: str, names: dict[str, str]) -> str:
    return "".join(names.get(letter, "?") for letter in term)
