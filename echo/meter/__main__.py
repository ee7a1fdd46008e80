"""The process that measures: answers requests, one line of JSON each, on the socket that is its standard input.

It is started by `echo.frontend.measurement_process` as a file, with neither site-packages nor the user's settings of
Python. Whatever happens here, be it a division by zero or a lack of memory, happens to this process alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import types
from typing import Any, Mapping

_DUMPABLE = 4  # PR_SET_DUMPABLE


def main() -> None:
    """Makes MXNet ready as the first line says, and answers requests until the socket is closed."""
    _stand_apart()
    from echo.meter.timer import now, work_since

    channel = socket.socket(fileno=0)
    lines = channel.makefile("r", encoding="utf-8")
    setup = json.loads(lines.readline())
    answer = _answers(setup)
    channel.sendall(json.dumps({"ready": True, "spent": sum(now().threads.values())}).encode() + b"\n")
    for line in lines:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["limit"])  # it ends this process, whatever that is doing
        start = now()
        reply = answer(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        channel.sendall(json.dumps({**reply, "spent": work_since(start, setup["device"])}).encode() + b"\n")
    os._exit(0)


def _stand_apart() -> None:
    """Separates this process from the user's: nothing passes between them but through the socket."""
    import ctypes

    os.setsid()  # signals from a terminal are not for this process
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                continue  # the list of the folder itself
    ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)  # no core files
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")  # where memory runs out, this process goes first
    except OSError:
        pass
    echo = types.ModuleType("echo")  # the package, without all that it imports
    echo.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["echo"] = echo


def _answers(setup: Mapping[str, Any]) -> Any:
    """The function that answers a request."""
    from echo.meter.capi import Library, Microbenchmark, MxnetError, fresh_from
    from echo.meter.timer import OperatorTimer, race

    library = Library(setup["library"], setup["extension"], tuple(setup["device"]), setup["numpy_shape"])
    library.constant((1,), 0, 0).wait()  # is the device there, and free?
    clock, elsewhere = OperatorTimer(library), OperatorTimer(library.elsewhere())

    def timed(clock: OperatorTimer, microbenchmark: Microbenchmark, once: float | None) -> dict[str, Any]:
        alone = clock.once(microbenchmark)
        too_long = clock.too_long(microbenchmark, alone.seconds) if once is None else 0.0
        if too_long:
            return {"too_long": too_long, "once": alone.seconds}
        least = alone.seconds if once is None else min(once, alone.seconds)
        return clock.seconds(microbenchmark, alone._replace(seconds=least))._asdict()

    def answer(request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if "microbenchmark" in request:
                microbenchmark = Microbenchmark.from_json(request["microbenchmark"])
                if not microbenchmark.fresh or library.device[0] != 1:
                    return timed(clock, microbenchmark, request["once"])
                with fresh_from(microbenchmark.fresh):
                    return timed(elsewhere, microbenchmark, request["once"])
            if "streaming" in request:
                return {"streaming": clock.streaming()}
            return {"race": race(library, request["graphs"], request["types"], request["time"])}
        except MxnetError as error:
            return {"error": str(error)}

    return answer


if __name__ == "__main__":
    main()
