"""Complaints about the words of a command, each with its usage."""

from __future__ import annotations

import pytest

from echo.cli import main


@pytest.mark.parametrize("command", ["verify", "run", "plan", "record"])
def test_an_option_without_its_value(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    option = "--out" if command == "record" else "--policy"
    assert main.main([command, option]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"Usage: mxecho {command} ")
    assert f"Option '{option}' requires an argument." in said
