"""What does echo cost a training whose batches seldom have the same shape twice, and what does it save?

    python -m benchmarks.changing_shapes [CASE ...]

Each case trains hybridized Gluon blocks in a process of its own, with ECHO=0 and ECHO=1 in turn, from an empty cache.
Time: the seconds of all steps after the first one, with echo as a multiple of without; a row has the median of the
rounds. Memory: the peak of MXNet's storage in these steps. Writes results/changing_shapes.json.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

from benchmarks.record import known_rows, named, save

ROUNDS = 3
BAR = 1.1  # times the seconds without echo, at most


class Case(NamedTuple):
    """A training: what makes its step, which takes a size, and the sizes of its steps."""

    make: Callable[[], Callable[[int], None]]
    sizes: list[int]


def _trained(net: Any, arrays: Callable[[int], tuple[Any, ...]], loss: Callable[[Any], Any]) -> Callable[[int], None]:
    import mxnet as mx
    from mxnet import autograd, gluon

    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-4})

    def step(size: int) -> None:
        with autograd.record():
            value = loss(net(*arrays(size)))
        value.backward()
        trainer.step(1)
        mx.nd.waitall()

    return step


def graph_network() -> Callable[[int], None]:
    """Three layers of graph convolution with normalization, over a graph of some hundred nodes."""
    import mxnet as mx
    from mxnet.gluon import HybridBlock, nn

    class Network(HybridBlock):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.dense = [nn.Dense(64, flatten=False) for _ in range(3)]
                self.norm = [nn.LayerNorm() for _ in range(3)]
                for child in (*self.dense, *self.norm):
                    self.register_child(child)

        def hybrid_forward(self, F: Any, x: Any, links: Any) -> Any:
            for dense, norm in zip(self.dense, self.norm):
                x = F.relu(norm(F.dot(links, dense(x)) + dense(x)))
            return F.softmax(x)

    return _trained(Network(), lambda size: (mx.nd.ones((size, 64)), mx.nd.ones((size, size))), lambda y: y.mean())


def lstm_tagger() -> Callable[[int], None]:
    """Embedding, two layers of LSTM, dropout and an output over 500 tags, for 16 sentences."""
    import mxnet as mx
    from mxnet.gluon import HybridBlock, nn, rnn

    class Tagger(HybridBlock):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.embed, self.lstm = nn.Embedding(1000, 128), rnn.LSTM(128, 2, layout="NTC", input_size=128)
                self.drop, self.dense = nn.Dropout(0.2), nn.Dense(500, flatten=False, in_units=128)

        def hybrid_forward(self, F: Any, x: Any, h: Any, c: Any) -> Any:
            out, _ = self.lstm(self.drop(self.embed(x)), [h, c])
            return F.log_softmax(self.dense(self.drop(F.tanh(out))))

    zero = mx.nd.zeros((2, 16, 128))
    return _trained(Tagger(), lambda size: (mx.nd.ones((16, size)), zero, zero), lambda y: -y.mean())


def attention_tagger() -> Callable[[int], None]:
    """Two layers of attention and feed-forward, for 8 sentences."""
    import mxnet as mx
    from mxnet.gluon import HybridBlock, nn

    class Layer(HybridBlock):  # type: ignore[misc]
        def __init__(self, width: int = 128) -> None:
            super().__init__()
            with self.name_scope():
                self.q, self.k, self.v = (nn.Dense(width, flatten=False, in_units=width) for _ in range(3))
                self.up, self.down = nn.Dense(4 * width, flatten=False), nn.Dense(width, flatten=False)
                self.first, self.second, self.drop = nn.LayerNorm(), nn.LayerNorm(), nn.Dropout(0.1)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            scores = F.batch_dot(self.q(x), self.k(x), transpose_b=True) * 0.1
            x = self.first(x + F.batch_dot(self.drop(F.softmax(scores)), self.v(x)))
            return self.second(x + self.drop(self.down(F.relu(self.up(x)))))

    net = nn.HybridSequential()
    net.add(nn.Embedding(1000, 128), Layer(), Layer(), nn.Dense(200, flatten=False))
    return _trained(net, lambda size: (mx.nd.ones((8, size)),), lambda y: y.square().mean())


def ssd_scales() -> Callable[[int], None]:
    """A small single-shot detector: features of a small ResNet, and two convolutions on each of three scales."""
    import mxnet as mx
    from mxnet.gluon import HybridBlock, model_zoo, nn

    class Detector(HybridBlock):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.body = model_zoo.vision.resnet18_v1().features[:8]
                self.down = [self._stage() for _ in range(2)]
                self.heads = [nn.Conv2D(24, 3, padding=1) for _ in range(3)]
                for child in (*self.down, *self.heads):
                    self.register_child(child)

        @staticmethod
        def _stage() -> Any:
            stage = nn.HybridSequential()
            stage.add(nn.Conv2D(128, 3, strides=2, padding=1), nn.BatchNorm(), nn.Activation("relu"))
            return stage

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            x = self.body(x)
            scores = [F.flatten(self.heads[0](x))]
            for down, head in zip(self.down, self.heads[1:]):
                x = down(x)
                scores.append(F.flatten(head(x)))
            return F.concat(*scores, dim=1)

    return _trained(Detector(), lambda size: (mx.nd.ones((4, 3, size, size)),), lambda y: y.square().mean())


def _sizes(number: int, least: int, most: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randint(least, most) for _ in range(number)]


CASES = {
    "graph network, 60 sizes": Case(graph_network, random.Random(0).sample(range(150, 450), 60)),
    "LSTM tagger, 200 sentences": Case(lstm_tagger, _sizes(200, 5, 60, 1)),
    "attention tagger, 100 sentences": Case(attention_tagger, _sizes(100, 10, 120, 2)),
    "SSD, five scales": Case(ssd_scales, [128, 160, 192, 224, 256] * 5),
}


def trained(name: str) -> dict[str, float]:
    """Trains a case in this process: seconds after the first step, and the peak of MXNet's storage in bytes."""
    case = CASES[name]
    step = case.make()
    step(case.sizes[0])
    import echo.runtime.transparent  # noqa: F401  # the counter needs it to be imported first
    from echo.instrument.recording import StorageCounter
    from echo.verify import storage

    assert storage.counting_blocker() == ""
    counter = StorageCounter()
    started = time.perf_counter()
    for size in case.sizes[1:]:
        step(size)
    return {"seconds": time.perf_counter() - started, "bytes": counter.most()}


def _run(name: str, on: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "ECHO": on, "ECHO_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
        code = f"import json; from benchmarks.changing_shapes import trained; print(json.dumps(trained({name!r})))"
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**result, "plans": len(list(Path(folder).glob("plans/*.json")))}


def row(name: str) -> dict[str, Any]:
    """Measures one case."""
    pairs = [(_run(name, "0"), _run(name, "1")) for _ in range(ROUNDS)]
    ratio = statistics.median(echo["seconds"] / stock["seconds"] for stock, echo in pairs)
    stock, echo = pairs[0]
    result = {
        "case": name, "time": round(ratio, 3), "bar": BAR,
        "stock_seconds": round(statistics.median(each["seconds"] for each, _ in pairs), 3),
        "stock_mb": round(stock["bytes"] / 1e6, 1), "echo_mb": round(echo["bytes"] / 1e6, 1),
        "plans_on_disk": echo["plans"],
    }  # fmt: skip
    print(f"{name}: {ratio:.2f} of the time, {result['stock_mb']} -> {result['echo_mb']} MB", flush=True)
    return result


def main() -> None:
    names = named(__doc__, CASES)
    rows = {kept["case"]: kept for kept in known_rows("changing_shapes")}
    rows.update({name: row(name) for name in names})
    print(save("changing_shapes", [rows[name] for name in CASES if name in rows]))


if __name__ == "__main__":
    main()
