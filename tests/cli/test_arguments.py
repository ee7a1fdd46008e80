"""Tests of `echo.cli.arguments`: words; usage."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Callable

import mxnet as mx
import pytest

from echo.cli import main
from echo.cli.arguments import check_folders, make_folder, options_of, print_json, say, shape_of, shapes_of
from echo.errors import OptionError


@pytest.mark.parametrize("text", ["x", "=2", "x=64,,784", "x=-1,2", "x=1e3", "x=2.5", "x=" + "9" * 5000])
def test_bad_shapes(text: str) -> None:
    with pytest.raises(OptionError, match="expected NAME=SHAPE such as data=128,50"):
        shape_of(text)


def test_shapes_are_parsed_and_unknown_arrays_refused() -> None:
    symbol = mx.sym.Group([mx.sym.var("data"), mx.sym.var("label"), mx.sym.var("scalar")])
    given = ["data=128,50", "label=(128,)", "scalar="]
    assert shapes_of(symbol, given) == {"data": (128, 50), "label": (128,), "scalar": ()}
    with pytest.raises(OptionError, match="data: expected one shape of it, got 2"):
        shapes_of(symbol, ["data=1", "label=2", "data=1"])
    with pytest.raises(OptionError, match=r"^lable: the symbol has no array of this name; did you mean label\?$"):
        shapes_of(symbol, ["lable=2"])
    with pytest.raises(OptionError, match="xyz: the symbol has no array of this name; expected some of data, label"):
        shapes_of(symbol, ["xyz=2"])
    with pytest.raises(OptionError) as caught:
        shape_of("x" * 10**6)
    assert len(str(caught.value)) < 300


def test_a_symbol_without_arrays_says_so() -> None:
    nothing = SimpleNamespace(list_arguments=list, list_auxiliary_states=list)
    with pytest.raises(OptionError, match=r"^xyz: the symbol has no array of this name; it has no arrays at all$"):
        shapes_of(nothing, ["xyz=2"])


def test_numbers_and_words() -> None:
    names = ("max_overhead", "max_time", "memory_budget", "max_planning")
    for words, values in {
        ("Auto", "none", "None", "10"): ("auto", None, None, 10.0),
        ("none", "1.0", "6GB", "none"): (None, 1.0, "6GB", None),
        ("0.05", "0.8", "0.5", "3"): (0.05, 0.8, 0.5, 3.0),
        ("auto", "none", "50%", "10"): ("auto", None, "50%", 10.0),
    }.items():
        assert options_of(dict(zip(names, words))) == dict(zip(names, values))
    assert options_of({"no_fuse": True, "exact": False, "keep": ["a", "b"], "policy": None}) == {
        "fuse": False,
        "keep": ["a", "b"],
    }
    for text in ("many", "nan"):
        with pytest.raises(OptionError, match=f"--max-overhead: expected a fraction .*, auto or none, got '{text}'"):
            options_of({"max_overhead": text})


@pytest.mark.parametrize("write", [say, print_json])
def test_full_standard_output_is_named(write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sys.stdout", Full())
    with pytest.raises(OSError, match="No space left on device: 'standard output'"):
        write("a plan")


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1, None]})
    assert json.loads(capsys.readouterr().out) == {"a": [1, None]}
    with pytest.raises(ValueError, match="JSON"):
        print_json(float("nan"))


def test_control_characters_are_printed_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    say("\x1b[2Jname\x07 é\t│\n\x9bend")
    assert capsys.readouterr().out == "\\x1b[2Jname\\x07 é\t│\n\\x9bend\n"


def test_folders_that_cannot_be_written_to_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_folders(None, "here.json", str(tmp_path / "there.json"))
    with pytest.raises(OptionError, match=f"there is no folder {tmp_path}/none"):
        check_folders(str(tmp_path / "none" / "plan.json"))
    with pytest.raises(OptionError, match=f"{tmp_path} cannot be written: it is a folder"):
        check_folders(str(tmp_path))
    for name in ("", "-"):
        with pytest.raises(OptionError, match=f"expected the name of a file, got '{name}'"):
            check_folders(name)
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"--dump: expected a folder to write to, got '.*/file': File exists"):
        make_folder("--dump", str(tmp_path / "file"))
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))  # root may write everywhere
    with pytest.raises(OptionError, match=f"nothing may be written into {tmp_path}"):
        check_folders(str(tmp_path / "plan.json"))


def test_borders_are_ascii_where_the_output_lacks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", out)
    say("┏━┳━┓\n┃ é │ b ┃")
    assert out.buffer.getvalue() == b"+-+-+\n| \\xe9 | b |\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", ["verify", "run", "plan", "record"])
def test_an_option_without_its_value(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    option = "--out" if command == "record" else "--policy"
    assert main.main([command, option]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"Usage: mxecho {command} ")
    assert f"Option '{option}' requires an argument." in said
