"""The row of results that the runs of one model give together."""

from __future__ import annotations

from typing import Any, Mapping

from projects.compare import GRADIENT_TOLERANCE, LOSS_TOLERANCE, Arrays, different, worst
from projects.run import Run
from projects.settings import AGAIN, COLD, SETTINGS, STOCK, STOCK_AGAIN, UNFUSED, WARM

MEMORY_TOLERANCE = 1.01  # of stock's
# Next to arrays, oneDNN and OpenMP allocate for themselves: up to 0.6 MB more or less where the storage counter falls.
OWN_MB = {"counter_mb": 0.0, "allocated_mb": 1.0}
_GROWTHS = {"counter_grows": "the storage counter", "allocated_grows": "what MXNet and oneDNN allocate together"}
_FIGURES = (
    ("counter", "counter_mb", 1, (UNFUSED, COLD)), ("allocated", "allocated_mb", 1, (UNFUSED, COLD)),
    ("RSS", "rss_mb", 0, (COLD, WARM)),
)  # fmt: skip
_EXACT = "random/"  # has to be the same with fused operators, too


def row_of(project: str, model: str, steps: int, runs: Mapping[str, Run]) -> dict[str, Any]:
    """The figures of all runs, and under ``faults`` what must not be, in words.

    ``undefined`` names what stock itself leaves undefined: two of its own runs differ there. That is no fault of
    echo's, and compared no further.
    """
    stock = runs[STOCK]
    undefined = sorted({name for again in AGAIN if again in runs and not runs[again].failure
                        for name in different(stock.arrays, runs[again].arrays)})  # fmt: skip
    row: dict[str, Any] = {"project": project, "model": model, "steps": steps}
    for setting in SETTINGS:
        if setting in runs:
            row[setting] = _figures(runs[setting])
    row["undefined"] = undefined
    known = {name: one for name, one in stock.arrays.items() if name not in undefined}
    row["unfused_differs"] = [name for name in _differing(stock, runs.get(UNFUSED)) if name not in undefined]
    for setting in (COLD, WARM):
        if setting in runs and not runs[setting].failure and not stock.failure:
            row[setting].update(_errors(known, runs[setting]))
    row["counter_grows"] = _growth(runs, "counter_mb")
    row["allocated_grows"] = _growth(runs, "allocated_mb")
    row["faults"] = _faults(row)
    return row


def _figures(run: Run) -> dict[str, Any]:
    if run.failure:
        return {"failure": run.failure, "warnings": list(run.warnings)}
    return {
        "seconds": round(run.seconds, 2),
        "processor_seconds": round(run.processor_seconds, 2),
        "rss_mb": round(run.rss_mb, 1),
        "counter_mb": round(run.counter_mb, 2),
        "allocated_mb": round(run.allocated_mb, 2),
        "planned_mb": run.planned_mb,
        "warnings": list(run.warnings),
    }


def _differing(stock: Run, unfused: Run | None) -> list[str]:
    if unfused is None or unfused.failure or stock.failure:
        return []
    return different(stock.arrays, unfused.arrays)


def _errors(stock: Arrays, run: Run) -> dict[str, Any]:
    gradient, loss = (worst(stock, run.arrays, prefix) for prefix in ("gradient/", "loss/"))
    streams = [name for name in stock if name.startswith(_EXACT) and name in different(stock, run.arrays)]
    return {"gradient": list(gradient), "loss": list(loss), "random_differs": streams}


def _growth(runs: Mapping[str, Run], figure: str) -> list[str]:
    """The settings whose figure is above both of stock's own runs, which differ by when arrays are freed."""
    own = [getattr(runs[name], figure) for name in (STOCK, STOCK_AGAIN) if name in runs and not runs[name].failure]
    if not own:
        return []
    stock = max(own)
    most = max(MEMORY_TOLERANCE * stock, stock + OWN_MB[figure])
    return [setting for setting in (UNFUSED, COLD, WARM) if setting in runs and getattr(runs[setting], figure) > most]


def _faults(row: Mapping[str, Any]) -> list[str]:
    found = [f"{setting}: {row[setting]['failure']}" for setting in SETTINGS if "failure" in row.get(setting, {})]
    if row["unfused_differs"]:
        names = row["unfused_differs"]
        found.append(f"ECHO_FUSE=0: {len(names)} arrays differ, such as {', '.join(names[:3])}")
    for setting in (COLD, WARM):
        found += _inexact(setting, row.get(setting, {}))
    return found


def _inexact(setting: str, figures: Mapping[str, Any]) -> list[str]:
    found = []
    for kind, tolerance in (("gradient", GRADIENT_TOLERANCE), ("loss", LOSS_TOLERANCE)):
        error, name = figures.get(kind, (0.0, ""))
        if not error <= tolerance:
            found.append(f"{setting}: {name} off by {error:.1e} of its largest element")
    if figures.get("random_differs"):
        found.append(f"{setting}: {', '.join(figures['random_differs'])} differ")
    return found


def words(row: Mapping[str, Any]) -> str:
    """The row in one line, and a line for each fault."""
    stock, parts = row[STOCK], [f"{row['project']}/{row['model']}:"]
    if "failure" in stock:
        return f"{parts[0]} FAILED without echo: {stock['failure']}"
    for name, figure, digits, settings in _FIGURES:
        found = [f"{row[one][figure]:.{digits}f}" for one in (STOCK, *settings) if figure in row.get(one, {})]
        parts.append(f"{name} {' -> '.join(found)} MB,")
    parts.append(
        f"{stock['processor_seconds']:.1f}"
        + "".join(f" -> {row[one]['processor_seconds']:.1f}" for one in (COLD, WARM) if "seconds" in row.get(one, {}))
        + " s,"
    )
    if "gradient" in row.get(COLD, {}):
        parts.append(f"gradients fused {row[COLD]['gradient'][0]:.0e}, losses {row[COLD]['loss'][0]:.0e}")
    lines = [" ".join(parts)]
    lines += [f"  FAULT {fault}" for fault in row["faults"]]
    if row["undefined"]:
        lines.append(f"  undefined in MXNet itself: {len(row['undefined'])} arrays, such as {row['undefined'][0]}")
    lines += [f"  {what} grows: {', '.join(row[key])}" for key, what in _GROWTHS.items() if row[key]]
    seen = dict.fromkeys(text for one in (UNFUSED, COLD, WARM) for text in row.get(one, {}).get("warnings", ()))
    lines += [f"  echo: {text}" for text in seen]
    return "\n".join(lines)
