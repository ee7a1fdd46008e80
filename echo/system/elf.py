"""Reads the libraries and search folders that a shared library of Linux asks the dynamic loader for, from its file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Iterator, NamedTuple

_HEADER = "<16sHHIQQQIHHH"  # up to the number of segments; 64 bits, little endian
_SEGMENT = "<IIQQQQ"  # up to the size in the file
_ENTRY = "<qQ"
_LOADED, _DYNAMIC = 1, 2  # types of segments
_END, _NEEDED, _STRINGS, _RPATH, _RUNPATH = 0, 1, 5, 15, 29  # tags of the dynamic section
_MOST = 1 << 20  # bytes of tables: a damaged file may say any size
_LONGEST = 4096  # bytes of a name


class Wanted(NamedTuple):
    """The libraries that a library needs, and the folders of its own in which the loader looks for them."""

    needed: tuple[str, ...]
    folders: tuple[Path, ...]


def wanted_by(library: Path) -> Wanted:
    """Returns the libraries and folders that a library asks for; none where it is linked statically.

    Raises:
        ValueError: the file is damaged, or no library of 64 bits in little endian.
        OSError: it cannot be read.
    """
    with open(library, "rb") as file:
        try:
            return _wanted(file, library)
        except (struct.error, UnicodeDecodeError) as error:
            raise ValueError(f"expected a shared library, got {library}: {error}") from error


def _wanted(file: BinaryIO, library: Path) -> Wanted:
    segments = list(_segments(file, library))
    entries = [entry for kind, start, _, size in segments if kind == _DYNAMIC for entry in _entries(file, start, size)]
    strings = next((_place(segments, value) for tag, value in entries if tag == _STRINGS), 0)
    texts = {tag: [_text(file, strings + value) for one, value in entries if one == tag]
             for tag in (_NEEDED, _RPATH, _RUNPATH)}  # fmt: skip
    search_path = [folder for text in texts[_RUNPATH] or texts[_RPATH] for folder in text.split(":") if folder]
    origin = str(library.resolve().parent)
    folders = [Path(folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)) for folder in search_path]
    return Wanted(tuple(texts[_NEEDED]), tuple(folders))


def _segments(file: BinaryIO, library: Path) -> Iterator[tuple[int, int, int, int]]:
    """Type, offset in the file, address in memory and bytes of each segment."""
    magic, *_, table, _, _, _, step, count = struct.unpack(_HEADER, file.read(struct.calcsize(_HEADER)))
    if magic[:6] != b"\x7fELF\x02\x01" or step < struct.calcsize(_SEGMENT):
        raise ValueError(f"expected a shared library of 64 bits in little endian, got {library}")
    content = _read(file, table, step * count)
    for number in range(count):
        kind, _, start, address, _, size = struct.unpack_from(_SEGMENT, content, step * number)
        yield kind, start, address, size


def _entries(file: BinaryIO, start: int, size: int) -> Iterator[tuple[int, int]]:
    content = _read(file, start, size)
    whole = len(content) - len(content) % struct.calcsize(_ENTRY)
    for tag, value in struct.iter_unpack(_ENTRY, content[:whole]):
        if tag == _END:
            return
        yield tag, value


def _place(segments: list[tuple[int, int, int, int]], address: int) -> int:
    """Returns the offset in the file of an address in memory."""
    for kind, start, first, size in segments:
        if kind == _LOADED and first <= address < first + size:
            return start + address - first
    raise ValueError(f"expected an address within the library's segments, got {address:#x}")


def _text(file: BinaryIO, place: int) -> str:
    return _read(file, place, _LONGEST).split(b"\0", 1)[0].decode()


def _read(file: BinaryIO, place: int, size: int) -> bytes:
    """Reads ``size`` bytes at an offset, but at most as many as a table may have (`_MOST`)."""
    try:
        file.seek(place)
    except (OSError, OverflowError) as error:  # of a damaged file: beyond what any file may have
        raise ValueError(f"expected a place within the file, got {place:#x}") from error
    return file.read(min(size, _MOST))
