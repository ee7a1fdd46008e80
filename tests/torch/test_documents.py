"""The Python blocks of the documentation of `echo.torch` run as they stand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import re  # noqa: E402
from pathlib import Path  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "torch.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_of_the_page_runs(
    number: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ".page(" in BLOCKS[number]:
        pytest.importorskip("vl_convert", reason="needs the extra report")
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[number], {})
    if "print(" in BLOCKS[number]:
        line = r"peak [\d.]+ MB -> [\d.]+ MB \(budget [\d.]+ MB\), \d+ nodes run again"
        assert re.match(line, capsys.readouterr().out)


def test_page_has_blocks_and_every_option() -> None:
    from dataclasses import fields

    from echo.torch import Partitioner

    assert len(BLOCKS) == 5
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {item.name for item in fields(Partitioner)} - {"plans"} | {"compiler"}


def test_page_lists_every_operator_that_converts() -> None:
    from echo.torch.operators import OPERATORS

    table = PAGE.read_text(encoding="utf-8").partition("| | operators |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(OPERATORS)
