"""The sentence pairs of the demo: those that are read or left out, and the layout of batches."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

# The examples are scripts, not an installed package.
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

import parallel_text
from parallel_text import BEGIN, END, PAD, UNKNOWN, Corpus, Pair, Vocabulary

CATALOGUE = """
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

msgid "Yes"
msgstr "Ja"

#, fuzzy
msgid "A guess"
msgstr "Ein Raten"

msgid "Not translated"
msgstr ""

msgid "%(count)d file"
msgid_plural "%(count)d files"
msgstr[0] "%(count)d Datei"
msgstr[1] "%(count)d Dateien"

#, python-format
msgid "Hello, %(name)s!"
msgstr "Grüß Gott, %(name)s!"

#~ msgid "Old"
#~ msgstr "Alt"
"""
KEPT = [Pair("Yes", "Ja"), Pair("Hello, %(name)s!", "Grüß Gott, %(name)s!")]
PAIRS = [
    Pair("yes", "ja"),
    Pair("no", "nein"),
    Pair("yes and no", "ja und nein"),
    Pair("no and yes and no and yes", "nein und ja und nein und ja"),
]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package with one German catalogue; importing it fails the test."""
    root = tmp_path / "some_catalogues"
    messages = root / "locale" / "de" / "LC_MESSAGES"
    messages.mkdir(parents=True)
    (root / "__init__.py").write_text("raise AssertionError('the package was imported')")
    (messages / "django.po").write_text(CATALOGUE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return messages


def test_plural_fuzzy_obsolete_and_empty_messages_are_left_out(package: Path) -> None:
    assert parallel_text.sentence_pairs(["some_catalogues"]) == KEPT


def test_compiled_catalogue_is_read_where_no_source_lies_next_to_it(package: Path) -> None:
    import polib

    polib.pofile(str(package / "django.po")).save_as_mofile(str(package / "django.mo"))
    assert parallel_text.find_catalogues(["some_catalogues"]) == [package / "django.po"]

    (package / "django.po").unlink()
    assert parallel_text.find_catalogues(["some_catalogues"]) == [package / "django.mo"]
    assert sorted(parallel_text.sentence_pairs(["some_catalogues"])) == sorted(KEPT)


def test_repeated_pair_counts_once(package: Path) -> None:
    (package / "second.po").write_text(CATALOGUE, encoding="utf-8")
    assert parallel_text.sentence_pairs(["some_catalogues"]) == KEPT


def test_missing_package_names_the_extra() -> None:
    with pytest.raises(parallel_text.MissingText, match=r'no_such_package.*pip install "mxnet-echo\[demo\]"'):
        parallel_text.sentence_pairs(["no_such_package"])


def test_missing_polib_names_the_extra(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polib", None)
    with pytest.raises(parallel_text.MissingText, match=r'polib.*pip install "mxnet-echo\[demo\]"'):
        parallel_text.sentence_pairs(["some_catalogues"])


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, World!", ("hello", ",", "world", "!")),
        ("Größe: %(size)s von %s", ("größe", ":", "%(size)s", "von", "%s")),
        ("{count} of {}", ("{count}", "of", "{}")),
        ("100%", ("100", "%")),
        (" \n", ()),
    ],
)
def test_tokenize_splits_words_and_punctuation(text: str, tokens: tuple[str, ...]) -> None:
    assert parallel_text.tokenize(text) == tokens


def test_vocabulary_keeps_frequent_words_in_a_fixed_order() -> None:
    vocabulary = Vocabulary.build([("b", "a", "c"), ("b", "a")], min_frequency=2)
    assert vocabulary.words == (*parallel_text.SPECIAL, "a", "b")
    assert vocabulary.encode(["b", "c", "a"]) == [5, UNKNOWN, 4]


def test_vocabulary_must_begin_with_the_special_words() -> None:
    with pytest.raises(ValueError, match="expected a vocabulary to begin with"):
        Vocabulary(("a", "b"))


def test_each_example_is_in_the_shortest_bucket_that_holds_it() -> None:
    corpus = Corpus.build(PAIRS)
    sizes = {length: len(examples) for length, examples in corpus.buckets([5, 2, 3]).items()}
    assert sizes == {2: 2, 3: 0, 5: 1}


def test_batch_layout() -> None:
    corpus = Corpus.build([Pair("yes and no", "ja nein")])
    (batch,) = corpus.batches(length=5, batch=1)
    german = corpus.german.encode(["ja", "nein"])
    assert batch.source.tolist() == [[*corpus.english.encode(["yes", "and", "no"]), PAD, PAD]]
    assert batch.target.tolist() == [[BEGIN, *german, PAD, PAD]]
    assert batch.label.tolist() == [[*german, END, PAD, PAD]]
    assert {array.dtype for array in batch} == {np.dtype(np.float32)}


def test_batches_are_shuffled_and_repeatable() -> None:
    corpus = Corpus.build(Pair(f"word{i}", f"wort{i}") for i in range(40))
    first, again, other = (np.stack(corpus.batches(4, 8, seed)) for seed in (1, 1, 2))
    assert first.shape == (5, 3, 8, 4)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    # Every example occurs exactly once.
    assert len(np.unique(first[:, 0, :, 0])) == 40


def test_too_few_examples_for_a_batch() -> None:
    with pytest.raises(ValueError, match="expected at least 3 pairs of up to 2 tokens, got 2"):
        Corpus.build(PAIRS).batches(length=3, batch=3)


def test_django_catalogues_fill_the_batches_of_the_demo() -> None:
    pytest.importorskip("django")
    corpus = parallel_text.load(["django"])
    assert ("yes", ",", "no", ",", "maybe") in {example.source for example in corpus.examples}
    batches = corpus.batches(length=30, batch=64)
    assert len(batches) >= 10
    assert all(array.max() < len(corpus.german) for array in (batch.label for batch in batches))
    assert not any((batch.source == UNKNOWN).any() for batch in batches)
