"""The tables of docs/paper.md, from results/paper_*.json; `benchmarks.tables` writes them into the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.paper import published
from benchmarks.paper.figures import BARS, Row, headline, times

_MB, _GB = 10**6, 10**9
_BAR_NAMES = {
    "default": "default", "same_time": "as much time as stock", "bits": "every bit kept, at most 15 % more time"
}  # fmt: skip
_WAYS = {"echo": "published rule", "default": "**default**"}
# the published rule, no heavy operator twice, every bit kept, the default, as much time as stock
_SHOWN = ("echo", "light", "bits", "default", "same_time")
_SHOWN_LESS = ("echo", "bits", "default")


def table(columns: str, lines: Iterable[Sequence[str]]) -> str:
    """A line for each row, under the columns, of which the first holds names."""
    rule = "|---" + "|---:" * columns.count("|") + "|"
    return "\n".join([f"| {columns} |", rule, *(f"| {' | '.join(line)} |" for line in lines)])


def claims_table(result: dict[str, Any]) -> str:
    """The claims about footprint: the authors' figure, and ours by their rule and by echo."""
    rows = {row["workload"]: row for row in result["rows"]}

    columns = [(name, "total") for name in _SHOWN] + [(name, "net") for name in _SHOWN_LESS]

    def mean_or_largest(which: int) -> list[str]:
        return [f"{headline(result['rows'], name, of)[which]:.2f}x" for name, of in columns]

    lines = [
        ["1 · mean of the four", f"{published.MEAN}x", *mean_or_largest(0)],
        ["1 · largest of the four", f"{published.LARGEST}x", *mean_or_largest(1)],
    ]
    for claim, name in (("3", "nmt_tbd"), ("4", "nmt_groundhog"), ("4", "nmt_best")):
        ours = [f"{times(rows[name], one, of):.2f}x" for one, of in columns]
        lines.append([f"{claim} · {name}", f"{published.FOOTPRINT[name]}x", *ours])
    shares = [f"{1 / times(rows['resnet152_v1'], one, of):.2f}" for one, of in columns]
    lines.append(["9 · resnet152_v1, share of stock", f"below {published.RESNET_152_BELOW}", *shares])
    total = "published rule | heavy never twice | every bit | **default** | as much time as stock"
    return table(f"claim | authors | {total} | net: published rule | every bit | **default**", lines)


def bars_table(result: dict[str, Any]) -> str:
    """The goals of echo, and whether they are met."""

    def cell(value: float, bar: float) -> str:
        return f"{value:.2f}x, {'met' if value > bar else '**missed**'}"

    lines = []
    for name, bars in BARS.items():
        for which, (kind, bar) in enumerate(zip(("mean", "largest"), bars)):
            if bar is not None:
                found = [cell(headline(result["rows"], name, of)[which], bar) for of in ("total", "net")]
                lines.append([f"{kind}, {_BAR_NAMES[name]}", f"above {bar}x", *found])
    return table("bar | wanted | total | net", lines)


def mirror_table(result: dict[str, Any]) -> str:
    """MXNet's own recomputation of residual networks."""
    lines = []
    for row in result["rows"]:
        if row["workload"].startswith("resnet"):
            stock, mirror = row["stock"]["total"], row["mirror"]["total"]
            authors = f"{published.RESNET_50_MIRRORED:.2f}x" if row["workload"] == "resnet50_v1" else ""
            default = f"{row['default']['total'] / stock:.2f}x"
            lines.append([row["workload"], _mb(stock), _mb(mirror), authors, f"{mirror / stock:.2f}x", default])
    return table("10 · workload | stock MB | mirrored MB | developers | mirrored | **default**", lines)


def footprint_table(result: dict[str, Any]) -> str:
    """Every workload: all that the executor holds, and by how often it falls."""
    ways = ("mirror", "memonger", "echo", "light", "unfused", "bits", "default", "same_time")

    def line(row: Row) -> list[str]:
        held = [_mb(row[name]["total"]) for name in ("stock", *ways)]
        falls = [f"{times(row, name, of):.2f}x" for of in ("total", "net") for name in ("bits", "default")]
        return [row["workload"], *held, *falls]

    columns = "workload | stock MB | mirror | memonger | published rule | heavy never twice | unfused 10 % | "
    columns += "every bit, 15 % | **default** | as much time as stock"
    return table(f"{columns} | every bit | **default** | net: every bit | **default**", map(line, result["rows"]))


def budget_table(result: dict[str, Any]) -> str:
    """The predicted time at shares of stock's memory; memonger's memory and heavy operators, and echo's there."""

    def at(found: Row) -> str:
        return f"at least {found['reachable'] / _MB:.0f} MB" if "reachable" in found else f"{found['time']:.2f}"

    def cells(found: Row) -> list[str]:
        if "reachable" in found:
            return [at(found), "", ""]
        return [_mb(found["total"]), str(found["heavy"]), f"{found['time']:.2f}"]

    def line(row: Row) -> list[str]:
        both = [cell for name in ("memonger", "at_memonger") for cell in cells(row[name])]
        return [row["workload"], *(at(row[f"budget_{share}"]) for share in (75, 50, 35)), *both]

    columns = "workload | time at 75 % | 50 % | 35 % | memonger MB | heavy | time | echo MB | heavy | time"
    return table(columns, map(line, result["rows"]))


def sweeps_table(result: dict[str, Any]) -> str:
    """Translation by layers, hidden units and batch."""

    def authors(row: Row) -> str:
        if row["sweep"] == "batch":
            return f"{published.BATCHES[row['value']]} GB" if row["value"] in published.BATCHES else ""
        known = published.SWEPT[row["sweep"]]
        return f"{known[row['value']]}x" if row["value"] in known else ""

    def line(row: Row) -> list[str]:
        held = [_mb(row[name]["total"]) for name in ("stock", "echo", "unfused", "default")]
        falls = [f"{times(row, name):.2f}x" for name in ("echo", "unfused", "default")]
        return [f"{row['sweep']} {row['value']}", *held, authors(row), *falls, f"{times(row, 'default', 'net'):.2f}x"]

    columns = "sweep | stock MB | published rule | unfused | **default** | authors"
    return table(f"{columns} | published rule | unfused | **default** | net: **default**", map(line, result["rows"]))


def largest_table(result: dict[str, Any]) -> str:
    """The largest batches in 12 GB."""

    def line(row: Row) -> list[str]:
        ways = ("stock", "echo", "unfused", "default")
        fits = [str(row[name]["largest"]) for name in ways]
        falls = [f"{row[name]['largest'] / row['stock']['largest']:.2f}x" for name in ways[1:]]
        return [row["quantity"], *fits, *falls]

    columns = "in 12 GB | stock | published rule | unfused | **default** | published rule | unfused | **default**"
    return table(columns, map(line, result["rows"]))


def breakdown_table(result: dict[str, Any]) -> str:
    """The parts of the memory of "tbd", next to those of the authors' profiler."""
    graphs = {row["graph"]: row["parts"] for row in result["rows"]}
    lines = []
    for part in graphs["stock"]:
        known = f"{published.PARTS[part]} GB" if part in published.PARTS else ""
        lines.append([part, known, *(f"{graphs[name][part] / _GB:.2f} GB" for name in ("stock", "default"))])
    return table("6 · part | authors | stock | **default**", lines)


def cell_table(result: dict[str, Any]) -> str:
    """The memory of one more step of an LSTM layer, in outputs of the step."""

    def line(row: Row) -> list[str]:
        found = row["outputs_a_step"]
        return [row["graph"], f"{published.CELL}" if row["graph"] == "stock" else "",
                *(f"{found[name]:.1f}" for name in ("maps", "planned"))]  # fmt: skip

    return table("8 · graph | authors | feature maps | planned", map(line, result["rows"]))


def steps_table(result: dict[str, Any]) -> str:
    """Times of steps as shares of stock's, with quartiles, and what is held."""

    def line(row: Row) -> list[str]:
        found = row["steps"]
        shown = [found[name] for name in _SHOWN_LESS]
        ratios = [f"{each['ratio']:.2f} ({each['low']:.2f}-{each['high']:.2f})" for each in shown]
        held = [_mb(found["stock_bytes"]), *(_mb(each["total"]) for each in shown)]
        predicted = f"{found['default']['predicted']:.2f}"
        return [row["workload"], row["size"], f"{found['stock_ms']:.0f}", *ratios, predicted, " / ".join(held)]

    columns = "workload | size | stock ms | published rule | every bit | **default** | predicted"
    return table(f"{columns} | MB: stock / rule / every bit / default", map(line, result["rows"]))


def perplexity_table(result: dict[str, Any]) -> str:
    """The batch that each way affords, and the time of its training to the perplexity."""
    lines = []
    for row in result["rows"]:
        for name, found in row["training"].items():
            share = found["seconds"] / row["training"]["stock"]["seconds"]
            lines.append([_WAYS.get(name, name), str(found["batch"]), f"{found['words_a_second']:,.0f}",
                          f"{found['updates']:,}", f"{found['seconds']:.0f} s", f"{share:.2f}"])  # fmt: skip
    return table("way | batch | words a second | updates | time | of stock's", lines)


def _mb(size: float) -> str:
    return f"{size / _MB:.0f}"


_FOOTPRINT = "python -m benchmarks.paper.footprint --fresh"
# As `benchmarks.tables.TABLES`: the function, the file in benchmarks/results/, the command that makes it again.
TABLES: dict[str, tuple[Callable[[dict[str, Any]], str], str, str]] = {
    "paper_claims": (claims_table, "paper_footprint", _FOOTPRINT),
    "paper_bars": (bars_table, "paper_footprint", _FOOTPRINT),
    "paper_mirror": (mirror_table, "paper_footprint", _FOOTPRINT),
    "paper_footprint": (footprint_table, "paper_footprint", _FOOTPRINT),
    "paper_budgets": (budget_table, "paper_footprint", _FOOTPRINT),
    "paper_sweeps": (sweeps_table, "paper_sweeps", "python -m benchmarks.paper.sweeps --fresh"),
    "paper_largest": (largest_table, "paper_largest", "python -m benchmarks.paper.largest --fresh"),
    "paper_breakdown": (breakdown_table, "paper_breakdown", "python -m benchmarks.paper.breakdown --fresh"),
    "paper_steps": (steps_table, "paper_steps", "python -m benchmarks.paper.steps --fresh"),
    "paper_perplexity": (perplexity_table, "paper_perplexity", "python -m benchmarks.paper.perplexity --fresh"),
    "paper_cell": (cell_table, "paper_cell", "python -m benchmarks.paper.breakdown --fresh"),
}
