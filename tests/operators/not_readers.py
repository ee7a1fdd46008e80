"""Operators with a case that are no readers, each with what was seen."""

from __future__ import annotations

from typing import Mapping

_ELSEWHERE = "its gradient reads the arrays that the forward pass was handed, wherever its inputs are by then"
_UNDEFINED = "stock MXNet does not agree with itself: gradients that it never writes, or that hang on what is in memory"
_OVER = "it writes over its first input, whoever else reads it"
_LIKE = "after a mask as bits that nothing else reads, it drew other numbers; the cause is not known"
NOT_READERS: Mapping[str, str] = {
    **dict.fromkeys(("RNN", "_foreach", "_while_loop", "_cond"), _ELSEWHERE),
    "_echo_draw_mask": "it draws after the Dropout that it reads: both stay where they are",
    "Custom": "an operator of the user may keep the arrays of its forward pass",
    **dict.fromkeys(("_contrib_MultiBoxTarget", "_contrib_hawkesll", "_npi_tensorsolve"), _UNDEFINED),
    **dict.fromkeys(
        ("_scatter_set_nd", "_npi_boolean_mask_assign_scalar", "_npi_boolean_mask_assign_tensor"), _OVER
    ),
    **dict.fromkeys(
        ("_random_exponential_like", "_random_gamma_like", "_random_generalized_negative_binomial_like",
         "_random_negative_binomial_like", "_random_normal_like", "_random_poisson_like", "_random_uniform_like"), _LIKE
    ),
}  # fmt: skip
