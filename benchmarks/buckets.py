"""One BucketingModule with six lengths: the memory of its shared pool, and how long planning all of them takes.

    python -m benchmarks.buckets

The model translates with LSTMs and attention (`benchmarks.models.nmt_symbol`). Every configuration binds in a process
of its own. Writes results/buckets.json.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from typing import Any

from benchmarks.record import apart, parser, save

LENGTHS = (10, 20, 30, 40, 50, 60)
HIDDEN, WORDS, BATCH = 256, 2000, 64
BOUNDS: dict[str, float | str | None] = {"0.10": "auto", "none": None}
POOL_BAR, PLANNING_BAR, SECOND_BAR = 0.55, 6.0, 1.0


def bound(overhead: str | None) -> dict[str, Any]:
    """Binds every length, with echo if there is a bound: MB of the shared pool, and seconds."""
    import mxnet as mx

    import echo
    from benchmarks.models import nmt_symbol
    from echo import native
    from echo.frontend.install import install_hook
    from echo.runtime import bind
    from echo.runtime.bind_plan import Pool

    install_hook()
    planning = _timed(bind, "plan_bind")
    if overhead is not None:
        echo.enable(max_overhead=BOUNDS[overhead])
    module = mx.mod.BucketingModule(
        lambda length: (nmt_symbol(length, HIDDEN, WORDS), ("source", "target"), ("softmax_label",)), max(LENGTHS)
    )
    pool = Pool([])
    planned: dict[int, float] = {}
    for length in (max(LENGTHS), *LENGTHS[:-1]):
        shape = (BATCH, length)
        data, label = [("source", shape), ("target", shape)], [("softmax_label", shape)]
        with native.capture() as caught:
            if length == max(LENGTHS):
                module.bind(data, label)
                module.init_params()
            else:
                module.switch_bucket(length, data, label)
        planned[length] = caught.graph["allocated_bytes"] / 1e6
        pool.share(chunks(caught.graph))
    return {"pool_mb": sum(pool.chunks) / 1e6, "planned_mb": planned, "planning_seconds": sum(planning)}


def _timed(module: Any, name: str) -> list[float]:
    """Wraps a function of a module; the list grows by the seconds of each call."""
    seconds: list[float] = []
    original = getattr(module, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - started)

    setattr(module, name, wrapper)
    return seconds


def chunks(graph: Any) -> list[int]:
    """Bytes of each chunk that MXNet planned, for 4 bytes an element."""
    from echo import native

    sizes: dict[int, int] = {}
    shapes = (shape for node in native.captured_nodes(graph) for shape in node.kind["shapes"])
    for shape, storage in zip(shapes, graph["storage"]):
        if storage >= 0:
            sizes[storage] = max(sizes.get(storage, 0), 4 * math.prod(shape))
    return list(sizes.values())


def main() -> None:
    """Measures stock, and each bound twice: with an empty cache folder, then with what the first run left there."""
    parser(__doc__).parse_args()
    stock = apart("buckets", "bound", None)
    rows: list[dict[str, Any]] = [{"bound": "stock", **stock}]
    print(f"stock: pool {stock['pool_mb']:.0f} MB", flush=True)
    for overhead in BOUNDS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["ECHO_CACHE_DIR"] = folder
            first, second = (apart("buckets", "bound", overhead) for _ in range(2))
        ratio = first["pool_mb"] / stock["pool_mb"]
        took = first["planning_seconds"], second["planning_seconds"]
        rows.append({"bound": overhead, **first, "second_planning_seconds": took[1], "ratio": ratio})
        print(f"bound {overhead}: pool {first['pool_mb']:.0f} MB ({ratio:.2f} of stock), planned in {took[0]:.1f} s, "
              f"the second time in {took[1]:.2f} s", flush=True)  # fmt: skip
    met = ratio <= POOL_BAR and took[0] <= PLANNING_BAR and took[1] <= SECOND_BAR
    print(f"bars {POOL_BAR}, {PLANNING_BAR} s, {SECOND_BAR} s: {'met' if met else 'MISSED'}")
    print("written:", save("buckets", rows).name)


if __name__ == "__main__":
    main()
