// Products of matrices on tiles of 64 or 128, and those of linear layers: an LSTM layer's that need no order of time,
// and the scores of a softmax output.
#ifndef ECHO_KERNELS_CUDA_GEMM_CUH_
#define ECHO_KERNELS_CUDA_GEMM_CUH_
#include "tile.cuh"

namespace echo_cuda {

// Calls put(m, n, sum) for row spread(y, i) of a tile, which lies in row y of shared memory, for y from 0 to 15.
template <int R, typename Put>
__device__ inline void put_rows(const Slices<R>& rows, Long m0, Long m_end, Long n0, Long n_end, int i, Put put) {
  ECHO_UNROLL(1)
  for (int e = threadIdx.x; e < 16 * 16 * R; e += kThreads) {
    const int row = e / (16 * R), column = e % (16 * R);
    const Long m = m0 + spread(row, i), n = n0 + column;
    if (m < m_end && n < n_end) put(m, n, rows.at[row][column]);
  }
}

// Calls put(m, n, sum) for each result of a product of m by n. Tiles are of 16 R by 16 R; rows_of(m0, rows) is the left
// operand of those from row m0 on, columns_of(n0, columns) the right one.
template <int R, typename RowsOf, typename ColumnsOf, typename Put>
__device__ inline void each_product(Long m, Long n, RowsOf rows_of, ColumnsOf columns_of, Put put) {
  __shared__ Slices<R> left, right;
  const int tile = 16 * R;
  const Long across = (n + tile - 1) / tile, tiles = (m + tile - 1) / tile * across;
  for (Long t = blockIdx.x; t < tiles; t += gridDim.x) {
    const Long m0 = t / across * tile, n0 = t % across * tile;
    float sums[R][R] = {};
    tile_product<R>(rows_of(m0, smaller(tile, m - m0)), columns_of(n0, smaller(tile, n - n0)), &left, &right, sums);
    ECHO_UNROLL(R)  // sums has to stay in registers
    for (int i = 0; i < R; ++i) {
      // 16 rows, one of each thread of a column, go through shared memory: threads side by side write side by side.
      const int x = threadIdx.x % 16, y = threadIdx.x / 16;
      for (int j = 0; j < R; j += 4) {
        const Pack<4> four = {{sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]}};
        Access<4>::store(&left.at[y][spread(x, j)], four);
      }
      __syncthreads();
      put_rows<R>(left, m0, m, n0, n, i, put);
      __syncthreads();
    }
  }
}

// c = a b, a as [m][k] or [k][m], b as [n][k] or [k][n].
template <int R, typename A, bool a_by_depth, typename B, bool b_by_depth, typename C>
__device__ void gemm(const Gemm& g) {
  const auto rows_of = [&](Long m0, int rows) {
    const A* from = static_cast<const A*>(g.a) + m0 * (a_by_depth ? 1 : g.a_stride);
    return Operand<A, a_by_depth>{from, g.a_stride, rows, g.k, g.a_wide};
  };
  const auto columns_of = [&](Long n0, int columns) {
    const B* from = static_cast<const B*>(g.b) + n0 * (b_by_depth ? 1 : g.b_stride);
    return Operand<B, b_by_depth>{from, g.b_stride, columns, g.k, g.b_wide};
  };
  each_product<R>(g.m, g.n, rows_of, columns_of, [&](Long m, Long n, float value) {
    if (g.bias) value += get<B>(g.bias, n) + (g.bias2 ? get<B>(g.bias2, n) : 0.f);
    put<C>(g.c, m * g.c_stride + n, value);
  });
}

// c = bias + bias2 in each row: cuBLAS adds its product to that.
template <typename T>
__device__ void put_biases(const Gemm& g) {
  each_column<1>(g.m, g.n, [&](Long m, Long n) {
    const float value = get<T>(g.bias, n) + (g.bias2 ? get<T>(g.bias2, n) : 0.f);
    static_cast<float*>(g.c.data)[m * g.c_stride + n] = value;
  });
}

}  // namespace echo_cuda

#if ECHO_IN(gemm)
ECHO_BOTH(1, put_biases, Gemm)

// With tiles of 64 (small) or 128 (big): a layer's inputs by its weights; its gates' gradients by its weights, and by
// its inputs.
#define ECHO_GEMM(size, R, type, T)                                                                   \
  ECHO_KERNEL(1, gemm_inputs_##size##_##type, Gemm, echo_cuda::gemm<R, T, false, T, false, float>(a)) \
  ECHO_KERNEL(1, gemm_gates_##size##_##type, Gemm, echo_cuda::gemm<R, float, false, T, true, T>(a))   \
  ECHO_KERNEL(1, gemm_weights_##size##_##type, Gemm, echo_cuda::gemm<R, float, true, T, true, T>(a))

// The gradients of float16 scores by a layer's weights, and by its inputs; those of float32 are as gates' gradients.
#define ECHO_SCORE_GEMM(size, R)                                                                                  \
  ECHO_KERNEL(1, gemm_score_inputs_##size##_f16, Gemm, echo_cuda::gemm<R, half_t, false, half_t, true, float>(a)) \
  ECHO_KERNEL(1, gemm_score_weights_##size##_f16, Gemm, echo_cuda::gemm<R, half_t, true, half_t, true, float>(a))

ECHO_SCORE_GEMM(small, 4)
ECHO_SCORE_GEMM(big, 8)

ECHO_GEMM(small, 4, f32, float)
ECHO_GEMM(big, 8, f32, float)
ECHO_GEMM(small, 4, f16, half_t)
ECHO_GEMM(big, 8, f16, half_t)
#endif

#endif  // ECHO_KERNELS_CUDA_GEMM_CUH_
