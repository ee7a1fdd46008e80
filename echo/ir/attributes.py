"""Attributes of nodes by which a plan is written into a graph, and how MXNet writes flags."""

from __future__ import annotations

from typing import Mapping

# Read by the native hook: the recomputed outputs, as "0" or "0,2"; where a node runs again more than once, or not for
# all backward nodes, then the backward nodes at which that begins, counted from 0, as "0@17,230".
PLAN_ATTRIBUTE = "__echo_recompute__"
# Read by the native hook: the match range of MXNet's memory planner, -1 for echo's own assignment, -1s for that of a
# CachedOp with static_alloc, in which MXNet computes sums of gradients in place.
RANGE_ATTRIBUTE = "__echo_match_range__"
GRADIENT_ATTRIBUTE = "__echo_gradient__"  # read by the native hook: another implementation of the gradient
# Read by the native hook (``inplace.cc``): "OPERATOR:INPUT>OUTPUT,...;OPERATOR:..." must not be computed in place.
APART_ATTRIBUTE = "__echo_apart__"
COPY_ATTRIBUTE = "__echo_copies__"  # read by the native hook: which gradients of this operator are copied
MIRROR_ATTRIBUTE = "__force_mirroring__"  # read by MXNet itself
OF_PLANS = (PLAN_ATTRIBUTE, RANGE_ATTRIBUTE, MIRROR_ATTRIBUTE, GRADIENT_ATTRIBUTE, APART_ATTRIBUTE)
HOOK_ATTRIBUTES = (PLAN_ATTRIBUTE, RANGE_ATTRIBUTE, GRADIENT_ATTRIBUTE, APART_ATTRIBUTE, COPY_ATTRIBUTE)


def is_true(attrs: Mapping[str, str], name: str, default: str = "False") -> bool:
    """Whether a flag of MXNet's is set, which is ``default`` where the attributes do not say."""
    return means_true(attrs.get(name, default))


def means_true(text: str) -> bool:
    """Whether MXNet reads a flag of this text as set: upper and lower case are the same to it."""
    return text.lower() in ("true", "1")
