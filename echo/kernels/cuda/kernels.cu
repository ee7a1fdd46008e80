// Every kernel under its name, for float32 (_f32) and float16 (_f16). `make ptx` turns this file into kernels.ptx.
#include "attention.cuh"
#include "cells.cuh"
#include "lstm.cuh"
#include "pointwise.cuh"
#include "rows.cuh"
#include "tile.cuh"

#ifndef ECHO_ENTRY
#define ECHO_ENTRY(name, Arguments)
#endif

#define ECHO_KERNEL(name, Arguments, ...)                                                                \
  extern "C" __global__ void __launch_bounds__(echo_cuda::kThreads) name(const echo_cuda::Arguments a) { \
    __VA_ARGS__;                                                                                         \
  }                                                                                                      \
  ECHO_ENTRY(name, Arguments)

#define ECHO_BOTH(name, Arguments)                                  \
  ECHO_KERNEL(name##_f32, Arguments, echo_cuda::name<float>(a))     \
  ECHO_KERNEL(name##_f16, Arguments, echo_cuda::name<half_t>(a))

// Those that read one number or four at a time.
#define ECHO_WIDE(name, Arguments)                                                                          \
  ECHO_KERNEL(name##_f32, Arguments, a.wide ? echo_cuda::name<float, 4>(a) : echo_cuda::name<float, 1>(a))  \
  ECHO_KERNEL(name##_f16, Arguments, a.wide ? echo_cuda::name<half_t, 4>(a) : echo_cuda::name<half_t, 1>(a))

ECHO_WIDE(lstm_cell, LstmCell)
ECHO_WIDE(lstm_cell_grad, LstmCellGrad)
ECHO_WIDE(gru_cell, GruCell)
ECHO_WIDE(gru_cell_grad, GruCellGrad)
ECHO_WIDE(mlp_score, MlpScore)
ECHO_WIDE(mlp_score_grad_rows, MlpScoreGrad)
ECHO_WIDE(mlp_score_grad_columns, MlpScoreGrad)
ECHO_WIDE(layer_norm, LayerNorm)
ECHO_WIDE(layer_norm_grad_rows, LayerNormGrad)
ECHO_WIDE(layer_norm_grad_columns, LayerNormGrad)
ECHO_WIDE(bias_act, BiasAct)
ECHO_WIDE(bias_act_grad, BiasActGrad)
ECHO_WIDE(sequence_reverse, SequenceReverse)
ECHO_BOTH(sum_rows, SumRows)
ECHO_BOTH(dropout, Dropout)
ECHO_BOTH(relu, Relu)
ECHO_BOTH(mask_grad, MaskGrad)
ECHO_BOTH(attention, Attention)
ECHO_BOTH(attention_delta, AttentionGrad)
ECHO_BOTH(attention_grad_queries, AttentionGrad)
ECHO_BOTH(attention_grad_keys, AttentionGrad)
ECHO_BOTH(lstm_steps, LstmSteps)
ECHO_BOTH(lstm_cells, LstmCells)
ECHO_BOTH(lstm_back_steps, LstmBackSteps)

// The products of an LSTM layer, with tiles of 64 (small) or 128 (big): its inputs by its weights; its gates' gradients by
// its weights, and by its inputs.
#define ECHO_GEMM(size, R, type, T)                                                                                   \
  ECHO_KERNEL(gemm_inputs_##size##_##type, Gemm, echo_cuda::gemm<R, T, false, T, false, float>(a))                    \
  ECHO_KERNEL(gemm_gates_##size##_##type, Gemm, echo_cuda::gemm<R, float, false, T, true, T>(a))                      \
  ECHO_KERNEL(gemm_weights_##size##_##type, Gemm, echo_cuda::gemm<R, float, true, T, true, T>(a))

ECHO_GEMM(small, 4, f32, float)
ECHO_GEMM(big, 8, f32, float)
ECHO_GEMM(small, 4, f16, half_t)
ECHO_GEMM(big, 8, f16, half_t)
