"""The native code is as clang-tidy last found it without a fault: `make tidy` takes minutes, and notes what it read.

``python -m tests.native.test_tidy`` writes the note, which is the digest of all that clang-tidy read.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTE = Path(__file__).with_name("tidy.sha256")


def digest(root: Path = ROOT) -> str:
    """The digest of the checks, and of the name and text of each C++ file that is compiled with the libraries."""
    folders = (root / "echo/native", root / "echo/kernels")
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".cc", ".h", ".inc"))
    found = hashlib.sha256()
    for path in (root / ".clang-tidy", *files):
        found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes() + b"\n")
    return found.hexdigest()


def test_clang_tidy_has_read_the_native_code_as_it_is() -> None:
    assert NOTE.read_text(encoding="ascii").strip() == digest(), "C++ was changed: `make tidy` checks it"


def test_a_change_of_any_file_is_seen(tmp_path: Path) -> None:
    for folder in ("echo/native/hook", "echo/kernels/cpu"):
        (tmp_path / folder).mkdir(parents=True)
    seen = set()
    for name in (".clang-tidy", "echo/native/hook/a.cc", "echo/kernels/cpu/b.h"):
        (tmp_path / name).write_text("")
        if name != ".clang-tidy":
            seen.add(digest(tmp_path))
        (tmp_path / name).write_text("changed")
        seen.add(digest(tmp_path))
    assert len(seen) == 5


if __name__ == "__main__":
    NOTE.write_text(digest() + "\n", encoding="ascii")
