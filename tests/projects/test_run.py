"""Results are read from a child's log; the variables under which it runs."""

from pathlib import Path

import pytest

from projects.run import _death, _warnings, planned
from projects.settings import COLD, STOCK, UNFUSED, environment

LOG = """\
[INFO:echo] echo: 9 MB -> 3 MB planned (-69 %), +3.4 % time, 486 feature maps recomputed
echo: 38 MB and 2 MB hidden -> 13 MB planned (-60 %), +1.0 % time, 4 feature maps recomputed
echo: bound without a plan: EchoError: why
echo: bound without a plan: EchoError: why
"""


def test_the_largest_plan_is_found() -> None:
    assert planned(LOG) == (38, 13)


def test_no_plan_is_none() -> None:
    assert planned("loss 3.0\n") is None


def test_a_warning_is_told_once() -> None:
    assert _warnings(LOG) == ("bound without a plan: EchoError: why",)


def test_death_by_signal_tells_the_innermost_functions() -> None:
    log = 'Fatal\n  File "/x/echo/runtime/measure.py", line 7 in _timed\n  File "/x/a/b.py", line 9 in main\n'
    assert _death(-8, log) == "SIGFPE in runtime/measure.py:7 _timed, a/b.py:9 main"


def test_death_by_exception_tells_its_last_line() -> None:
    assert _death(1, "Traceback\n  File\nValueError: no\n\n") == "ValueError: no"


@pytest.mark.parametrize(("setting", "echo", "fuse"), [(STOCK, "0", None), (UNFUSED, "1", "0"), (COLD, "1", None)])
def test_a_child_has_the_variables_of_its_setting(
    monkeypatch: pytest.MonkeyPatch, setting: str, echo: str, fuse: "str | None"
) -> None:
    monkeypatch.setenv("ECHO_FUSE", "lstm")
    monkeypatch.setenv("MXNET_BACKWARD_DO_MIRROR", "1")
    found = environment("gluon_nlp", setting, Path("cache"))
    assert (found["ECHO"], found.get("ECHO_FUSE"), "MXNET_BACKWARD_DO_MIRROR" in found) == (echo, fuse, False)
