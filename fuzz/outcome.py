"""What may come of a case beside "the same" and a difference."""


class Refused(Exception):
    """MXNet itself does not run this program."""


NUDGE = 3e-7  # what values are changed by, relatively, to see what MXNet makes of rounding


class Undefined(Exception):
    """MXNet itself computes other numbers under another match range of its memory planner, or when it is run again.

    Or, where operators are fused, from values that differ by a rounding error: gradients that are sums of large terms
    and small themselves.
    """
