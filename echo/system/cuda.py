"""CUDA on this machine: its GPUs, and the libraries that MXNet's wheels need."""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from pathlib import Path
from typing import BinaryIO, Iterator, Mapping, NamedTuple

# NVIDIA's driver and its GPUs, asked through ``libcuda.so.1`` alone: no CUDA toolkit and no MXNet is needed.

_RELEASE = Path("/proc/driver/nvidia/version")
_MAJOR, _MINOR = 75, 76  # attributes of a device: the parts of its compute capability


class Gpu(NamedTuple):
    """A CUDA device: its name, its memory in bytes, its compute capability."""

    name: str
    bytes: int
    capability: tuple[int, int]


class Driver(NamedTuple):
    """The newest CUDA that the driver runs, its own version (empty where the kernel does not say it), its devices."""

    cuda: tuple[int, int]
    release: str
    gpus: tuple[Gpu, ...]


def driver() -> Driver:
    """The driver of this machine, and the devices that this process may use, in CUDA's order.

    Raises:
        LookupError: there is no driver, or it refuses to start; the message says so.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LookupError(f"there is no NVIDIA driver: {error}") from error
    version, count = ctypes.c_int(), ctypes.c_int()
    try:
        starts = cuda.cuInit(0) == 0  # it does not where there is no device
        cuda.cuDriverGetVersion(ctypes.byref(version))
        if starts:
            cuda.cuDeviceGetCount(ctypes.byref(count))
        gpus = tuple(_gpu(cuda, number) for number in range(count.value))
    except AttributeError as error:
        raise LookupError(f"the NVIDIA driver (libcuda.so.1) is too old or damaged: {error}") from error
    return Driver((version.value // 1000, version.value % 1000 // 10), _release(), gpus)


def bus_ids() -> tuple[str, ...]:
    """The bus ids of the devices that this process may use, in CUDA's order; other libraries know devices by them.

    Raises:
        LookupError: there is no driver, or it says none; the message says so.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        count, device, text = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(32)
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            raise LookupError("the NVIDIA driver finds no device")
        ids = []
        for number in range(count.value):
            if cuda.cuDeviceGet(ctypes.byref(device), number) or cuda.cuDeviceGetPCIBusId(text, len(text), device):
                raise LookupError(f"the NVIDIA driver does not say where device {number} is")
            ids.append(text.value.decode("ascii", errors="replace"))
        return tuple(ids)
    except (OSError, AttributeError) as error:
        raise LookupError(f"there is no NVIDIA driver that fits: {error}") from error


def _gpu(cuda: ctypes.CDLL, number: int) -> Gpu:
    device, size, text = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), number)
    cuda.cuDeviceGetName(text, len(text), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    capability = [ctypes.c_int(), ctypes.c_int()]
    for part, which in zip(capability, (_MAJOR, _MINOR)):
        cuda.cuDeviceGetAttribute(ctypes.byref(part), which, device)
    return Gpu(text.value.decode(errors="replace"), size.value, (capability[0].value, capability[1].value))


def _release() -> str:
    try:
        match = re.search(r"\b\d+\.\d+(\.\d+)?\b", _RELEASE.read_text(encoding="utf-8"))
    except OSError:
        return ""
    return match[0] if match else ""


# The CUDA libraries that MXNet's CUDA wheels leave out, loaded from NVIDIA's pip wheels before mxnet is imported.
#
# Those wheels put their libraries into ``site-packages/nvidia/NAME/lib``, where the dynamic loader does not look.
# What is in the process already, the loader takes by its name: so loading a library by its path is enough for
# libmxnet.so.

_CUDA = re.compile(r"lib(cu[a-zA-Z]+|nccl|nvrtc|nvToolsExt)\.so(\.|$)")


def load_for(libmxnet: Path) -> list[str]:
    """Loads the CUDA libraries that this libmxnet.so asks for from NVIDIA's wheels, where the loader has none.

    Returns the names of those that neither has, ``libcuda.so.1`` of the driver among them; none for a wheel without
    CUDA.

    Raises:
        ValueError: the file is damaged.
        OSError: it cannot be read.
    """
    wanted = wanted_by(libmxnet)
    beside = [name for name in wanted.needed if any((folder / name).exists() for folder in wanted.folders)]
    names = [name for name in wanted.needed if _CUDA.match(name) and name not in beside]
    at_hand = of_wheels() if names else {}
    return [name for name in names if not _load(name, at_hand, set())]


def of_wheels() -> dict[str, Path]:
    """The libraries of NVIDIA's wheels on ``sys.path``, by name; of several of a name, what Python would import."""
    paths: dict[str, Path] = {}
    for entry in sys.path:
        for path in sorted(Path(entry).glob("nvidia/*/lib/lib*.so*")):
            paths.setdefault(path.name, path)
    return paths


def _load(name: str, at_hand: Mapping[str, Path], begun: set[str]) -> bool:
    """Whether the process has the library: the loader's own, else that of a wheel, after those that it needs."""
    if _opens(name):
        return True
    if name not in at_hand or name in begun:
        return False
    begun.add(name)
    try:
        needed = wanted_by(at_hand[name]).needed
    except (ValueError, OSError):
        return False
    for other in needed:
        if other in at_hand:
            _load(other, at_hand, begun)
    return _opens(str(at_hand[name]))


def _opens(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


# Reads the libraries and search folders that a shared library of Linux asks the dynamic loader for, from its file.

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
