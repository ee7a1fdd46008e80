// The kernels of all families at once, as the tests emulate them; NVRTC compiles a family at a time (`nvrtc.cc`).
#define ECHO_IN(family) 1
#include "attention_grad.cuh"
#include "cells.cuh"
#include "cross_entropy.cuh"
#include "gemm.cuh"
#include "gru.cuh"
#include "lstm.cuh"
#include "norm_cell.cuh"
#include "pointwise.cuh"
#include "rnn.cuh"
#include "rows.cuh"
#include "softmax_output.cuh"
