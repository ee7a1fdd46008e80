"""``mxecho run`` against plain Python: the same output, exit code and traceback."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STATE = """
import atexit, pickle, sys
class Own: pass
atexit.register(lambda: print("at exit", pickle.loads(pickle.dumps(Own)) is Own))
names = {key: value for key, value in globals().items() if key in ("__name__", "__file__", "__package__", "__doc__")}
print(names, __spec__ and __spec__.name, sys.argv, sys.path[0], sys.modules["__main__"].Own is Own, sys.flags.safe_path)
x: int = 3
print(__annotations__)
"""
PROGRAMS = {
    "end": "",
    "error": "def broken():\n    raise ValueError('broken')\nbroken()\n",
    "chain": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('first') from error\n",
    "exit": "sys.exit(7)\n",
    "message": "sys.exit('a message')\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "syntax": "def broken(:\n",
    "hook": "sys.excepthook = lambda kind, error, at: print('hook', kind, at.tb_lineno)\n1 / 0\n",
    "thread": "import threading\nthreading.Thread(target=lambda: print(Own, x)).start()\n",
}


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    values = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False, cwd=cwd, env=values
    )


def seen(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_scripts_as_under_plain_python(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.py").write_text(STATE + PROGRAMS[name], encoding="utf-8")
    program = ("folder/train.py", "--lr", "0.1", "--policy", "x", "-m", "y")
    plain = python(*program, cwd=tmp_path)
    assert seen(python("-m", "echo", "run", *program, cwd=tmp_path)) == seen(plain)
    if name != "syntax":
        assert "at exit True" in plain.stdout


@pytest.mark.parametrize("name", ["module", "package", "folder", "archive", "compiled", "link", "isolated"])
def test_modules_folders_and_archives_run_as_under_plain_python(tmp_path: Path, name: str) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").write_text("import sys; print('imported', sys.argv)")
    for file in ("__main__.py", "train.py"):
        (tmp_path / "inner" / file).write_text(STATE, encoding="utf-8")
    (tmp_path / "link.py").symlink_to(tmp_path / "inner" / "train.py")
    py_compile.compile(str(tmp_path / "inner" / "train.py"), str(tmp_path / "train.pyc"))
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "inner")
    options, program = {
        "module": ((), ("-m", "inner.train", "--lr", "1")),
        "package": ((), ("-m", "inner", "-m", "x")),
        "folder": ((), ("inner", "a")),
        "archive": ((), ("packed.zip", "a")),
        "compiled": ((), ("train.pyc", "a")),
        "link": ((), ("link.py", "a")),
        "isolated": (("-I",), ("link.py", "a")),
    }[name]
    plain = python(*options, *program, cwd=tmp_path)
    found = python(*options, "-m", "echo", "run", "--strict", *program, cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert seen(found) == seen(plain)


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    for words in (["x.py"], ["-m", "x"]):
        (tmp_path / "gone").mkdir()
        run = [sys.executable, "-m", "echo", "run", *words]
        code = f"import os, subprocess; os.chdir('gone'); os.rmdir('../gone'); subprocess.run({run})"
        done = python("-c", code, cwd=tmp_path)
        (line,) = done.stderr.splitlines()
        assert line.startswith("mxecho run: ")
        assert "the working directory is gone" in line


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nowhere.py",), 2, "can't open file 'nowhere.py': [Errno 2] No such file or directory"),
        (("-m", "nowhere.train"), 1, "No module named nowhere"),
        ((), 2, "expected a script, or -m and a module"),
        (("-m",), 2, "expected a script, or -m and a module"),
        (("--strict",), 2, "expected a script, or -m and a module"),
        (("--max-overhead", "banana", "x.py"), 2, "--max-overhead: expected a fraction of the step"),
        (("--max-time", "banana", "x.py"), 2, "--max-time: expected a multiple of the step"),
        (("--heavy", "often", "x.py"), 2, "--heavy: expected 'auto' or 'never', got 'often'"),
        (("--memory-budget", "-3", "x.py"), 2, "--memory-budget: expected whole bytes"),
        (("--policy", "best", "x.py"), 2, "--policy: expected one of search, echo"),
    ],
)
def test_program_that_cannot_start_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = python("-m", "echo", "run", *arguments, cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"mxecho run: {message}")
    assert done.returncode == code
