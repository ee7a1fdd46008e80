"""Are the CUDA kernels right, and how fast are they?  Needs a GPU, g++, numpy, torch and matplotlib; no MXNet.

    python benchmarks/gpu_check.py [--seed N] [--seconds 480]

Builds libecho_kernels.so with g++ alone into build/gpu/, holds every kernel against its float64 reference on fresh
random inputs, and both routes of LSTM layers against each other, bit for bit; then times: bandwidth-bound kernels
against a copy, torch eager and torch.compile; attention against torch's own; a training step of an LSTM layer against
cuDNN and the unfused form; the layouts of its matrix products. Each section has a share of the seconds and says what
it left out. Writes gpu_check.json and gpu_check.png into results/.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks.gpu_suite import main

    sys.exit(main())
