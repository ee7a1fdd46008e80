"""The tables of the GPU's results: LSTM layers, losses over large vocabularies, attention, and energy."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator

from benchmarks.paper.tables import table

Row = Dict[str, Any]
COMMAND = "make gpu-check"
_STEPS = 50  # of the layers that are shown


def _rows(result: dict[str, Any], section: str) -> Iterator[Row]:
    return (row for row in result["rows"] if row["section"] == section and "left_out" not in row)


def _ms(row: Row, name: str) -> str:
    return f"{row[name]:.2f}" if name in row else ""


def layers_table(result: dict[str, Any]) -> str:
    """Milliseconds of a training step of one LSTM layer of 50 steps, by echo, cuDNN, and unfused."""
    rows = (row for row in _rows(result, "layer") if row["T"] == _STEPS)
    order = sorted(rows, key=lambda row: (row["dtype"] != "float32", row["H"], row["B"]))
    return table(
        "LSTM layer | echo, ms | cuDNN | cuDNN with TF32 | unfused",
        (
            [f"{row['dtype']}, {row['H']} units, batch {row['B']}"]
            + [_ms(row, name) for name in ("ours_ms", "cudnn_ms", "cudnn_tf32_ms", "unfused_ms")]
            for row in order
        ),
    )


def losses_table(result: dict[str, Any]) -> str:
    """Milliseconds and MB of a training step of a loss over a vocabulary, by echo and by torch."""
    rows = [row for row in _rows(result, "loss") if row["rows"] == 4096]
    return table(
        "loss of 4,096 rows | echo, ms | torch, ms | echo, MB | torch, MB",
        (
            [f"{row['dtype']}, {row['inputs']} inputs, {row['classes']:,} classes"]
            + [f"{row[name] / 1e3:.2f}" for name in ("ours_step_us", "eager_step_us")]
            + [f"{row[name]:.0f}" for name in ("ours_mb", "eager_mb")]
            for row in sorted(rows, key=lambda row: (row["dtype"] != "float32", row["inputs"], row["classes"]))
        ),
    )


def attention_table(result: dict[str, Any]) -> str:
    """Milliseconds of a training step of dot attention, by echo, by torch's fused attention, and by torch eager."""
    return table(
        "attention | echo, ms | torch SDPA | torch eager",
        (
            [f"{row['dtype']}, {row['N']} x {row['T']} queries and keys of {row['D']}"]
            + [f"{row[name] / 1e3:.2f}" for name in ("step_us", "sdpa_step_us", "eager_step_us")]
            for row in _rows(result, "attention")
        ),
    )


def energy_table(result: dict[str, Any]) -> str:
    """Joules of a training step of one LSTM layer, from the counter of the GPU."""
    forms = {"ours": "echo", "cudnn": "cuDNN", "unfused": "unfused"}
    return table(
        "LSTM layer, float32, 512 units, batch 64, 50 steps | joules a step | ms | watts",
        (
            [forms[row["form"]], f"{row['step_joules']:.2f}", f"{row['step_ms']:.2f}", f"{row['watts']:.0f}"]
            for row in _rows(result, "energy")
            if "form" in row
        ),
    )


TABLES: dict[str, tuple[Callable[[dict[str, Any]], str], str, str]] = {
    "gpu_layers": (layers_table, "gpu_check", COMMAND),
    "gpu_losses": (losses_table, "gpu_check", COMMAND),
    "gpu_attention": (attention_table, "gpu_check", COMMAND),
    "gpu_energy": (energy_table, "gpu_check", COMMAND),
}
