"""Data-parallel training with MXNet's own parameter server, and not a line about echo.

    python examples/data_parallel.py --launch 2            # a scheduler, a server and two workers on this machine
    ECHO=1 python examples/data_parallel.py --launch 2     # the same weights, in less memory

Each worker learns from its share of `pydoc_data.topics`, the text of `help("for")`, to foretell the next character;
the server adds up their gradients. On a cluster, start this file without `--launch` once for each role, as MXNet's
`tools/launch.py` does: `DMLC_ROLE` is scheduler, server or worker, and `DMLC_PS_ROOT_URI`, `DMLC_PS_ROOT_PORT`,
`DMLC_NUM_SERVER` and `DMLC_NUM_WORKER` are the same everywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import socket
import subprocess
import sys
from typing import Any

LENGTH, SIZE, CHARACTERS = 24, 64, 128


def launch(workers: int) -> int:
    """Starts every role on this machine; the exit status of the workers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_INTERFACE": "lo",
    }
    command = [sys.executable, "-W", "ignore", *sys.argv]
    processes = [
        subprocess.Popen(command, env={**os.environ, **shared, "DMLC_ROLE": role})
        for role in ["scheduler", "server"] + ["worker"] * workers
    ]
    try:
        return max(abs(process.wait()) for process in processes[2:])
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def network(mx: Any) -> Any:
    """Two LSTM layers over an embedding, unrolled."""
    cells = mx.rnn.SequentialRNNCell()
    for layer in range(2):
        cells.add(mx.rnn.LSTMCell(SIZE, prefix=f"lstm{layer}_"))
        cells.add(mx.rnn.DropoutCell(0.2, prefix=f"dropout{layer}_"))
    letters = mx.sym.Embedding(mx.sym.var("data"), input_dim=CHARACTERS, output_dim=SIZE, name="embedding")
    outputs, _ = cells.unroll(LENGTH, letters, layout="NTC", merge_outputs=True)
    scores = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, SIZE)), num_hidden=CHARACTERS, name="scores")
    return mx.sym.SoftmaxOutput(scores, mx.sym.Reshape(mx.sym.var("softmax_label"), shape=(-1,)), name="softmax")


def work(steps: int, batch: int) -> None:
    """The work of each process. A scheduler or server never comes back from the import of mxnet."""
    from pydoc_data.topics import topics

    import mxnet as mx
    import numpy as np

    kvstore = mx.kv.create("dist_sync")
    text = np.frombuffer("".join(topics[name] for name in sorted(topics)).encode("ascii", "replace"), np.uint8)
    share = text[kvstore.rank * len(text) // kvstore.num_workers :][: steps * batch * LENGTH + 1].astype(np.float32)
    data, label = (part.reshape(steps * batch, LENGTH) for part in (share[:-1], share[1:]))
    mx.random.seed(kvstore.rank)
    module = mx.mod.Module(network(mx), context=mx.cpu())
    perplexity = mx.metric.Perplexity(None)
    rate = {"learning_rate": 0.01, "rescale_grad": 1 / (batch * LENGTH * kvstore.num_workers)}
    module.fit(mx.io.NDArrayIter(data, label, batch), num_epoch=1, kvstore=kvstore, optimizer="adam",
               optimizer_params=rate, initializer=mx.init.Xavier(), eval_metric=perplexity)  # fmt: skip
    digest = hashlib.sha256()
    for _, array in sorted(module.get_params()[0].items()):
        digest.update(array.asnumpy().tobytes())
    learned = f"perplexity {perplexity.get()[1]:.2f}, weights {digest.hexdigest()[:16]}"
    sys.stdout.write(f"worker {kvstore.rank}: {learned}\n")  # at once, since the workers share the terminal
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Data-parallel training on one machine or many.")
    parser.add_argument("--launch", type=int, default=0, metavar="N", help="start all roles here, with N workers")
    parser.add_argument("--steps", type=int, default=30, help="updates (default: 30)")
    parser.add_argument("--batch", type=int, default=16, help="sequences in each worker's batch (default: 16)")
    arguments = parser.parse_args()
    if arguments.launch and "DMLC_ROLE" not in os.environ:
        return launch(arguments.launch)
    work(arguments.steps, arguments.batch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
