"""``python -m tests.commits``: subjects of commits since the last release tag read ``area: imperative``.

A subject has at most 72 characters. Without a tag, the commits after `FIRST` are read, the last one before the rule.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Iterable

ROOT = Path(__file__).resolve().parents[1]
FIRST = "f4c245451f77bb66569ab584d4cf81a2e10d07ce"
MOST = 72
_AREA = r"[a-z][a-z0-9_.-]*"
_SUBJECT = re.compile(rf"{_AREA}(?:, {_AREA})*: \S.*[^.\s]")
_ENDINGS = ("ed", "ing")  # of first words that are no imperatives
_IMPERATIVES = {"embed", "feed", "need", "seed", "speed", "bring", "string", "ring", "proceed", "exceed"}


def wrong(subjects: Iterable[str]) -> list[str]:
    """Returns a line for each subject that breaks the rule, with the reason."""
    lines = []
    for subject in subjects:
        reason = _reason(subject)
        if reason:
            lines.append(f"{subject!r}: {reason}")
    return lines


def _reason(subject: str) -> str:
    if len(subject) > MOST:
        return f"expected at most {MOST} characters, got {len(subject)}"
    if not _SUBJECT.fullmatch(subject):
        return "expected 'area: imperative' without a full stop"
    word = subject.partition(": ")[2].split()[0].lower()
    if word.endswith(_ENDINGS) and word not in _IMPERATIVES:
        return f"expected an imperative after the area, got {word!r}"
    return ""


def subjects(root: Path = ROOT) -> list[str]:
    """Returns the subjects since the last release tag; none outside of a clone, or in one without that history."""
    tag = _git(root, "describe", "--tags", "--abbrev=0", "--match", "v*")
    return _git(root, "log", "--no-merges", "--format=%s", f"{tag.strip() or FIRST}..HEAD").splitlines()


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    FOUND = wrong(subjects())
    print("\n".join(FOUND))
    sys.exit(bool(FOUND))
