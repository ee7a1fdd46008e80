"""Files that a user names are regular ones of a bounded size, and JSON has one meaning."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable

import pytest

from echo.estimators.cost_table import CostTable
from echo.system import files
from echo.system.files import (
    OTHERS,
    PLANS,
    TIMES,
    UntrustedError,
    cached_files,
    delete,
    digest_of,
    open_regular,
    read,
    read_json,
    read_own,
    shortened,
)
from echo.system.threads import ONCE


def test_irregular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        for name, got in (("fifo", "a FIFO"), ("folder", "a directory"), ("socket", "")):
            with pytest.raises(UntrustedError, match=f"expected a regular file.*{got}"):
                open_regular(tmp_path / name, os.O_RDONLY)
    with pytest.raises(UntrustedError, match="a device"):
        open_regular("/dev/null", os.O_RDONLY)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing", os.O_RDONLY)


def test_links_are_followed_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_json(tmp_path / "link") == 1
    with pytest.raises(UntrustedError, match="got a symbolic link"):
        open_regular(tmp_path / "link", os.O_RDONLY, links=False)
    with pytest.raises(UntrustedError, match="got a symbolic link"):
        read_own(tmp_path / "link", 10)


def test_ones_own_file_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    path.chmod(0o600)
    assert read_own(path, 5) == b"12345"
    with pytest.raises(UntrustedError, match="expected at most 4 bytes"):
        read_own(path, 4)
    path.chmod(0o620)
    with pytest.raises(UntrustedError, match="others can write to it \\(mode 620\\)"):
        read_own(path, 5)


@pytest.mark.parametrize("value", [{"a": [1, 2.5, -3], "b": {"c": None}}, [], "text", 2**62])
def test_json_there_and_back(value: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(json.dumps(value), encoding="utf-8")
    assert read_json(tmp_path / "file") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' stands in an object twice"),
        ("[NaN]", "expected finite numbers, got NaN"),
        ("[-Infinity]", "expected finite numbers, got -Infinity"),
        ("[1e999]", "expected finite numbers, got 1e999"),
        ("1" * 20, "expected numbers of at most 19 digits, got 1"),
        ("-" + "1" * 20, "expected numbers of at most 19 digits, got -1"),
        ("[" * 100_000, "it is nested too deeply"),
        ('"a\nb"', "control character"),
        (r'["\ud83d\ude00 and \ud800"]', "expected texts of whole characters, got half of one, '.ud800'"),
        (r'{"\uDFFF": 1}', "expected texts of whole characters, got half of one, '.udfff'"),
    ],
)
def test_json_that_could_mean_something_else(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "file")


def test_escaped_characters_beyond_16_bits(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(r'["\ud83d\ude00"]', encoding="utf-8")
    assert read_json(tmp_path / "file") == ["\U0001f600"]


def test_control_characters_in_texts_of_mxnet(tmp_path: Path) -> None:
    (tmp_path / "file").write_text('"a\nb"', encoding="utf-8")
    assert read_json(tmp_path / "file", strict=False) == "a\nb"


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_BYTES", 3)
    (tmp_path / "file").write_text("1234")
    with pytest.raises(UntrustedError, match="expected at most 3 bytes"):
        read_json(tmp_path / "file")


def test_digests_tell_purposes_and_contents_apart() -> None:
    assert digest_of("a", b"content") == digest_of("a", b"content")
    pairs = [("a", b"content"), ("b", b"content"), ("a", b"contents"), ("ac", b"ontent"), ("", b"acontent")]
    assert len({digest_of(*pair) for pair in pairs}) == len(pairs)


def test_texts_are_shortened() -> None:
    assert (shortened("abc", 3), shortened("abcd", 3)) == ("abc", "abc...")


PURPOSE = "a test"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "kept.json"
    files.replace(path, PURPOSE, {"a": 1})
    return path


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link(path: Path) -> None:
    path.rename(path.with_suffix(".other"))
    path.symlink_to(path.with_suffix(".other"))


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def foreign(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(path, 65534, 65534)


ODD: dict[str, Callable[[Path], Any]] = {
    "a FIFO": fifo, "a directory": folder, "a symbolic link": link, "symbolic link": device,
    "it belongs to another user": foreign,
    "others can write to it (mode 602)": lambda path: path.chmod(0o602),
    "others can write to it (mode 620)": lambda path: path.chmod(0o620),
    "expected at most": lambda path: os.truncate(path, files._MAX_BYTES + 1),
    "it is damaged, or was not written for this": lambda path: os.truncate(path, 10),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_untrusted_file_is_ignored_in_one_line(written: Path, odd: str, caplog: pytest.LogCaptureFixture) -> None:
    assert files.read(written, PURPOSE) == {"a": 1}
    ODD[odd](written)
    for _ in range(3):
        assert files.read(written, PURPOSE) is None
    (record,) = caplog.records
    assert f"{written} is ignored" in record.getMessage()
    assert odd in record.getMessage()


def test_unwritable_cache_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ONCE.forget()
    (tmp_path / "file").touch()
    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path / "file"))
    table = CostTable("a device")
    for _ in range(2):
        table.add("an operator", 1.0)
        assert not table.save()
    (record,) = caplog.records
    assert record.getMessage() == (
        f"echo: nothing is kept in {tmp_path}/file (expected a folder, got a file): "
        "each process measures and plans again"
    )


@pytest.mark.parametrize(("given", "expected"), [
    ({"ECHO_CACHE_DIR": "~/plans"}, "{home}/plans"), ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/echo"),
    ({"XDG_CACHE_HOME": "relative"}, "{home}/.cache/echo"), ({}, "{home}/.cache/echo"),
], ids=str)  # fmt: skip
def test_cache_folder_follows_the_variables(
    given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ECHO_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert str(files.cache_folder()) == expected.format(home=os.path.expanduser("~"))


def test_missing_file_is_ignored_silently(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nothing", tmp_path / "file" / "below"):
        assert files.read(path, PURPOSE) is None
    assert not caplog.records


def test_name_that_is_too_long_is_told_when_something_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read(tmp_path / ("a" * 300), "a purpose") is None
    assert caplog.records == []


def test_files_hold_for_what_they_were_written_for(written: Path) -> None:
    assert files.read(written, "another test") is None
    assert written.stat().st_mode & 0o777 == 0o600


def test_a_file_of_roots_or_in_anybodys_folder_is_used(written: Path) -> None:
    written.chmod(0o644)
    written.parent.chmod(0o1777)
    assert files.read(written, PURPOSE) == {"a": 1}
    written.parent.chmod(0o777)  # whoever writes there cannot forge a content with an owner
    assert files.read(written, PURPOSE) == {"a": 1}


def test_locks_are_not_waited_for_without_end(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LONGEST_WAIT", 0.05)
    entered = []
    with files.locked(written):
        other = threading.Thread(target=lambda: _enter(written, entered))
        other.start()
        other.join(30)
    assert entered == [True]


def _enter(path: Path, entered: list[bool]) -> None:
    with files.locked(path):
        entered.append(True)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.with_name("target"))])
def test_locks_that_are_none_are_refused(written: Path, make: Callable[[Path], Any]) -> None:
    make(written.with_suffix(".lock"))
    with pytest.raises(OSError, match="expected a regular file"), files.locked(written):
        pytest.fail("held")
    assert not written.with_name("target").exists()


CODE = """
import logging
logging.basicConfig(level=logging.INFO)
import mxnet as mx
import echo
x = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=64)
for _ in range(4):
    x = mx.sym.tanh(x) * mx.sym.sigmoid(x)
symbol = echo.optimize(mx.sym.MakeLoss(mx.sym.sum(x)), fuse=False, max_overhead=None)
symbol.simple_bind(mx.cpu(), x=(64, 64))
print(len(symbol.plans[-1].recomputed) > 0)
"""


@pytest.mark.slow
def test_binds_go_on_with_fifos_instead_of_all_caches(tmp_path: Path) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CODE], env={**os.environ, "ECHO_CACHE_DIR": str(tmp_path)},
            capture_output=True, text=True, timeout=100, check=True,
        )  # fmt: skip

    assert run().stdout == "True\n"
    files = [*tmp_path.rglob("*.json"), *tmp_path.rglob("*.lock")]
    assert len(files) == 3
    for path in files:
        fifo(path)
    again = run()
    assert again.stdout == "True\n"
    assert again.stderr.count("is ignored, and its content is made again: expected a regular file, got a FIFO") == 2


def test_keys_of_plans_depend_on_settings_of_mxnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mxnet as mx

    import echo
    from echo.planning.planner import Planner
    from echo.runtime import bind_plan

    monkeypatch.setenv("ECHO_CACHE_DIR", str(tmp_path))
    symbol = mx.sym.var("x")
    for _ in range(4):  # a small graph of which nothing is recomputed is not kept
        symbol = mx.sym.exp(mx.sym.sin(mx.sym.FullyConnected(symbol, num_hidden=4)))
    symbol = mx.sym.MakeLoss(symbol)
    for setting in ("1", "0"):
        monkeypatch.setenv("MXNET_ELIMINATE_COMMON_EXPR", setting)
        monkeypatch.setattr(bind_plan, "PLANNER", Planner())
        echo.plan(symbol, x=(64, 4))
    assert len(list((tmp_path / "plans").iterdir())) == 2


def test_value_too_large_to_read_again_is_not_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files.replace(tmp_path / "large.json", PURPOSE, {"a": "x" * (33 << 20)})
    assert list(tmp_path.iterdir()) == []
    assert caplog.text == ""


def test_kinds_and_the_oldest_first(tmp_path: Path) -> None:
    table = CostTable("a device", tmp_path)
    table.add("one", 1e-3)
    assert table.save()
    (tmp_path / "plans").mkdir()
    plan = tmp_path / "plans" / f"{'ab' * 20}.json"
    plan.touch()
    os.utime(plan, (1, 1))
    for name in (f"{plan.name}x7_q.tmp", "notes.json", f"{'ab' * 20}.txt"):
        (tmp_path / "plans" / name).touch()
    (tmp_path / "plans" / f"{'cd' * 20}.json").symlink_to(plan)
    found = cached_files(tmp_path)
    assert found[0].path == plan
    assert sorted((each.kind, each.path.name) for each in found) == sorted([
        (PLANS, plan.name), (TIMES, table.path.name), (OTHERS, table.path.with_suffix(".lock").name),
        (OTHERS, f"{plan.name}x7_q.tmp"),
    ])  # fmt: skip
    plan.unlink()
    assert delete(found) == 3
    assert sorted(path.name for path in (tmp_path / "plans").iterdir()) == sorted(
        ["notes.json", f"{'ab' * 20}.txt", f"{'cd' * 20}.json"]
    )


def test_a_linked_folder_is_not_the_caches(tmp_path: Path) -> None:
    cache, other = tmp_path / "cache", tmp_path / "other"
    for folder in (cache, other):
        folder.mkdir()
    (other / f"{'ab' * 20}.json").touch()
    (cache / "plans").symlink_to(other)
    assert cached_files(cache) == ()


def test_no_folder_is_an_empty_cache(tmp_path: Path) -> None:
    assert cached_files(tmp_path / "nowhere") == ()
