"""ECHO=1 leaves a fork server clean that a program starts before it imports mxnet, as Sockeye does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, sys

def loaded():
    return sorted({name.split(".")[0] for name in sys.modules} & {"echo", "mxnet"})

def clean():
    assert loaded() == [], loaded()

def active():
    clean()
    import mxnet
    assert mxnet.symbol.Symbol.simple_bind.__code__.co_filename.endswith("transparent.py")

def in_child(target):
    process = multiprocessing.get_context("forkserver").Process(target=target)
    process.start()
    process.join()
    assert process.exitcode == 0, f"{target.__name__} ended with {process.exitcode}"

if __name__ == "__main__":
    in_child(clean)
    assert loaded() == [], loaded()
    import mxnet
    assert mxnet.symbol.Symbol.simple_bind.__code__.co_filename.endswith("transparent.py")
    in_child(active)
    print("fine")
"""


@pytest.mark.slow
def test_a_fork_server_from_before_mxnet_is_clean(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SCRIPT, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)], capture_output=True, text=True, timeout=120, check=False,
        cwd=tmp_path, env={**environment, "ECHO": "1", "ECHO_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "fine"
