"""Models in files, and lines that the command line says, for the tests of commands."""

from __future__ import annotations

from pathlib import Path

import mxnet as mx
import pytest

from echo.cli import main

SAVED = (
    '{"nodes":[{"op":"null","name":"x","inputs":[]},{"op":"tanh","name":"t","inputs":[[0,0,0]]}],'
    '"arg_nodes":[0],"heads":[[1,0,0]]}'
)
SHAPES = ("data=64,256", "loss_label=64")


def network(folder: Path) -> str:
    """A file with six layers of which echo recomputes something, to be trained with `SHAPES`."""
    hidden = mx.sym.var("data")
    with mx.name.NameManager():
        for layer in range(6):
            hidden = mx.sym.FullyConnected(hidden, num_hidden=256, name=f"fc{layer}")
            hidden = mx.sym.LayerNorm(mx.sym.tanh(hidden, name=f"tanh{layer}"))
        path = folder / "net-symbol.json"
        mx.sym.SoftmaxOutput(hidden, name="loss").save(str(path))
    return str(path)


def check_line(words: list[str], capsys: pytest.CaptureFixture[str], status: int = 1) -> str:
    """Runs a command that has to fail with one line on standard error, which is returned, and this exit status."""
    assert main.main(words) == status
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(("echo: planning", "["))]
    assert len(lines) == 1
    assert lines[0].startswith("mxecho: ")
    assert len(lines[0]) < 1100
    return lines[0]
