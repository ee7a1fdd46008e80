// Products of tiles: a block of 16 by 16 threads, R by R results a thread, 16 terms a round through shared memory.
#ifndef ECHO_KERNELS_CUDA_TILE_CUH_
#define ECHO_KERNELS_CUDA_TILE_CUH_
#include "device.cuh"

namespace echo_cuda {

// Row (or column) i of a thread's results, within the tile: fours side by side, 64 apart.
__device__ inline int spread(int thread, int i) { return i / 4 * 64 + thread * 4 + i % 4; }

// kDepth slices of one operand, [term][row], rows of a tile side by side. The pad keeps transposed writes on few banks.
// Aligned for reads of four numbers at a time.
template <int R>
struct alignas(16) Slices {
  float at[kDepth][16 * R + 4];
};

// Where the thread's n-th four of a round of an operand are: of one line of the array from `at` on, and how many of them
// are within it: four or more where all are. The round starts at term `first`; by_depth: lines are terms of rows, else rows
// of terms. What counts rows of a tile is an int: registers are short.
struct Place {
  Long line, at;
  int count;
};

template <bool by_depth>
__device__ inline Place place_of(int n, Long first, int per_row, int rows, Long depth) {
  const int q = threadIdx.x + n * kThreads;
  if (by_depth) {
    const Long d = first + q / per_row;
    const int row = q % per_row * 4;
    return {d, row, d < depth ? rows - row : 0};
  }
  const int row = q / (kDepth / 4);
  const Long d = first + q % (kDepth / 4) * 4;
  return {row, d, row < rows ? static_cast<int>(smaller(depth - d, 4)) : 0};
}

// An operand: `rows` rows of `depth` terms; by_depth: stored as [term][row], else as [row][term]. Rows of the tile
// start at data. What is fetched is finished when it is needed, a round later: it may wait for memory meanwhile.
template <typename T, bool by_depth>
struct Operand {
  typedef Pack<4> Raw;
  enum { kByDepth = by_depth };
  const T* data;
  Long stride;
  int rows;
  Long depth;
  int wide;

  __device__ Raw fetch(int n, Long first, int per_row) const {
    const Place place = place_of<by_depth>(n, first, per_row, rows, depth);
    return load_up_to(data + place.line * stride + place.at, place.count, wide);
  }
  __device__ Pack<4> finished(const Raw& raw, int, Long, int) const { return raw; }
};

template <int R, bool by_depth>
__device__ inline void keep(Slices<R>* to, int n, const Pack<4>& x) {
  const int q = threadIdx.x + n * kThreads;
  if (by_depth) {
    Access<4>::store(&to->at[q / (4 * R)][q % (4 * R) * 4], x);
  } else {
    for (int i = 0; i < 4; ++i) to->at[q % (kDepth / 4) * 4 + i][q / (kDepth / 4)] = x.v[i];
  }
}

// sums[i][j] += a[spread(y, i)] * b[spread(x, j)] for `count` terms; a and b are rows of shared memory.
template <int R, int A, int B>
__device__ inline void add_products(const float (*a)[A], const float (*b)[B], int count, float (*sums)[R]) {
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  ECHO_UNROLL(4)  // all sixteen make the PTX three times as large
  for (int d = 0; d < count; ++d) {
    float left[R], right[R];
    for (int i = 0; i < R; i += 4) {
      const Pack<4> l = Access<4>::load(&a[d][spread(y, i)]), r = Access<4>::load(&b[d][spread(x, i)]);
      for (int k = 0; k < 4; ++k) left[i + k] = l.v[k], right[i + k] = r.v[k];
    }
    for (int i = 0; i < R; ++i) {
      for (int j = 0; j < R; ++j) sums[i][j] += left[i] * right[j];
    }
  }
}

// The product of two operands in global memory. The next round's numbers travel while this round's are multiplied.
template <int R, typename A, typename B>
__device__ inline void tile_product(const A& a, const B& b, Slices<R>* left, Slices<R>* right, float (*sums)[R]) {
  typename A::Raw next_a[R / 4];
  typename B::Raw next_b[R / 4];
  for (int n = 0; n < R / 4; ++n) next_a[n] = a.fetch(n, 0, 4 * R), next_b[n] = b.fetch(n, 0, 4 * R);
  for (Long d = 0; d < a.depth; d += kDepth) {
    for (int n = 0; n < R / 4; ++n) {
      keep<R, A::kByDepth>(left, n, a.finished(next_a[n], n, d, 4 * R));
      keep<R, B::kByDepth>(right, n, b.finished(next_b[n], n, d, 4 * R));
    }
    __syncthreads();
    if (d + kDepth < a.depth) {
      for (int n = 0; n < R / 4; ++n) {
        next_a[n] = a.fetch(n, d + kDepth, 4 * R);
        next_b[n] = b.fetch(n, d + kDepth, 4 * R);
      }
    }
    add_products<R>(left->at, right->at, kDepth, sums);
    __syncthreads();
  }
}

// The product of a tile in shared memory, [term][row], and an operand of no more than kTile terms.
template <typename B>
__device__ inline void shared_product(const float (*a)[kTile + 4], const Operand<B, true>& b, Slices<4>* right,
                                      float (*sums)[4]) {
  for (Long d = 0; d < b.depth; d += kDepth) {
    keep<4, true>(right, 0, b.fetch(0, d, kTile / 4));
    __syncthreads();
    add_products<4>(a + d, right->at, kDepth, sums);
    __syncthreads();
  }
}

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_TILE_CUH_
