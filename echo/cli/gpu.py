"""Facts about NVIDIA's driver and GPUs: which of them MXNet's wheel has code for, and which run echo's kernels."""

from __future__ import annotations

from typing import Iterator, Sequence

from echo.cli.fact import FINE, OFF, Fact
from echo.system.cuda import Driver, Gpu, driver

# The compute capabilities that the wheels of MXNet 1.9.1 have code for, and no PTX for others. Code runs on devices of
# the same major number and as large a minor one.
_OF_CUDA_11 = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
CODE = {
    "mxnet-cu102": ((3, 0), (5, 0), (6, 0), (7, 0), (7, 5)),
    "mxnet-cu112": _OF_CUDA_11,
    "mxnet-cu117": _OF_CUDA_11,
}
PTX_CUDA, PTX_CAPABILITY = (9, 0), (5, 0)  # what the PTX of echo's kernels needs of a driver and of a device


def has_code(wheel: str, capability: tuple[int, int]) -> bool | None:
    """Whether this wheel of MXNet runs on devices of a compute capability; None of wheels without a row in `CODE`."""
    if wheel not in CODE:
        return None
    return any(major == capability[0] and minor <= capability[1] for major, minor in CODE[wheel])


def gpus(wheel: str, why_not: Sequence[str] | None) -> Iterator[Fact]:
    """The driver, and each GPU.

    Args:
        wheel: the name of MXNet's wheel.
        why_not: why echo's kernels do not run on each GPU that MXNet sees, empty texts where they do; None where MXNet
            could not be asked.
    """
    needed = f"a driver of CUDA {_text(PTX_CUDA)}, compute capability {_text(PTX_CAPABILITY)}"
    yield Fact("GPU", "echo's kernels need", needed, "or later; they are PTX, which the driver compiles")
    try:
        nvidia = driver()
    except LookupError as error:
        yield Fact("GPU", "driver", "none", str(error))
        return
    yield from _driver(nvidia)
    if not nvidia.gpus:
        yield Fact("GPU", "devices", 0, "the driver finds no CUDA device")
    for number, gpu in enumerate(nvidia.gpus):
        yield from _gpu(number, gpu, wheel, why_not)


def _driver(driver: Driver) -> Iterator[Fact]:
    old = "too old for echo's kernels; " if driver.cuda < PTX_CUDA else ""
    remark = f"{old}runs CUDA up to {_text(driver.cuda)}"
    yield Fact("GPU", "driver", driver.release or "there, of unknown version", remark, OFF if old else FINE)


def _gpu(number: int, gpu: Gpu, wheel: str, why_not: Sequence[str] | None) -> Iterator[Fact]:
    name = f"gpu({number})"
    yield Fact("GPU", name, f"{gpu.name}, {gpu.bytes / 10**9:.1f} GB, compute capability {_text(gpu.capability)}")
    code = has_code(wheel, gpu.capability)
    if not wheel.startswith("mxnet-cu"):
        remark, state = "the wheel is for CPUs: pip install mxnet-cu112==1.9.1 in its place", OFF
    elif code is None:
        remark, state = "not known of this wheel", FINE
    else:
        listed = ", ".join(map(_text, CODE[wheel]))
        remark, state = f"the wheel has code for {listed}", FINE if code else OFF
    yield Fact("GPU", f"{name} MXNet has code", "unknown" if code is None else code, remark, state)
    if why_not is None:
        return
    reason = "MXNet does not see the device" if number >= len(why_not) else why_not[number]
    if gpu.capability < PTX_CAPABILITY:
        reason = f"they need compute capability {_text(PTX_CAPABILITY)}"
    yield Fact("GPU", f"{name} runs echo's kernels", not reason, reason, OFF if reason else FINE)


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
