"""What holds the memory of a training step, and how much of what the process sees is accounted for?

    python -m benchmarks.memory_profile [MODEL ...]

Each model is profiled without a bound on time, next to MXNet's own recomputation, and run. Writes
results/memory_profile.json, and pictures of the translation model, results/nmt_memory.svg and results/nmt_steps.svg.
"""

from __future__ import annotations

import echo
from benchmarks.models import MODELS
from benchmarks.record import RESULTS, asked, known_rows, parser, save
from echo.report import pages
from echo.report.usage import layer_by

DEFAULT = ("nmt", "lm", "resnet50_v2")
LAYERS = r"^(attention|encoder|decoder|logits|softmax|source_embedding|target_embedding|feed)"
PICTURED, TITLE = "nmt", "A translation model (LSTM, attention, batch 64): what holds the memory of a training step"


def measure(name: str) -> dict[str, object]:
    """Profiles one model, and draws it where it is the one for the README."""
    model = MODELS[name]()
    profile = echo.profile(model.symbol, compare=("echo", "mirror"), run=True, max_overhead=None, **model.shapes)
    if name == PICTURED:
        pages.save_picture(profile, RESULTS / "nmt_memory.svg", TITLE, layer_by(LAYERS))
        pages.save_over_step(profile, RESULTS / "nmt_steps.svg", "The same model: memory over a training step")
    graphs = {
        graph: {"total": usage.total, "planned": usage.planned, "by_kind": dict(usage.by_kind),
                "measured": dict(usage.measured), "unaccounted": usage.unaccounted}
        for graph, usage in profile.usages.items()
    }  # fmt: skip
    return {"model": name, "graphs": graphs}


def main() -> None:
    """Profiles the models named on the command line."""
    models = asked(parser(__doc__, *MODELS).parse_args().names or DEFAULT, MODELS)
    rows = [row for row in known_rows("memory_profile") if row["model"] not in models]
    for name in models:
        row = measure(name)
        rows.append(row)
        for graph, found in row["graphs"].items():  # type: ignore[attr-defined]
            share = 100 * found["unaccounted"] / (found["total"] + found["unaccounted"])
            print(f"{name}, {graph}: {found['total'] / 1e6:.1f} MB, of the process's growth {share:+.1f} % besides")
        path = save("memory_profile", rows)
    print("written:", path.name)


if __name__ == "__main__":
    main()
