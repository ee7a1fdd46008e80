"""The outcomes of a case other than "the same" and a difference."""


class Refused(Exception):
    """MXNet itself does not run this program."""


# what values are changed by, relatively, to see what MXNet makes of rounding, each up or down as a seed draws it
NUDGES = tuple({"nudge": 3e-7, "directions": seed} for seed in range(4))
MAGNITUDES = (1e-3, 10, 300, 1e4)  # what some arguments hold more of than others


class Undefined(Exception):
    """MXNet itself computes other numbers under another match range of its memory planner, or when it is run again.

    Or, where operators are fused, from values that differ by a rounding error: gradients that are sums of large terms
    and small themselves. Or numbers that are as far from those of float64 as echo's are.
    """
