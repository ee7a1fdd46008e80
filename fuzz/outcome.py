"""What may come of a case beside "the same" and a difference."""


class Refused(Exception):
    """MXNet itself does not run this program."""


class Undefined(Exception):
    """MXNet itself computes other numbers under another match range of its memory planner."""
