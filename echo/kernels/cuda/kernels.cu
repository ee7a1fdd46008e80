// All kernels: `make ptx` turns this file into kernels.ptx.
#include "attention_grad.cuh"
#include "cells.cuh"
#include "gemm.cuh"
#include "lstm.cuh"
#include "norm_cell.cuh"
#include "pointwise.cuh"
#include "rows.cuh"
#include "softmax_output.cuh"
