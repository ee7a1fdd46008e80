"""Are the CUDA kernels right, and how fast are they?  Needs a GPU, g++, numpy, torch and matplotlib; no MXNet.

    python benchmarks/gpu_check.py [--seed N] [--seconds 480]

Builds libecho_kernels.so with g++ alone into build/gpu/, then goes through the steps of `gpu_suite.STEPS`, the most
telling first: every kernel against its float64 reference on fresh random inputs; both routes of LSTM layers against
each other, bit for bit; a training step of an LSTM layer against cuDNN and the unfused form, and what such a step is
made of (barrier, product, cell); compute-sanitizer, where it is there; GNMT's attention scores, losses over large
vocabularies, attention, kernels that memory bounds, DeepBench's LSTM and GRU layers, FlashRNN's sweep over head sizes,
against cuDNN (with and without TF32), torch eager, SDPA and, last, torch.compile. Each step has a share of the seconds
that are left and lists what did not fit. gpu_check.json in results/ is written again after each step; the picture
gpu_check.png, at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks.gpu_suite import main

    sys.exit(main())
