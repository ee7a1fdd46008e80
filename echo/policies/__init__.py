"""The policies: one strategy a file, one entry here."""

from __future__ import annotations

from echo.errors import OptionError
from echo.policies.all import All
from echo.policies.echo import Echo
from echo.policies.exact import Exact
from echo.policies.mincut import Mincut
from echo.policies.none import RecomputeNone
from echo.policies.problem import Policy
from echo.policies.search import Search
from echo.policies.sublinear import Sublinear

POLICIES: tuple[Policy, ...] = (Search(), Echo(), Sublinear(), Mincut(), Exact(), All(), RecomputeNone())


def policy_named(name: str) -> Policy:
    """The policy of this name.

    Raises:
        OptionError: there is none.
    """
    for policy in POLICIES:
        if policy.name == name:
            return policy
    raise OptionError(f"policy: expected one of {', '.join(policy.name for policy in POLICIES)}, got {name!r}")
