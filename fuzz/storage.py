"""Whether a run holds more of MXNet's storage with echo. Scripts of found faults hold this file as it is."""

import gc

import mxnet as mx

from echo.verify.storage import peak_storage as storage_held

MOST_GROWTH = 1.01  # times what is held without echo
# As `echo.verify.storage` allows.
LEAST_BYTES = 2**20


def storage_growth(own, echo, context=0):
    """How much more is held in ``echo()`` than in ``own()``, as text; empty if it is no more. Each trains by itself.

    Of some runs the one of echo's that held the least, and the one without that held the most.
    """
    mine, its = most_held(echo, context), most_held(own, context)
    for _ in range(2):
        if mine <= max(MOST_GROWTH * its, its + LEAST_BYTES):
            return ""
        mine, its = min(mine, most_held(echo, context)), max(its, most_held(own, context))
    grown = mine > max(MOST_GROWTH * its, its + LEAST_BYTES)
    return f"storage: {its:,} bytes became {mine:,}" if grown else ""


def most_held(run, context):
    """The most bytes that a run holds at once of what it has let go of afterwards."""

    def counted():
        run()
        gc.collect()  # blocks refer to themselves

    gc.collect()
    return storage_held(counted, mx.cpu(context))[0]
