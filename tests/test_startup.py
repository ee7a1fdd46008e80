"""The watcher for the import of mxnet: programs that ask for mxnet in odd ways, and what cannot be activated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from echo import startup

REAL = "import mxnet; from mxnet.symbol import Symbol; print(hasattr(Symbol.simple_bind, '__wrapped__'))"


def run(script: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    values = {key: value for key, value in os.environ.items() if not key.startswith("ECHO")}
    values.update({"ECHO": "1", "ECHO_CACHE_DIR": str(tmp_path / "cache"), **environment})
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=120, check=True,
        cwd=tmp_path, env=values,
    )  # fmt: skip


def fake_mxnet(folder: Path, text: str) -> None:
    (folder / "mxnet").mkdir()
    (folder / "mxnet" / "__init__.py").write_text(text)


@pytest.mark.slow
def test_asking_whether_mxnet_is_there_changes_nothing(tmp_path: Path) -> None:
    ask = "import importlib.util as u; found = u.find_spec('mxnet'); assert found and found.loader;"
    done = run(ask + "import sys; assert 'mxnet' not in sys.modules and 'echo' not in sys.modules\n" + REAL, tmp_path)
    assert done.stdout.strip() == "True"
    assert done.stderr == ""


def test_an_import_that_fails_is_watched_again(tmp_path: Path) -> None:
    fake_mxnet(tmp_path, "raise ImportError('libgomp.so.1 is missing')\n")
    script = (
        "import sys\ntry:\n import mxnet\nexcept ImportError as error:\n print(error)\n"
        f"sys.path.remove('')\nsys.path_importer_cache.clear()\n{REAL}"
    )
    assert run(script, tmp_path).stdout.split("\n")[:2] == ["libgomp.so.1 is missing", "True"]


@pytest.mark.parametrize("version", ["1.8.0", "2.0.0b1", ""])
def test_another_mxnet_is_left_alone(tmp_path: Path, version: str) -> None:
    fake_mxnet(tmp_path, f"__version__ = {version!r}\n" if version else "")
    done = run("import sys, mxnet; print(len(sys.modules) > 0, sorted(vars(mxnet))[:1])", tmp_path)
    assert done.stdout.startswith("True")
    (line,) = done.stderr.splitlines()
    assert line == f"echo: not active: expected mxnet 1.9.1, got {version or 'unknown'}"


def test_strict_stops_the_import_of_another_mxnet(tmp_path: Path) -> None:
    fake_mxnet(tmp_path, "__version__ = '1.8.0'\n")
    script = "try:\n import mxnet\nexcept Exception as error:\n print(type(error).__name__, error)"
    done = run(script, tmp_path, ECHO_STRICT="1")
    assert done.stdout.strip() == "UnsupportedError expected mxnet 1.9.1, got 1.8.0"
    assert done.stderr == ""


def test_a_folder_named_mxnet_is_no_mxnet(tmp_path: Path) -> None:
    (tmp_path / "mxnet").mkdir()
    script = "import sys; sys.path[:] = ['', *[p for p in sys.path if 'site-packages' not in p]]; import mxnet"
    assert run(script, tmp_path).stderr == ""


@pytest.mark.slow
def test_foreign_module_named_echo(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text("def say(): print('mine')\n")
    installed = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__]\n"
    done = run(installed + "import mxnet, echo; echo.say()", tmp_path)  # an editable install would come first
    assert done.stdout.strip() == "mine"
    (line,) = done.stderr.splitlines()
    assert line == f"echo: not active: `import echo` finds another module of this name, {tmp_path / 'echo.py'}"


OWN_ECHO = "open('ran', 'w').close()\nraise SystemExit('usage: echo.py TEXT')\n"
AS_A_WHEEL = (  # of an editable install the package would come first
    "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__]\n"
)


@pytest.mark.every(2)
@pytest.mark.parametrize("before", [AS_A_WHEEL, ""], ids=["wheel", "editable"])
def test_own_echo_py_that_is_not_imported_never_runs(tmp_path: Path, before: str) -> None:
    (tmp_path / "echo.py").write_text(OWN_ECHO)
    (tmp_path / "train.py").write_text(
        before + "import mxnet as mx\nprint('trained', mx.nd.ones((2,)).sum().asscalar())"
    )
    values = {**os.environ, "ECHO": "1", "ECHO_RECORD": str(tmp_path / "rows.csv"), "ECHO_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "train.py"], cwd=tmp_path, env=values, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "trained 2.0"
    assert not (tmp_path / "ran").exists()
    lines = done.stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == (["not active", "nothing is recorded"] if before else [])
    assert all(str(tmp_path / "echo.py") in line for line in lines)


@pytest.mark.every(3)
@pytest.mark.parametrize("ending", ["import mxnet", "import echo, mxnet", "import mxnet, echo"])
def test_echo_set_in_the_script_switches_it_on(tmp_path: Path, ending: str) -> None:
    script = f"import os; os.environ['ECHO'] = '1'; {ending}\n{REAL}"
    assert run(script, tmp_path, ECHO="0").stdout.strip() == "True"


@pytest.mark.slow
def test_echo_set_after_mxnet_is_read_when_echo_is_imported(tmp_path: Path) -> None:
    script = f"import mxnet, os; os.environ['ECHO'] = '1'; import echo\n{REAL}"
    assert run(script, tmp_path, ECHO="0").stdout.strip() == "True"


def test_echo_cleared_in_the_script_leaves_mxnet_alone(tmp_path: Path) -> None:
    done = run(
        f"import os; os.environ['ECHO'] = '0'; import sys, mxnet; print('echo' in sys.modules)\n{REAL}", tmp_path
    )
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.slow
def test_record_set_in_the_script_is_wrapped_once(tmp_path: Path) -> None:
    script = (
        "import os; os.environ['ECHO_RECORD'] = 'rows.csv'\nimport echo, mxnet; import echo\n"
        "update = mxnet.gluon.Trainer.update; print(hasattr(update, '__wrapped__'), "
        "hasattr(update.__wrapped__, '__wrapped__'))"
    )
    assert run(script, tmp_path, ECHO="0").stdout.split() == ["True", "False"]


@pytest.mark.slow
def test_finder_that_was_put_in_twice_activates_once(tmp_path: Path) -> None:
    again = "import sys, sysconfig, site; site.addpackage(sysconfig.get_path('purelib'), 'echo_startup.pth', set())\n"
    done = run(again + REAL + "\nprint(sum(hasattr(f, 'is_echo_watcher') for f in sys.meta_path))", tmp_path)
    assert done.stdout.split() == ["True", "0"]
    assert done.stderr == ""


@pytest.mark.slow
def test_a_wrong_option_is_one_line(tmp_path: Path) -> None:
    for variable, text in {"ECHO_MAX_OVERHEAD": "banana", "ECHO_POLICY": "banana"}.items():
        done = run(REAL, tmp_path, **{variable: text})
        assert done.stdout.strip() == "False", "bound as by MXNet itself"
        (line,) = done.stderr.splitlines()
        assert line.startswith("echo: not active:")
        assert text in line


def test_closed_standard_error_leaves_the_output_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ECHO", "perhaps")
    monkeypatch.setattr(sys, "stderr", None)
    startup._wishes()
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_one_watcher_for_all(tmp_path: Path) -> None:
    script = (
        "import sys, echo, echo.compat, echo.startup; echo.startup.watch(True)\n"
        "print(sum(hasattr(finder, 'is_echo_watcher') for finder in sys.meta_path))\n"
        f"{REAL}\nprint(sum(hasattr(finder, 'is_echo_watcher') for finder in sys.meta_path))"
    )
    assert run(script, tmp_path).stdout.split() == ["1", "True", "0"]


@pytest.mark.slow
def test_watching_late_activates_at_once(tmp_path: Path) -> None:
    late = "import mxnet; from echo import startup; startup.watch(True);" + REAL
    done = run(late, tmp_path, ECHO="0")
    assert done.stdout.strip() == "True"


def test_the_programs_own_logging_stays(tmp_path: Path) -> None:
    script = (
        "import logging, mxnet\nlog = logging.getLogger('echo')\nlog.info('first')\n"
        "print(logging.getLogger().handlers)\n"
        "logging.basicConfig(format='own %(message)s'); log.info('second')"
    )
    done = run(script, tmp_path, ECHO_LOG="banana")
    assert done.stdout.strip() == "[]"
    warning, *others = done.stderr.splitlines()
    assert warning == "echo: ECHO_LOG: expected a level such as INFO, which it is now, got 'banana'"
    assert others == ["first", "own second"]


@pytest.mark.slow
def test_log_to_an_exchanged_stderr_is_no_error(tmp_path: Path) -> None:
    """What was there at the import is closed; then that, and nothing at all, is there for a message."""
    script = (
        "import io, sys\nsys.stderr = swapped = io.StringIO()\nimport mxnet as mx\nsys.stderr = sys.__stderr__\n"
        "swapped.close()\nimport logging; info = logging.getLogger('echo').info\ninfo('said')\n"
        "for sys.stderr in (swapped, None):\n info('not said')\nsys.stderr = sys.__stderr__\ninfo('said again')\n"
    )
    assert run(script, tmp_path, ECHO_LOG="INFO").stderr == "said\nsaid again\n"
