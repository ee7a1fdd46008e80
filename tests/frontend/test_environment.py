"""Variables of the environment, changed for a while; `test_match_range.py` tests threads and children."""

from __future__ import annotations

import os

import pytest

from echo.frontend.environment import changed_variable


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_has_all_variables_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST", "1")
    monkeypatch.delenv("SECOND", raising=False)
    with changed_variable("FIRST", "2"), changed_variable("SECOND", "3"), changed_variable("FIRST", "4"):
        child = os.fork()
        if not child:
            os._exit(int(os.environ["FIRST"]) + 10 * ("SECOND" in os.environ))
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 1
        assert (os.environ["FIRST"], os.environ["SECOND"]) == ("4", "3")
    assert (os.environ["FIRST"], os.environ.get("SECOND")) == ("1", None)
