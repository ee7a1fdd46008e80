// Steps of a recurrent layer, each a product with the recurrent weights and the cell after it in one kernel. A block
// owns a few hidden units for all batch rows; its warps share out the terms of the product. Without a barrier a call is
// one step and reads its weights as it goes; with one it is many, and each block keeps its weights in shared memory
// throughout (Diamos et al., Persistent RNNs, ICML 2016, section 3). What a unit computes is a cell's (lstm.cuh,
// gru.cuh, rnn.cuh): `forward` and `backward`.
#ifndef ECHO_KERNELS_CUDA_STEPS_CUH_
#define ECHO_KERNELS_CUDA_STEPS_CUH_
#include "cells.cuh"
#include "tile.cuh"

namespace echo_cuda {

// Shared memory: a StepRoom, then the weights, [term][column].
template <typename Weights>
struct StepShape : StepRoom<Weights::kRows, Weights::kColumns> {
  enum { kColumns = Weights::kColumns, kRows = Weights::kRows };
  enum { kAcross = kColumns / 4, kResults = kRows * kAcross / 32 };  // lanes side by side; rows of a lane
};

// Columns of a block: `columns` for each of its units forward, of which the first are its gates and the rest are zeros;
// its units backward.
template <typename T, int gates, int columns, int units, int rows>
struct ForwardWeights {
  enum { kUnits = units, kPerUnit = columns, kColumns = columns * units, kRows = rows };
  const T* wh;
  Long hidden, unit;
  int places;
  __device__ T at(Long term, int column) const {
    const Long u = unit + column / kPerUnit;
    const int gate = column % kPerUnit;
    return gate < gates && u < hidden && term < hidden ? wh[(place_of_gate(places, gate) * hidden + u) * hidden + term]
                                                       : T{};
  }
  // Threads side by side read numbers side by side.
  __device__ static int term_of(int i) { return i % kDepth; }
  __device__ static int column_of(int i) { return i / kDepth; }
};

template <typename T, int gates>
struct BackwardWeights {
  enum { kUnits = kBackUnits, kColumns = kBackUnits, kRows = kBackRows };
  const T* wh;
  Long hidden, unit;
  __device__ T at(Long term, int column) const {
    return unit + column < hidden && term < gates * hidden ? wh[term * hidden + unit + column] : T{};
  }
  __device__ static int term_of(int i) { return i / kColumns; }
  __device__ static int column_of(int i) { return i % kColumns; }
};

// Weights of the kDepth terms from `first` on, by `threads` threads of which this is `thread`.
template <typename T, typename Weights>
__device__ inline void keep_weights(const Weights& from, Long first, int thread, int threads, T* to) {
  for (int i = thread; i < kDepth * Weights::kColumns; i += threads) {
    const int term = Weights::term_of(i), column = Weights::column_of(i);
    to[term * Weights::kColumns + column] = from.at(first + term, column);
  }
}

// The weights for a whole kernel; terms up to a multiple of kDepth.
template <typename T, typename Weights>
__device__ inline void keep_all_weights(const Weights& from, Long depth, T* to) {
  ECHO_UNROLL(1)
  for (Long first = 0; first < depth; first += kDepth) {
    keep_weights(from, first, threadIdx.x, kThreads, to + first * Weights::kColumns);
  }
  __syncthreads();
}

// A warp's share of `rows` rows (no more than kRows) times the block's columns.
template <typename In, typename T, typename Weights>
__device__ inline void warp_product(const In* in, Long rows, Long depth, int wide, const Weights& from, bool resident,
                                    float* slice, T* weights, float (*sums)[4]) {
  typedef StepShape<Weights> Shape;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, fours = Shape::kRows / 8;
  const Long share = (depth + kDepth * kWarps - 1) / (kDepth * kWarps) * kDepth;
  const Long begin = warp * share, end = smaller(begin + share, depth);
  Pack<4> next[fours];
  for (Long k = begin; k < end; k += kDepth) {
    if (k == begin) {
      for (int n = 0; n < fours; ++n) {
        const Long row = n * 8 + lane / 4, d = k + lane % 4 * 4;
        next[n] = fresh_up_to(in + row * depth + d, row < rows ? end - d : 0, wide);
      }
    }
    for (int n = 0; n < fours; ++n) {
      for (int i = 0; i < 4; ++i) slice[(lane % 4 * 4 + i) * Shape::kStride + n * 8 + lane / 4] = next[n].v[i];
    }
    if (!resident) keep_weights(from, k, lane, 32, weights);
    __syncwarp();
    for (int n = 0; n < fours && k + kDepth < end; ++n) {
      const Long row = n * 8 + lane / 4, d = k + kDepth + lane % 4 * 4;
      next[n] = fresh_up_to(in + row * depth + d, row < rows ? end - d : 0, wide);
    }
    const T* terms = resident ? weights + k * Weights::kColumns : weights;
    ECHO_UNROLL(4)
    for (int d = 0; d < kDepth; ++d) {
      const Pack<4> right = Access<4>::load(terms + d * Shape::kColumns + lane % Shape::kAcross * 4);
      for (int i = 0; i < Shape::kResults; i += 4) {
        const int row = i * (32 / Shape::kAcross) + lane / Shape::kAcross * 4;
        const Pack<4> left = Access<4>::load(slice + d * Shape::kStride + row);
        for (int r = 0; r < 4; ++r) {
          for (int c = 0; c < 4; ++c) sums[i + r][c] += left.v[r] * right.v[c];
        }
      }
    }
    __syncwarp();
  }
}

// Leaves the warps' sums in shared memory: add them up with step_sum, then __syncthreads before the next product.
template <typename In, typename T, typename Weights>
__device__ inline void step_product(const In* in, Long rows, Long depth, int wide, const Weights& from, bool resident,
                                    float* shared) {
  typedef StepShape<Weights> Shape;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sums[Shape::kResults][4] = {};
  T* weights = reinterpret_cast<T*>(shared + Shape::kFloats);
  warp_product<In, T, Weights>(in, rows, depth, wide, from, resident, shared + warp * kDepth * Shape::kStride,
                               resident ? weights : weights + warp * kDepth * Shape::kColumns, sums);
  __syncthreads();
  for (int i = 0; i < Shape::kResults; ++i) {
    const int row = i / 4 * 4 * (32 / Shape::kAcross) + lane / Shape::kAcross * 4 + i % 4;
    Access<4>::store(shared + (warp * Shape::kRows + row) * Shape::kColumns + lane % Shape::kAcross * 4,
                     Pack<4>{{sums[i][0], sums[i][1], sums[i][2], sums[i][3]}});
  }
  __syncthreads();
}

template <typename Weights>
__device__ inline float step_sum(const float* shared, int row, int column) {
  float sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += shared[(warp * Weights::kRows + row) * Weights::kColumns + column];
  return sum;
}

template <typename T, typename Cell, int units, int rows>
__device__ inline void forward_steps(const LayerSteps& a) {
  ECHO_DYNAMIC_SHARED(shared);
  typedef ForwardWeights<T, Cell::kGates, Cell::kColumns, units, rows> Weights;
  const Weights from = {static_cast<const T*>(a.wh), a.hidden, static_cast<Long>(blockIdx.x) * units, a.places};
  const int unit = threadIdx.x % units;
  const Long j = from.unit + unit, step_rows = rows;
  const bool resident = a.barrier != nullptr;
  if (resident) keep_all_weights(from, a.hidden, reinterpret_cast<T*>(shared + StepShape<Weights>::kFloats));
  for (Long step = 0; step < a.steps; ++step) {
    const Long t = a.first + step * a.direction;
    const T* h = static_cast<const T*>(a.h_start);
    if (step) h = static_cast<const T*>(a.y) + (t - a.direction) * a.batch * a.hidden;
    for (Long first = blockIdx.y * step_rows; first < a.batch; first += gridDim.y * step_rows) {
      const Long count = smaller(step_rows, a.batch - first);
      step_product<T, T>(h + first * a.hidden, count, a.hidden, a.wide, from, resident, shared);
      ECHO_UNROLL(1)
      for (int row = threadIdx.x / units; row < count && j < a.hidden; row += kThreads / units) {
        float recurrent[Cell::kGates];
        for (int g = 0; g < Cell::kGates; ++g) recurrent[g] = step_sum<Weights>(shared, row, unit * Cell::kColumns + g);
        Cell::template forward<T>(a, step, t, first + row, j, recurrent);
      }
      __syncthreads();
    }
    if (step + 1 < a.steps) grid_barrier(a.barrier, static_cast<unsigned>(step + 1) * gridDim.x * gridDim.y);
  }
}

template <typename T, typename Cell>
__device__ inline void backward_steps(const LayerBackSteps& a) {
  ECHO_DYNAMIC_SHARED(shared);
  typedef BackwardWeights<T, Cell::kGates> Weights;
  const Weights from = {static_cast<const T*>(a.wh), a.hidden, static_cast<Long>(blockIdx.x) * kBackUnits};
  const bool resident = a.barrier != nullptr;
  const Long depth = Cell::kGates * a.hidden, all = a.batch * depth, steps = a.steps + a.finish;
  if (resident) keep_all_weights(from, depth, reinterpret_cast<T*>(shared + StepShape<Weights>::kFloats));
  for (Long step = 0; step < steps; ++step) {
    const float* after = a.dgates_after;
    if (step) after = a.dgates + (a.direction > 0 ? step - 1 : a.steps - step) * all;
    for (Long first = blockIdx.y * static_cast<Long>(kBackRows); first < a.batch; first += gridDim.y * kBackRows) {
      const Long rows = smaller(kBackRows, a.batch - first), j = from.unit + threadIdx.x % kBackUnits;
      if (after) step_product<float, T>(after + first * depth, rows, depth, a.wide, from, resident, shared);
      for (int row = threadIdx.x / kBackUnits; row < rows && j < a.hidden; row += kThreads / kBackUnits) {
        float dh = 0;
        if (after)
          dh = step_sum<Weights>(shared, row, threadIdx.x % kBackUnits);
        else if (a.dh_last)
          dh = get<T>(a.dh_last, (first + row) * a.hidden + j);
        Cell::template backward<T>(a, step, a.first + step * a.direction, first + row, j, dh);
      }
      __syncthreads();
    }
    if (step + 1 < steps) grid_barrier(a.barrier, static_cast<unsigned>(step + 1) * gridDim.x * gridDim.y);
  }
}

}  // namespace echo_cuda

#endif  // ECHO_KERNELS_CUDA_STEPS_CUH_
