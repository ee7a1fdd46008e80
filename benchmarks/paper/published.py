"""The authors' figures, to compare with those that are measured here: figures of whole GPUs, as nvidia-smi shows them.

Echo is Zheng et al. (ISCA 2020), EcoRNN their earlier report (2018), both on Titan Xp, Titan V and RTX 2080 Ti. Such
totals also hold MXNet's context, its pools and cuDNN's workspaces, 0.5 to 0.7 GB, which no planner knows of.
"""

from __future__ import annotations

#: Times by which memory falls over NMT, DeepSpeech2, Transformer and ResNet: the mean and the largest (abstract).
MEAN, LARGEST = 1.89, 3.13
#: The same of single workloads; of "tbd" 2.08 on Pascal, 2.03 on Volta, 2.04 on Turing.
FOOTPRINT = {"nmt_tbd": "2.03-2.08", "nmt_groundhog": "1.73", "nmt_best": "2.41"}
#: Measurements of MXNet's own developers (pull request 18228, issue 14383): shares of the memory without recomputation.
RESNET_152_BELOW, RESNET_50_MIRRORED = 0.6, 4496 / 3317
#: Times by which the memory of "tbd" falls, by the swept value; of layers only the ends are named.
SWEPT = {"layers": {1: 2.57, 5: 1.68}, "hidden": {256: 1.85, 512: 2.14, 1024: 2.39}}
#: GB of "tbd" without recomputation by the batch.
BATCHES = {4: 1.27, 128: 8.98}
#: GB of "tbd" at batch 128 by what holds them, without echo; and what attention holds as one operator.
PARTS = {"attention": 5.37, "RNN": 1.88, "output": 0.79, "other": 0.68}
FUSED_ATTENTION = 0.25
#: Bytes of what an LSTM cell keeps for the backward pass over those of its output.
CELL = 9
