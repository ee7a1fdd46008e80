"""The ``ECHO_*`` variables: how each is read, and what is said of a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from echo.errors import OptionError
from echo.plans.options import Options
from echo.plans.variables import (
    DEBUG_VARIABLE,
    RENAMED,
    VARIABLE_OF,
    VARIABLES,
    Debug,
    debug,
    escaped,
    misspelt,
    options_from,
)

ROOT = Path(__file__).resolve().parents[2]


def test_options_from_the_environment() -> None:
    given = {"ECHO_POLICY": "echo", "ECHO_MAX_OVERHEAD": "none", "ECHO_MEMORY_BUDGET": "0.5", "ECHO_STRICT": "1"}
    assert options_from(given) == Options(policy="echo", max_overhead=None, memory_budget=0.5, strict=True)
    assert options_from({"HOME": "x", "ECHO": "1"}) == Options()
    assert options_from({"ECHO_MEMORY_BUDGET": "6GB"}).memory_budget == "6GB"


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("ECHO_MAX_OVERHEAD", "much"),
        ("ECHO_STRICT", "perhaps"),
        ("ECHO_MEMORY_BUDGET", "abc"),
        ("ECHO_FUSE", "2"),
        ("ECHO_MAX_OVERHEAD", "-1"),
        ("ECHO_POLICY", "best"),
        ("ECHO_PLAN", ":::"),
        ("ECHO_OPTIMIZER_STATES", "99"),
        ("ECHO_DEBUG", "dump=folder,lr=0.1"),
        ("ECHO_MAX_TIME", "nan"),
        ("ECHO_MAX_PLANNING", "-1"),
        ("ECHO_KEEP", ","),
        ("ECHO_MEMORY_BUDGET", "\N{FULLWIDTH DIGIT SIX}GB"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, text: str) -> None:
    with pytest.raises(OptionError, match=f"^{variable}: expected "):
        options_from({variable: text})


@pytest.mark.parametrize("variable", sorted(VARIABLE_OF.values()))
def test_empty_variable_means_the_default(variable: str) -> None:
    assert options_from({variable: " "}) == Options()


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("ECHO_POLICY", "Mincut", "mincut"),
        ("ECHO_HEAVY", "NEVER", "never"),
        ("ECHO_MAX_OVERHEAD", "NONE", None),
        ("ECHO_MEMORY_BUDGET", "None", None),
        ("ECHO_MEMORY_BUDGET", "1e99", 1e99),
    ],
)
def test_words_are_read_in_any_case(variable: str, text: str, value: object) -> None:
    options = options_from({variable: text})
    assert getattr(options, VARIABLES[variable][0]) == value


@pytest.mark.parametrize(("variable", "text"), [("ECHO_MEMORY_BUDGET", "0"), ("ECHO_MAX_TIME", "nan")])
def test_wrong_number_is_told_as_it_was_written(variable: str, text: str) -> None:
    with pytest.raises(OptionError, match=f"got '{text}'$") as raised:
        options_from({variable: text})
    assert "None" not in str(raised.value)


def test_the_reference_has_a_row_for_every_variable() -> None:
    text = (ROOT / "docs" / "reference" / "options.md").read_text(encoding="utf-8")
    table = text.split("| variable | default | meaning |\n")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `(ECHO\w*)` \| ?(?:`(\w+)`)? ?\|", table, re.MULTILINE))
    assert list(rows) == list(VARIABLES)
    paths = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    documents = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert set(re.findall(r"\bECHO_[A-Z_]+\b", documents)) <= set(VARIABLES)
    assert options_from({name: default for name, default in rows.items() if default}) == Options()


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("off", False), ("", True), ("memory", "memory"), (" Memory ", "memory")]
)
def test_fuse_by_variable(text: str, value: bool | str) -> None:
    assert options_from({"ECHO_FUSE": text}).fuse == value


@pytest.mark.parametrize("text", ["memories", "2", "none"])
def test_fuse_by_a_bad_variable(text: str) -> None:
    with pytest.raises(OptionError, match=rf"ECHO_FUSE: expected memory, or one of 1, true, .*, got '{text}'"):
        options_from({"ECHO_FUSE": text})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", Debug()),
        ("check", Debug(check=True)),
        (" check , dump=a folder,", Debug(check=True, dump="a folder")),
        (f"dump={escaped('a,b, c')},check", Debug(check=True, dump="a,b, c")),
        ("level=AVX2,cublas=0", Debug(level="avx2", cublas=False)),
        ("cublas=1", Debug()),
    ],
)
def test_debug_words_are_read(text: str, found: Debug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEBUG_VARIABLE, text)
    assert debug() == found


@pytest.mark.parametrize("word", ["chek", "check=1", "dump", "dump=", "level=sse", "cublas=off", "cublas"])
def test_unknown_debug_word_is_named(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEBUG_VARIABLE, f"check,{word}")
    with pytest.raises(OptionError, match=f"^ECHO_DEBUG: expected dump=FOLDER, check, .*, got '{word}'"):
        debug()


@pytest.mark.parametrize("name", RENAMED)
def test_old_variable_raises_error_that_names_the_new_one(name: str) -> None:
    with pytest.raises(OptionError, match=f"^{name}: this variable is now ECHO_DEBUG="):
        options_from({name: "1"})
    assert misspelt({name: "1"}) == [f"{name} changes nothing: it is now {RENAMED[name]}"]
    assert options_from({name: ""}) == Options()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ECHO_BUDGET", "ECHO_MEMORY_BUDGET"),
        ("ECHO_OVERHEAD", "ECHO_MAX_OVERHEAD"),
        ("ECHO_MEMRY_BUDGET", "ECHO_MEMORY_BUDGET"),
    ],
)
def test_variable_with_a_word_left_out_is_told_the_one_that_has_it(name: str, meant: str) -> None:
    assert misspelt({name: "1"}) == [f"{name} is no variable of echo's and changes nothing: did you mean {meant}?"]


def test_variable_unlike_all_of_echos_is_another_programs() -> None:
    assert misspelt({"ECHO_FOO": "1"}) == []


def test_plan_of_another_version_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "old.json").write_text('{"digest": "", "format": "echo-plan-7"}')
    assert options_from({"ECHO_PLAN": str(tmp_path / "old.json")}).plans == ()
    assert "got 'echo-plan-7' of another version of echo: a new plan is made" in caplog.text


def test_bounds_may_be_in_per_cent() -> None:
    given = {"ECHO_MAX_OVERHEAD": "25%", "ECHO_MAX_TIME": "110%"}
    assert options_from(given) == Options(max_overhead=0.25, max_time=1.1)
    with pytest.raises(OptionError, match="expected seconds above 0"):
        options_from({"ECHO_MAX_PLANNING": "10%"})
