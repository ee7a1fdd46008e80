"""Sizes reach Sockeye through its own command line; without it, or where it fails, an error says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.paper import nmt, sockeye
from projects import settings

SETTING = nmt.Setting(2, 16, 12, 4, attention=8, normed=True, steps=5)


def test_options_name_the_sizes() -> None:
    line = " ".join(sockeye.options(SETTING))
    assert "--num-layers 2:2 --rnn-num-hidden 16 --num-embed 12:12" in line
    assert "--rnn-attention-num-hidden 8 --layer-normalization --max-seq-len 5" in line
    assert "--layer-normalization" not in sockeye.options(replace(SETTING, normed=False))


def test_missing_sockeye_raises_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(settings, "PACKAGES", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"make \.projects/sockeye_1/\.installed"):
        sockeye.model("small", SETTING)


def test_sockeye_that_exits_raises_with_its_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "sockeye_1" / "sockeye"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('of no use here')")
    monkeypatch.setattr(settings, "PACKAGES", tmp_path)
    with pytest.raises(RuntimeError, match="Sockeye ended with 1: of no use here"):
        sockeye.model("small", SETTING)


@pytest.mark.slow
@pytest.mark.skipif(not sockeye.is_installed(), reason="needs Sockeye: make .projects/sockeye_1/.installed")
def test_the_symbol_of_its_training_has_the_sizes() -> None:
    model = sockeye.model("small", SETTING)
    shapes, outputs, _ = model.symbol.infer_shape(**model.shapes)
    known = dict(zip(model.symbol.list_arguments(), shapes))
    assert model.shapes.keys() <= known.keys()
    assert known["source_embed_weight"] == (nmt.SOURCE_WORDS, 12)
    assert known["target_output_weight"] == (nmt.TARGET_WORDS, 16)
    assert outputs == [(4 * 5, nmt.TARGET_WORDS)]
