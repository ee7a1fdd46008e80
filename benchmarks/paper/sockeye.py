"""The papers' translation models as Sockeye itself builds them: the symbol that its training binds, at full size.

    make .projects/sockeye_1/.installed
    python -m benchmarks.paper.sockeye

prints what stock MXNet plans for each setting. Sockeye 1.18 (the last version for Module) gets the sizes of `nmt` on
its own command line; other options stay as they are there: dropout of 0.2 after the decoder's hidden layer,
masks by the lengths of sentences, and the decoder's first states computed from the encoder's last ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import mxnet as mx

from benchmarks.models import Model, planned_mb
from benchmarks.paper.nmt import SETTINGS, SOURCE_WORDS, TARGET_WORDS, Setting
from benchmarks.record import parser
from projects import settings

_PROJECT = "sockeye_1"
_TEXT = "text"  # Sockeye asks for sentences, which its symbol does not depend on


def model(name: str, setting: Setting) -> Model:
    """The training symbol: `source` (batch, steps, 1), `target` and `target_label` (batch, steps) token ids.

    Raises `FileNotFoundError` where Sockeye is not installed, and `RuntimeError` where it fails.
    """
    if not is_installed():
        raise FileNotFoundError("expected Sockeye in .projects/sockeye_1: run `make .projects/sockeye_1/.installed`")
    with tempfile.TemporaryDirectory() as folder:
        _run(setting, Path(folder))
        symbol = mx.sym.load(str(Path(folder) / "symbol.json"))
    batch, steps = setting.batch, setting.steps
    shapes = {"source": (batch, steps, 1), "target": (batch, steps), "target_label": (batch, steps)}
    limits = {"source": SOURCE_WORDS, "target": TARGET_WORDS, "target_label": TARGET_WORDS}
    return Model(name, symbol, shapes, limits=limits)


def is_installed() -> bool:
    """Whether `make` has put Sockeye where the child finds it."""
    return (settings.PACKAGES / _PROJECT / "sockeye").is_dir()


def options(setting: Setting) -> list[str]:
    """The arguments of ``sockeye.train`` that name the sizes of a setting."""
    hidden, layers, embedded, steps = setting.hidden, setting.layers, setting.embedded, setting.steps
    sizes = f"--num-layers {layers}:{layers} --rnn-num-hidden {hidden} --num-embed {embedded}:{embedded}"
    attention = f"--rnn-attention-type mlp --rnn-attention-num-hidden {setting.attention}"
    norm = "--layer-normalization" if setting.normed else ""
    files = " ".join(f"--{name} {_TEXT}" for name in ("source", "target", "validation-source", "validation-target"))
    model = f"--encoder rnn --decoder rnn {sizes} {attention} {norm} --max-seq-len {steps}"
    return f"{model} {files} --output out --use-cpu".split()


def _run(setting: Setting, folder: Path) -> None:
    """Sockeye in a process of its own, which leaves ``symbol.json`` in a folder."""
    variables = {**os.environ, "ECHO": "0", "PYTHONPATH": settings.python_path(_PROJECT)}
    (folder / _TEXT).touch()
    words = [str(SOURCE_WORDS), str(TARGET_WORDS)]
    command = [sys.executable, "-m", "benchmarks.paper.sockeye_symbol", str(folder), *words, *options(setting)]
    done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Sockeye ended with {done.returncode}: {done.stderr.strip()[-500:]}")


def main() -> None:
    """Prints what stock MXNet plans for each setting."""
    parser(__doc__).parse_args()
    for name, setting in SETTINGS.items():
        print(f"{name:10} {planned_mb(model(name, setting)):6} MB planned by stock MXNet", flush=True)


if __name__ == "__main__":
    main()
