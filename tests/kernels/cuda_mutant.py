"""Runs cases against an emulated driver with the given kernels; exit status 3 where one of them fails.

    python -m tests.kernels.cuda_mutant DRIVER KERNELS MUTANT ROUNDS BEGINNING [SETTING=NUMBER ...]

ROUNDS of the cases whose text begins with BEGINNING, each with random inputs and schedules of its own. Where that is
"large scores", "forms" or "draws", the cases of `tests.kernels.large_scores`, `attention_forms` or `check_draws`, once.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np

from benchmarks.gpu_cases import cases_of, check
from echo.errors import KernelError
from tests.kernels.attention_forms import FORMS, check_form
from tests.kernels.cases import check_draws
from tests.kernels.cuda_emulation import Emulated
from tests.kernels.large_scores import SIZES, VARIANTS, check_large_scores
from tests.support.kernel_calls import ADD, WRITE

CAUGHT = 3
OTHERS = ("large scores", "forms", "draws")


def main() -> int:
    driver, kernels, mutant, rounds, beginning, *settings = sys.argv[1:]
    backend = Emulated(Path(driver), Path(kernels))
    backend.load(Path(mutant))
    backend.set(**{name: int(value) for name, _, value in (setting.partition("=") for setting in settings)})
    if beginning in OTHERS:
        return _others(backend, beginning)
    cases = [case for case in cases_of(1) if str(case).startswith(beginning)]
    if not cases:
        raise LookupError(beginning)
    for seed in range(int(rounds)):
        for case in cases:
            reqs = (WRITE, ADD) if seed % 2 else (ADD, WRITE)
            try:
                check(case, "float32", backend, np.random.default_rng(seed), lambda i, reqs=reqs: reqs[i % 2])
            except (AssertionError, KernelError) as error:
                print(error)
                return CAUGHT
    return 0


def _others(backend: Emulated, beginning: str) -> int:
    try:
        if beginning == "draws":
            check_draws(backend.run)
        elif beginning == "forms":
            for form in FORMS:
                check_form(backend.run, form, "float32")
        else:
            for size, variant in itertools.product(SIZES, VARIANTS):
                check_large_scores(backend.run, size, "float32", variant)
    except AssertionError as error:
        print(error)
        return CAUGHT
    return 0


if __name__ == "__main__":
    sys.exit(main())
