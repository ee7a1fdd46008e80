"""RAPL in a folder that is made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from echo.recording import rapl
from echo.recording.rapl import Rapl


def zone(folder: Path, name: str, kind: str, microjoules: int, most: int = 999_999) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "name").write_text(kind + "\n")
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{most}\n")
    return folder / name / "energy_uj"


def test_packages_are_summed_and_counters_begin_anew(tmp_path: Path) -> None:
    first, second = zone(tmp_path, "intel-rapl:0", "package-0", 900_000), zone(tmp_path, "intel-rapl:1", "package-1", 5)
    part, system = zone(tmp_path, "intel-rapl:0:0", "core", 0), zone(tmp_path, "intel-rapl:2", "psys", 0)
    counter = Rapl(tmp_path)
    assert counter.joules() == 0.0
    first.write_text("100000")  # behind its end, 1,000,000 values later
    second.write_text("300005")
    part.write_text("7777")
    system.write_text("8888")
    assert counter.joules() == pytest.approx(0.5)
    first.write_text("200000")
    assert counter.joules() == pytest.approx(0.6)
    first.unlink()
    assert counter.joules() is None


def test_what_may_not_be_read_is_said_with_the_command_that_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1)

    def refused(_: Path) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(rapl, "_number", refused)
    with pytest.raises(LookupError, match=r"may not read it; to allow it: sudo chmod a\+r .*energy_uj$"):
        Rapl(tmp_path)


@pytest.mark.parametrize("kind", ["nowhere", "empty", "no number"])
def test_what_is_not_there_is_said(kind: str, tmp_path: Path) -> None:
    if kind == "no number":
        zone(tmp_path, "intel-rapl:0", "package-0", 1).write_text("much")
    with pytest.raises(LookupError, match=r"^CPU energy: the processor's counters \(RAPL\) are not there"):
        Rapl(tmp_path / "nowhere" if kind == "nowhere" else tmp_path)
