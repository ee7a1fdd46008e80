"""Files that a user names are regular ones of a bounded size, and JSON has one meaning."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from echo.system import reading
from echo.system.reading import UntrustedError, digest_of, open_regular, read_json, read_own, shortened


def test_other_kinds_of_files_are_refused_without_waiting(tmp_path: Path) -> None:
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
    monkeypatch.setattr(reading, "_MOST_BYTES", 3)
    (tmp_path / "file").write_text("1234")
    with pytest.raises(UntrustedError, match="expected at most 3 bytes"):
        read_json(tmp_path / "file")


def test_digests_tell_purposes_and_contents_apart() -> None:
    assert digest_of("a", b"content") == digest_of("a", b"content")
    pairs = [("a", b"content"), ("b", b"content"), ("a", b"contents"), ("ac", b"ontent"), ("", b"acontent")]
    assert len({digest_of(*pair) for pair in pairs}) == len(pairs)


def test_texts_are_shortened() -> None:
    assert (shortened("abc", 3), shortened("abcd", 3)) == ("abc", "abc...")
