"""Writes the tables of README.md and docs/ from the results in benchmarks/results/.

python -m benchmarks.tables
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any, Callable, Dict

from benchmarks.gpu_tables import TABLES as GPU_TABLES
from benchmarks.never_worse import is_worse
from benchmarks.paper.tables import TABLES as PAPER_TABLES
from benchmarks.paper.tables import table
from benchmarks.record import load, parser
from benchmarks.torch_tables import TABLES as TORCH_TABLES

ROOT = Path(__file__).resolve().parents[1]
Row = Dict[str, Any]
_SCHEDULERS = ("search", "ilp", "sublinear")
_BOUNDS = ("0.05", "0.10", "0.25", "none")


def planned_table(result: dict[str, Any]) -> str:
    """Planned MB of each model without echo and under each bound on time."""

    def cells(row: Row) -> list[str]:
        planned = [f"{row[bound]['mb']:.0f}" for bound in _BOUNDS]
        return [row["model"], f"{row['stock_mb']:.0f}", *planned, f"{row['0.10']['mb'] / row['stock_mb']:.2f}"]

    columns = "model | stock MB | 0.05 | **0.10 (default)** | 0.25 | no bound, heavy never twice | of stock"
    return _table(columns, cells, result)


def time_table(result: dict[str, Any]) -> str:
    """Time of a step against stock, measured and predicted."""

    def cells(row: Row) -> list[str]:
        found = (row[bound] for bound in _BOUNDS)
        start = [row["model"], str(row["threads"])]
        return [*start, *(f"{one['ratio']:.2f} ({one['predicted_ratio']:.2f})" for one in found)]

    return _table("model | threads | 0.05 | **0.10 (default)** | 0.25 | no bound, heavy never twice", cells, result)


def fusion_table(result: dict[str, Any]) -> str:
    """Memory and time of a step with fused operators, in parentheses the predicted time."""

    def cells(row: Row) -> list[str]:
        found = [f"{row['stock_mb']:.0f}"]
        for name in ("fused", "default", "unfused"):
            predicted = row[name].get("predicted")
            time = f"{row[name]['ratio']:.2f}" + (f" ({predicted:.2f})" if predicted else "")
            found += [f"{row[name]['mb']:.0f}", time]
        growth = row.get("growth_mb")
        own = [""] * 3
        if growth:  # without a model that computes the same by it, the case itself is MXNet's RNN operator
            time = row["rnn"]["ratio"] if "rnn" in row else 1.0
            own = [f"{time:.2f}", f"{growth.get('rnn', growth['stock']):.0f}", f"{growth['fused']:.0f}"]
        return [row["case"], *found, *own]

    columns = "case | stock MB | fused MB | time | **default MB** | **time** | fuse=False MB | time | RNN time"
    return _table(f"{columns} | RNN growth | fused growth", cells, result)


def gluon_table(result: dict[str, Any]) -> str:
    """Memory of hybridized blocks, and time of a step."""

    def cells(row: Row) -> list[str]:
        found = row["none"]
        pairs = (found["stashed_mb"], found["planned_mb"], (row["stock_counter_mb"], found["counter_mb"]))
        shares = [cell for before, after in pairs for cell in (f"{before:.0f} to {after:.0f}", f"{after / before:.2f}")]
        return [row["case"], *shares, f"{found['time']:.2f} ({row['0.10']['time']:.2f})"]

    columns = "block | stashed MB | of stock | planned MB | of stock | storage counter MB | of stock | time (default)"
    return _table(columns, cells, result)


def buckets_table(result: dict[str, Any]) -> str:
    """The pool that all lengths share, and seconds of planning."""

    def cells(row: Row) -> list[str]:
        names = ("ratio", "planning_seconds", "second_planning_seconds")
        figures = (f"{row[name]:.2f}" if "ratio" in row else "" for name in names)
        return [row["bound"], f"{row['pool_mb']:.0f}", *figures]

    return _table("bound on time | pool MB | of stock | first planning, s | second, s", cells, result)


def planning_table(result: dict[str, Any]) -> str:
    """Seconds of planning, and what it finds."""

    def cells(row: Row) -> list[str]:
        figures = [f"{row[name]:.2f}" for name in ("processor_seconds", "seconds", "with_report_seconds")]
        cached, mxnet = f"{1e3 * row['cached_processor_seconds']:.0f}", f"{row['mxnet_seconds']:.1f}"
        names = ("stock_bytes", "bytes", "long_search_bytes")
        megabytes = [f"{row[name] / 1e6:.1f}" if name in row else "" for name in names]
        return [row["network"], str(row["forward_nodes"]), *figures, cached, mxnet, *megabytes]

    columns = "network | nodes | processor s | s | report s | on disk, ms | MXNet, s | stock MB | MB | long search, MB"
    return _table(columns, cells, result)


def busy_table(result: dict[str, Any]) -> str:
    """Plannings on a busy machine."""

    def cells(row: Row) -> list[str]:
        sizes = [size for size, _ in row["bytes"]]
        megabytes = sorted({f"{size / 1e6:.2f}" for size in (min(sizes), max(sizes))})
        most = (f"{max(row[name]):.1f}" for name in ("quiet_seconds", "seconds"))
        spreads = (f"{100 * row[name]:.1f}" for name in ("spread_of_bytes", "spread_of_total"))
        return [row["model"], " to ".join(megabytes), *spreads, str(len(row["fused"])), *most, str(row["stopped"])]

    columns = "model | planned MB | spread, % | of all, % | sets of fused operators | most s before | most s | stopped"
    return _table(columns, cells, result)


def worse_table(result: dict[str, Any]) -> str:
    """How many plans of random models are worse than none, by the kind of cell, and what the others bring."""
    groups: dict[str, list[Row]] = {}
    for row in result["rows"]:
        groups.setdefault(row["model"].split()[0], []).append(row)

    def cells(kind: str, rows: list[Row]) -> list[str]:
        changed = [row for row in rows if row["fused"] or row["recomputed"]]
        saved = statistics.median(1 - row["after"] / row["before"] for row in changed) if changed else 0.0
        times = sorted(row["time"] for row in changed) or [1.0]
        figures = (f"{100 * saved:.0f}", f"{statistics.median(times):.2f}", f"{times[-1]:.2f}")
        return [kind, str(len(rows)), str(len(changed)), *figures, str(sum(map(is_worse, rows)))]

    kinds = [cells(kind, groups[kind]) for kind in sorted(groups)]
    columns = "cell | models | with a plan | saved of all bytes, % | time | most time | **worse than none**"
    return table(columns, [*kinds, cells("all", result["rows"])])


def shapes_table(result: dict[str, Any]) -> str:
    """Costs and savings of trainings whose batches seldom have the same shape twice."""

    def cells(row: Row) -> list[str]:
        sizes = [f"{row[name]:.1f}" for name in ("stock_mb", "echo_mb")]
        return [row["case"], f"{row['time']:.2f}", *sizes, str(row["plans_on_disk"])]

    return _table("training | time | stock MB | echo MB | plans on disk", cells, result)


def process_table(result: dict[str, Any]) -> str:
    """Peaks of training processes, predicted and seen, and the part of the planned saving that is seen."""

    def cells(row: Row) -> list[str]:
        seen, found = row["seen"], row["predicted"]
        totals = {name: sum(parts.values()) for name, parts in found.items()} if found else {}
        pairs = [
            [f"{totals[name] / 1e6:.0f}" if totals else "-", f"{size / 1e6:.0f}",
             f"{100 * (totals[name] / size - 1):+.1f}" if totals else "-"]
            for name, size in seen.items()
        ]  # fmt: skip
        planned = found["stock"].get("planned", 0) - found["echo"].get("planned", 0) if found else 0
        early = row.get("by_plan")
        by_plan = [f"{early[name] / 1e6:.0f}" if early else "" for name in seen]
        saved = f"{planned / 1e6:.0f}", f"{(seen['stock'] - seen['echo']) / 1e6:.0f}"
        return [row["training"], *pairs[0], *pairs[1], *by_plan, *saved]

    columns = "training | stock, predicted MB | seen | off by, % | echo, predicted MB | seen | off by, %"
    columns += " | `plan`: stock | `plan`: echo"
    return _table(f"{columns} | planned saving, MB | **seen saving, MB**", cells, result)


def startup_table(result: dict[str, Any]) -> str:
    """The time that the package adds to the start of Python."""

    def cells(row: Row) -> list[str]:
        added = [f"{row[name]:.2f}" if row["added_ms"] else "" for name in ("added_ms", "file_ms")]
        return [row["case"], f"{row['start_ms']:.1f} ± {row['spread_ms'] / 2:.1f}", *added]

    return _table("start of Python | ms | added | of that the .pth file", cells, result)


def sockeye_table(result: dict[str, Any]) -> str:
    """Memory and speed of Sockeye's models under ECHO=1."""

    def cells(row: Row) -> list[str]:
        none, default, counter = row["none"], row["default"], row["counter_mb"]
        peak = f"{counter['stock']:.0f} to {counter['none']:.0f}"
        share, updates = f"{none['mb'] / row['stock_mb']:.2f}", f"{default['updates_ratio']:.2f}"
        fused = [str(row["fused"]["mb"]), f"{row['fused']['updates_ratio']:.2f}"] if "fused" in row else ["", ""]
        return [row["model"], str(row["stock_mb"]), str(none["mb"]), share, peak, str(default["mb"]), updates, *fused]

    columns = "model | stock MB | no bound | of stock | storage peak, MB | 0.10 | updates a second"
    columns += " | **fused (default)** | updates a second"
    return _table(columns, cells, result)


def projects_table(result: dict[str, Any]) -> str:
    """Results of other people's models under ECHO=1, with memory and time."""
    settings = ("stock", "cold", "warm")

    def figures(row: Row, name: str, digits: int, names: tuple[str, ...]) -> list[str]:
        return [f"{row[one][name]:.{digits}f}" if name in row.get(one, {}) else "-" for one in names]

    def cells(row: Row) -> list[str]:
        cold = row.get("cold", {})
        errors = [f"{cold[kind][0]:.0e}" if kind in cold else "-" for kind in ("gradient", "loss")]
        counters = figures(row, "counter_mb", 1, ("stock", "unfused", "cold"))
        allocated = figures(row, "allocated_mb", 1, ("stock", "cold"))
        rss, seconds = figures(row, "rss_mb", 0, settings), figures(row, "processor_seconds", 1, settings)
        return [f"{row['project']}/{row['model']}", _bits(row), *errors, *counters, *allocated, *rss, *seconds]

    columns = "model | bits, `ECHO_FUSE=0` | gradients | losses | storage, MB | `ECHO_FUSE=0` | **`ECHO=1`**"
    columns += " | with oneDNN's, MB | `ECHO=1` | RSS, MB"
    return _table(f"{columns} | cold | warm | processor s | cold | warm", cells, result)


def _bits(row: Row) -> str:
    """Whether the unfused run left what stock left."""
    if "unfused" not in row or "failure" in row["unfused"]:
        return "failed"
    if row["unfused_differs"]:
        return f"**{len(row['unfused_differs'])} arrays differ**"
    return f"same, but {len(row['undefined'])} undefined in MXNet" if row["undefined"] else "same"


def ilp_table(result: dict[str, Any]) -> str:
    """Overheads of the published plans and of the policies at the same budgets, in per cent of the step."""

    def cells(row: Row) -> list[str]:
        plan, ours = row["published"], row["search"]
        overheads = [f"{100 * row[name]['overhead']:.2f}" if row[name] else "" for name in _SCHEDULERS]
        first = [f"{plan['peak_bytes'] / 1e9:.2f}", f"{100 * plan['overhead']:.2f}", f"{plan['solve_s']:.0f}"]
        heavy = f"{plan['heavy_recomputed']} / {ours['heavy_recomputed']}"
        return [row["graph"], *first, overheads[0], f"{ours['seconds']:.1f}", heavy, *overheads[1:]]

    columns = "graph | budget, GB | ILP, % | ILP, s | **search, %** | search, s | heavy (ILP / search)"
    return _table(f"{columns} | ilp, % | sublinear, %", cells, result)


def memonger_table(result: dict[str, Any]) -> str:
    """Planned MB, heavy operators that are recomputed, and seconds of planning, of memonger's rule and of echo."""

    def figures(found: dict[str, Any]) -> list[str]:
        if "missed" in found:
            return ["missed", "", f"{found['seconds_to_plan']:.0f}"]
        return [f"{found['mb']:.0f}", str(found["heavy"]), f"{found['seconds_to_plan']:.0f}"]

    def cells(row: Row) -> list[str]:
        light = row["light"]
        start = [row["model"], f"{light['stock_mb']:.0f}", *figures(row["memonger"]), f"{row['bar_mb']:.0f}"]
        own = row["budget"].get("own_processor_seconds")
        return [*start, *figures(row["budget"]), "" if own is None else f"{own:.1f}", f"{light['mb']:.0f}"]

    columns = "model | stock MB | memonger MB | heavy | s | budget, MB | **echo MB** | heavy | s | own s"
    return _table(f"{columns} | nothing heavy, MB", cells, result)


def _table(columns: str, cells: Callable[[Row], list[str]], result: dict[str, Any]) -> str:
    """A line for each row, under the columns, of which the first holds names."""
    return table(columns, map(cells, result["rows"]))


# The function of each table, the file in benchmarks/results/ that it is made from, and the command that makes the file.
TABLES: dict[str, tuple[Callable[[dict[str, Any]], str], str, str]] = {
    "planned": (planned_table, "planned_memory", "python -m benchmarks.planned_memory"),
    "time": (time_table, "step_time", "python -m benchmarks.step_time"),
    "fusion": (fusion_table, "fusion", "python -m benchmarks.fusion"),
    "gluon": (gluon_table, "gluon_memory", "python -m benchmarks.gluon_memory"),
    "buckets": (buckets_table, "buckets", "python -m benchmarks.buckets"),
    "shapes": (shapes_table, "changing_shapes", "python -m benchmarks.changing_shapes"),
    "planning": (planning_table, "planning_time", "python -m benchmarks.planning_time"),
    "busy": (busy_table, "busy_planning", "python -m benchmarks.busy_planning"),
    "worse": (worse_table, "never_worse", "python -m benchmarks.never_worse"),
    "process": (process_table, "process_peak", "python -m benchmarks.process_peak"),
    "startup": (startup_table, "startup", "python -m benchmarks.startup"),
    "sockeye": (sockeye_table, "sockeye_training", "make sockeye"),
    "projects": (projects_table, "projects", "make projects"),
    "ilp": (ilp_table, "ilp", "python -m benchmarks.ilp"),
    "memonger": (memonger_table, "memonger", "python -m benchmarks.memonger"),
    **PAPER_TABLES,
    **GPU_TABLES,
    **TORCH_TABLES,
}


def source(result: dict[str, Any], command: str) -> str:
    """The origin of figures: the command, the day, the commit, the machine and the versions."""
    machine, versions = result["machine"], result["versions"]
    hardware = f"{machine['gpu']}, cuDNN {machine['cudnn']}" if "gpu" in machine else machine["processor"]
    names = {"mxnet": "mxnet", "numpy": "numpy", "python": "Python", "sockeye": "sockeye", "torch": "torch"}
    used = ", ".join(f"{text} {versions[name]}" for name, text in names.items() if name in versions)
    cores = f"{machine['cores']} core{'s' * (machine['cores'] > 1)}"
    return f"`{command}`, {result['date']}, commit {result['commit']}, {hardware}, {cores}, {used}"


def with_tables(text: str) -> str:
    """The text with everything between each pair ``<!-- table:NAME -->`` and ``<!-- /table:NAME -->`` written again.

    Raises:
        ValueError: there is no table of that name.
    """

    def written(found: re.Match[str]) -> str:
        if found[2] not in TABLES:
            raise ValueError(f"expected one of the tables {', '.join(TABLES)}, got {found[2]!r}")
        table, name, command = TABLES[found[2]]
        result = load(name)
        return f"{found[1]}\n{table(result)}\n\n{source(result, command)}\n{found[3]}"

    return re.sub(r"(<!-- table:(\w+) -->).*?(<!-- /table:\2 -->)", written, text, flags=re.DOTALL)


def main() -> None:
    """Rewrites the documents in place."""
    parser(__doc__).parse_args()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
