"""The policies: one strategy a file, one entry here; and functions of users as policies."""

from __future__ import annotations

from echo.errors import OptionError
from echo.plans.options import PolicyFunction
from echo.policies.all import All
from echo.policies.echo import Echo
from echo.policies.ilp import IntegerProgram
from echo.policies.mincut import Mincut
from echo.policies.none import RecomputeNone
from echo.policies.problem import Policy
from echo.policies.search import Search
from echo.policies.sublinear import Sublinear
from echo.policies.user_policy import UserPolicy

POLICIES: tuple[Policy, ...] = (Search(), Echo(), Sublinear(), Mincut(), IntegerProgram(), All(), RecomputeNone())


def policy_of(policy: str | PolicyFunction) -> Policy:
    """Returns the policy of this name, or a function of the user as a policy.

    Raises:
        OptionError: there is none.
    """
    if not isinstance(policy, str):
        return UserPolicy(policy)
    for each in POLICIES:
        if each.name == policy:
            return each
    raise OptionError(f"policy: expected one of {', '.join(each.name for each in POLICIES)}, got {policy!r}")
