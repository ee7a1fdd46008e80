"""How long does a process wait for the driver's compiler before CUDA kernels run? NVIDIA's assembler stands for it.

    python -m benchmarks.first_use

The driver compiles each kernel when it is first launched. This gives ptxas all kernels, and those that a training step
of the translation model launches, for each GPU that a ptxas here knows, and counts seconds of the processor: the least
of three runs. Writes results/first_use.json.
"""

from __future__ import annotations

import resource
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Sequence

from benchmarks.record import parser, save
from tests.support import ptx

# The kernels that `nmt` loads if the process has a cuBLAS (tests/fake_gpu/test_loading.py), and if it has none.
NMT = (
    "bias_act_grad_f32", "lstm_back_steps_f32", "lstm_cell_f32", "lstm_cell_grad_f32", "lstm_cells_f32",
    "lstm_steps_f32", "mlp_score_f32", "mlp_score_grad_columns_f32", "put_biases_f32", "softmax_output_db_f32",
    "softmax_output_ds_f32", "softmax_output_f32", "softmax_output_labels_f32", "sum_rows_f32", "weighted_sum_f32",
    "weighted_sum_grad_f32",
)  # fmt: skip
TILES = ("gemm_gates_small_f32", "gemm_inputs_big_f32", "gemm_weights_small_f32")


def seconds(ptxas: str, architecture: str, text: str) -> float:
    """Of the processor, to assemble this."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernels.ptx"
        source.write_text(text)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([ptxas, f"-arch={architecture}", str(source), "-o", str(source) + ".cubin"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def only(names: Sequence[str]) -> str:
    """The PTX of these kernels alone.

    Raises:
        LookupError: there is no such kernel.
    """
    if missing := sorted(set(names) - set(ptx.kernels())):
        raise LookupError(f"there is no kernel {', '.join(missing)}")
    return ptx.joined(names)


def main() -> None:
    parser(__doc__).parse_args()
    everything = only(list(ptx.kernels()))
    texts = {"all": everything, "nmt": only(NMT), "without cuBLAS": only(NMT + TILES), "probe": only(["sum_rows_f32"])}
    rows = []
    for architecture, ptxas in ptx.assemblers().items():
        row: dict[str, Any] = {"architecture": architecture}
        for what, text in texts.items():
            row[what] = round(min(seconds(ptxas, architecture, text) for _ in range(3)), 3)
        print(row, flush=True)
        rows.append(row)
    print("written:", save("first_use", rows).name)


if __name__ == "__main__":
    main()
