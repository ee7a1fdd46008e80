"""The policies: one strategy a file, one entry here."""

from __future__ import annotations

from echo.errors import OptionError
from echo.policies.echo import Echo
from echo.policies.problem import Policy
from echo.policies.search import Search

POLICIES: tuple[Policy, ...] = (Search(), Echo())


def policy_named(name: str) -> Policy:
    """The policy of this name.

    Raises:
        OptionError: there is none.
    """
    for policy in POLICIES:
        if policy.name == name:
            return policy
    raise OptionError(f"policy: expected one of {[policy.name for policy in POLICIES]}, got {name!r}")
