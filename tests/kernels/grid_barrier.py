"""Whether a kernel's code waits in the barrier of the grid: in PTX, and in what nvdisasm writes of machine code.

A block arrives by adding to a counter; then a loop has to read that counter until all have arrived, before the barrier
of the block lets the other threads go on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

STEPS = r"(lstm|gru|rnn)_(\w+_)?steps_"
COUNT = 18  # of two types each


class Dialect(NamedTuple):
    """Regular expressions for lines of code; ``label`` and ``branch`` have one group, the name."""

    kernel: str  # the line before a kernel's code: its name
    arrive: str
    load: str
    label: str
    branch: str
    barrier: str


# Of loads only these: PTX allows a loop of weak loads, which is what others are, to be removed.
PTX = Dialect(
    kernel=r"^\.visible \.entry (\w+)\(",
    arrive=r"^(?:atom|red)\.\S*global\S*\.add\.u32",
    load=r"^ld\.(?:volatile|acquire)\S*\.u32",
    label=r"^(\$\w+):",
    branch=r"^@%p\d+ bra (\$\w+);",
    barrier=r"^bar(?:rier)?\.sync",
)
SASS = Dialect(
    kernel=r"^\.text\.(\w+):",
    arrive=r"\b(?:RED|ATOM)G?\.E\.ADD\b",
    load=r"\bLDG?\.E\b",
    label=r"^(\.L_x_\w+):",
    branch=r"@!?U?P\d+\s+BRA[^`]*`\((\.L_x_\w+)\)",
    barrier=r"\bBAR\.SYNC\b",
)


def kernels_of(text: str, dialect: Dialect) -> dict[str, list[str]]:
    """The lines of each kernel that has a barrier of the grid, by its name."""
    parts = re.split(dialect.kernel, text, flags=re.MULTILINE)[1:]
    return {name: body.splitlines() for name, body in zip(parts[::2], parts[1::2]) if re.search(STEPS, name)}


def waits(lines: list[str], dialect: Dialect) -> bool:
    """Whether there is one place where blocks arrive, and a loop with a load between it and the block's barrier."""
    arrivals = [number for number, line in enumerate(lines) if re.search(dialect.arrive, line)]
    if len(arrivals) != 1:
        return False
    loads: dict[str, int] = {}  # since each label
    for line in lines[arrivals[0] + 1 :]:
        if re.search(dialect.barrier, line):
            return False
        branch, label = re.search(dialect.branch, line), re.search(dialect.label, line)
        if branch and loads.get(branch.group(1)):
            return True
        if label:
            loads[label.group(1)] = 0
        if re.search(dialect.load, line):
            loads = {name: count + 1 for name, count in loads.items()}
    return False
