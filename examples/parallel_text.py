"""English-German sentence pairs from the message catalogues of installed packages: nothing is downloaded.

Django's wheel (BSD licence) carries some 850 pairs; Wagtail, REST framework and Sphinx add to them where they
are installed. The packages themselves are never imported, only their files are read.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Iterator, NamedTuple, Sequence

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PACKAGES = ("django", "wagtail", "rest_framework", "sphinx")
PAD, UNKNOWN, BEGIN, END = range(4)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
# A placeholder such as %(name)s or {name} is one token: it is copied, not translated.
TOKEN = re.compile(r"%\(\w+\)[a-z]|%[sd]|\{\w*\}|\w+|[^\w\s]")


class Pair(NamedTuple):
    """A sentence and its translation."""

    english: str
    german: str


class Example(NamedTuple):
    """A tokenized pair."""

    source: tuple[str, ...]
    target: tuple[str, ...]


class MissingText(RuntimeError):
    """No catalogue can be read; the message says what to install."""

    def __init__(self, what: str) -> None:
        super().__init__(f'{what}; install it with: pip install "mxnet-echo[demo]"')


# Reading ---------------------------------------------------------------------------------------------------


def sentence_pairs(packages: Iterable[str] = PACKAGES, language: str = "de") -> list[Pair]:
    """All different pairs in the catalogues of those `packages` that are installed, in a fixed order.

    Raises `MissingText` if polib is missing, or if none of the packages holds a catalogue.
    """
    packages = tuple(packages)
    pairs: dict[Pair, None] = {}
    for path in find_catalogues(packages, language):
        pairs.update(dict.fromkeys(read_catalogue(path)))
    if not pairs:
        raise MissingText(f"none of {', '.join(packages)} is installed with {language!r} message catalogues")
    return list(pairs)


def find_catalogues(packages: Iterable[str], language: str = "de") -> list[Path]:
    """The catalogues of the installed packages: .po files, and .mo if a wheel ships no .po next to it."""
    found: dict[Path, Path] = {}
    for package in packages:
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            messages = f"locale/{language}/LC_MESSAGES"
            for suffix in (".po", ".mo"):
                for path in sorted(Path(folder).rglob(f"{messages}/*{suffix}")):
                    found.setdefault(path.with_suffix(""), path)
    return list(found.values())


def read_catalogue(path: Path) -> Iterator[Pair]:
    """The translated messages of a .po or .mo file, without plural, fuzzy, obsolete and empty ones.

    Raises `MissingText` if polib is missing, and `OSError` for a file that is no catalogue.
    """
    polib = _import_polib()
    entries = polib.mofile(str(path)) if path.suffix == ".mo" else polib.pofile(str(path))
    for entry in entries:
        # Compiled catalogues hold no fuzzy messages, and their entries no such field.
        if entry.obsolete or getattr(entry, "fuzzy", False) or entry.msgid_plural:
            continue
        if entry.msgid.strip() and entry.msgstr.strip():
            yield Pair(entry.msgid, entry.msgstr)


def _import_polib() -> Any:
    try:
        import polib
    except ImportError:
        raise MissingText("polib, which reads message catalogues, is not installed") from None
    return polib


# Words -----------------------------------------------------------------------------------------------------


def tokenize(text: str) -> tuple[str, ...]:
    """Lower-case words, punctuation marks and placeholders: `"Add %s!"` gives `("add", "%s", "!")`."""
    return tuple(TOKEN.findall(text.lower()))


def tokenized(pairs: Iterable[Pair]) -> list[Example]:
    """Each pair as tokens, without those where a side has none."""
    examples = (Example(tokenize(pair.english), tokenize(pair.german)) for pair in pairs)
    return [example for example in examples if example.source and example.target]


@dataclass(frozen=True)
class Vocabulary:
    """Words and their ids; the first four ids are padding, unknown word, begin and end of sentence."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL:
            raise ValueError(f"expected a vocabulary to begin with {SPECIAL}, got {self.words[:4]}")
        object.__setattr__(self, "_ids", {word: number for number, word in enumerate(self.words)})

    @classmethod
    def build(cls, sentences: Iterable[Sequence[str]], min_frequency: int = 1) -> Vocabulary:
        """The words that occur at least `min_frequency` times, the most frequent first, ties by spelling."""
        counts = Counter(word for sentence in sentences for word in sentence)
        kept = [word for word, count in counts.items() if count >= min_frequency]
        return cls(SPECIAL + tuple(sorted(kept, key=lambda word: (-counts[word], word))))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, sentence: Iterable[str]) -> list[int]:
        """The ids of a sentence's words."""
        ids: dict[str, int] = self._ids  # type: ignore[attr-defined]
        return [ids.get(word, UNKNOWN) for word in sentence]


# Batches ---------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Three float32 arrays of ids, each (batch, length), padded with 0 at the right.

    `target` begins with `BEGIN`; `label` is `target` moved by one, so it ends with `END`.
    """

    source: NDArray[np.float32]
    target: NDArray[np.float32]
    label: NDArray[np.float32]


@dataclass(frozen=True)
class Corpus:
    """Tokenized pairs with the vocabularies of both languages."""

    examples: tuple[Example, ...]
    english: Vocabulary
    german: Vocabulary

    @classmethod
    def build(cls, pairs: Iterable[Pair], min_frequency: int = 1) -> Corpus:
        """Tokenize `pairs` and give an id to each word seen at least `min_frequency` times."""
        examples = tuple(tokenized(pairs))
        return cls(
            examples,
            Vocabulary.build((example.source for example in examples), min_frequency),
            Vocabulary.build((example.target for example in examples), min_frequency),
        )

    def buckets(self, lengths: Iterable[int]) -> dict[int, list[Example]]:
        """Each example under the shortest of `lengths` that holds both sides and the end of the sentence.

        Examples that fit in none are left out.
        """
        filled: dict[int, list[Example]] = {length: [] for length in sorted(lengths)}
        for example in self.examples:
            needed = max(len(example.source), len(example.target)) + 1
            fitting = next((length for length in filled if length >= needed), None)
            if fitting is not None:
                filled[fitting].append(example)
        return filled

    def batches(self, length: int, batch: int, seed: int = 0) -> list[Batch]:
        """All examples of up to `length` positions once, shuffled, in full batches; the rest is left out.

        Equal arguments give equal batches. Raises `ValueError` where the examples fill no batch.
        """
        fitting = self.buckets([length])[length]
        if len(fitting) < batch:
            raise ValueError(f"expected at least {batch} pairs of up to {length - 1} tokens, got {len(fitting)}")
        # RandomState's stream is frozen, so the batches do not depend on numpy's version.
        order = np.random.RandomState(seed).permutation(len(fitting))
        starts = range(0, len(fitting) - batch + 1, batch)
        return [self._batch([fitting[i] for i in order[start : start + batch]], length) for start in starts]

    def _batch(self, examples: Sequence[Example], length: int) -> Batch:
        arrays = np.full((3, len(examples), length), PAD, dtype=np.float32)
        for row, example in enumerate(examples):
            target = self.german.encode(example.target)
            for column, ids in enumerate((self.english.encode(example.source), [BEGIN, *target], [*target, END])):
                arrays[column, row, : len(ids)] = ids
        return Batch(*arrays)


def load(packages: Iterable[str] = PACKAGES, min_frequency: int = 1) -> Corpus:
    """The corpus of all installed `packages`; raises `MissingText` where there is nothing to read."""
    return Corpus.build(sentence_pairs(packages), min_frequency)


def main() -> None:
    """Print what is installed, and the first sentences."""
    corpus = load()
    print(f"{len(corpus.examples)} pairs, {len(corpus.english)} English and {len(corpus.german)} German words")
    for example in corpus.examples[:5]:
        print(f"  {' '.join(example.source)}  ->  {' '.join(example.target)}")


if __name__ == "__main__":
    main()
