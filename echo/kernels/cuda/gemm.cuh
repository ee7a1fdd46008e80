// The matrix products of an LSTM layer that need no order of time, on tiles of 64 or 128.
#ifndef ECHO_KERNELS_CUDA_GEMM_CUH_
#define ECHO_KERNELS_CUDA_GEMM_CUH_
#include "tile.cuh"

namespace echo_cuda {

// Puts row spread(y, i) of a tile, which lies in row y of shared memory, for y from 0 to 15.
template <int R, typename B, typename C>
__device__ inline void put_rows(const Gemm& g, const Slices<R>& rows, Long m0, Long n0, int i) {
  ECHO_UNROLL(1)
  for (int e = threadIdx.x; e < 16 * 16 * R; e += kThreads) {
    const int row = e / (16 * R), column = e % (16 * R);
    const Long m = m0 + spread(row, i), n = n0 + column;
    if (m >= g.m || n >= g.n) continue;
    float value = rows.at[row][column];
    if (g.bias) value += get<B>(g.bias, n) + get<B>(g.bias2, n);
    put<C>(g.c, m * g.c_stride + n, value);
  }
}

// c = a b, a as [m][k] or [k][m], b as [n][k] or [k][n]: tiles of 16 R by 16 R.
template <int R, typename A, bool a_by_depth, typename B, bool b_by_depth, typename C>
__device__ void gemm(const Gemm& g) {
  __shared__ Slices<R> left, right;
  const int tile = 16 * R;
  const Long across = (g.n + tile - 1) / tile, tiles = (g.m + tile - 1) / tile * across;
  for (Long t = blockIdx.x; t < tiles; t += gridDim.x) {
    const Long m0 = t / across * tile, n0 = t % across * tile;
    const Operand<A, a_by_depth> a = {static_cast<const A*>(g.a) + m0 * (a_by_depth ? 1 : g.a_stride), g.a_stride,
                                      smaller(tile, g.m - m0), g.k, g.a_wide};
    const Operand<B, b_by_depth> b = {static_cast<const B*>(g.b) + n0 * (b_by_depth ? 1 : g.b_stride), g.b_stride,
                                      smaller(tile, g.n - n0), g.k, g.b_wide};
    float sums[R][R] = {};
    tile_product<R>(a, b, &left, &right, sums);
    ECHO_UNROLL(R)  // sums has to stay in registers
    for (int i = 0; i < R; ++i) {
      // 16 rows, one of each thread of a column, go through shared memory: threads side by side write side by side.
      const int x = threadIdx.x % 16, y = threadIdx.x / 16;
      for (int j = 0; j < R; j += 4) {
        const Pack<4> four = {{sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]}};
        Access<4>::store(&left.at[y][spread(x, j)], four);
      }
      __syncthreads();
      put_rows<R, B, C>(g, left, m0, n0, i);
      __syncthreads();
    }
  }
}

}  // namespace echo_cuda

// The products of an LSTM layer, with tiles of 64 (small) or 128 (big): its inputs by its weights; its gates' gradients
// by its weights, and by its inputs.
#define ECHO_GEMM(size, R, type, T)                                                                   \
  ECHO_KERNEL(1, gemm_inputs_##size##_##type, Gemm, echo_cuda::gemm<R, T, false, T, false, float>(a)) \
  ECHO_KERNEL(1, gemm_gates_##size##_##type, Gemm, echo_cuda::gemm<R, float, false, T, true, T>(a))   \
  ECHO_KERNEL(1, gemm_weights_##size##_##type, Gemm, echo_cuda::gemm<R, float, true, T, true, T>(a))

ECHO_GEMM(small, 4, f32, float)
ECHO_GEMM(big, 8, f32, float)
ECHO_GEMM(small, 4, f16, half_t)
ECHO_GEMM(big, 8, f16, half_t)

#endif  // ECHO_KERNELS_CUDA_GEMM_CUH_
