// softmax_output after its scores, which gemm.cuh computes: probabilities, and gradients. That of the scores is made
// of the probabilities where a product reads them, on their way into shared memory: it is nowhere else, but for parts of
// it that cuBLAS reads.
#ifndef ECHO_KERNELS_CUDA_SOFTMAX_OUTPUT_CUH_
#define ECHO_KERNELS_CUDA_SOFTMAX_OUTPUT_CUH_
#include "gemm.cuh"

namespace echo_cuda {

struct Largest {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// One number of all threads of a block, of one or more warps, the same for each of them.
template <typename Join>
__device__ inline float block_joined(float x, float* of_warps, Join join) {
  const int warps = blockDim.x / 32;
  for (int lane = 16; lane; lane /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, lane));
  __syncthreads();  // the last numbers have been read
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = of_warps[0];
  for (int warp = 1; warp < warps; ++warp) x = join(x, of_warps[warp]);
  return x;
}

// A block for each row.
template <typename T, int W>
__device__ void softmax_output(const SoftmaxOutput& a) {
  __shared__ float of_warps[kWarps];
  const Long first = threadIdx.x * static_cast<Long>(W), step = blockDim.x * static_cast<Long>(W);
  for (Long row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float* scores = a.scores + row * a.classes;
    Exponentials mine = {-ECHO_INFINITY, 0};
    ECHO_UNROLL(1)  // many warps wait for memory at once
    for (Long j = first; j < a.classes; j += step) mine.add<W>(load<float, W>(scores, j));
    const float base = Exponentials::base(block_joined(mine.most, of_warps, Largest()));
    const float scale = 1.f / block_joined(mine.sum * expf(mine.most - base), of_warps, Sum());
    ECHO_UNROLL(1)
    for (Long j = first; j < a.classes; j += step) {
      Pack<W> x = load<float, W>(scores, j);
      for (int k = 0; k < W; ++k) x.v[k] = expf(x.v[k] - base) * scale;
      put<T, W>(a.prob, row * a.classes + j, x);
    }
  }
}

__device__ inline float number_of_label(const void* label, int type, Long i) {
  if (type == 4) return static_cast<float>(static_cast<const int*>(label)[i]);
  return type == 2 ? get<half_t>(label, i) : get<float>(label, i);
}

// Towards 0; -1 for what is no number, and beyond any class.
__device__ inline Long whole(float label) { return fabsf(label) < 4e18f ? static_cast<Long>(label) : -1; }

// What the other kernels need of the labels; one block where these are counted.
__device__ inline void softmax_output_labels(const SoftmaxOutputLabels& a) {
  __shared__ float of_warps[kWarps];
  float count = 0;
  ECHO_UNROLL(1)
  for (Long i = blockIdx.x * static_cast<Long>(kThreads) + threadIdx.x; i < a.rows; i += gridDim.x * kThreads) {
    const float label = number_of_label(a.label, a.label_type, i);
    const Long target = whole(label), ignored = whole(a.ignore_label);
    if (target != ignored) count += 1;
    int kept = target >= 0 && target < a.classes ? static_cast<int>(target) : kNoTarget;
    if (a.use_ignore && target == ignored) kept = kIgnored;
    a.targets[i] = kept;
  }
  if (!a.factor) return;
  count = block_joined(count, of_warps, Sum());
  if (threadIdx.x == 0) *a.factor = a.grad_scale / fmaxf(count, 1.f);
}

// W gradients of scores side by side, from their probabilities, what is known of the row, and the first of the columns.
struct ScoreGradient {
  typedef int Row;  // the target
  float factor, hit, miss;

  __device__ explicit ScoreGradient(const SoftmaxOutputGrad& a)
      : factor(a.factor ? *a.factor : a.constant), hit(a.hit), miss(a.miss) {}
  __device__ static const Row* rows(const SoftmaxOutputGrad& a) { return a.targets; }
  __device__ static Row none() { return kIgnored; }

  template <int W>
  __device__ Pack<W> of(Pack<W> prob, Row target, int column) const {
    for (int k = 0; k < W; ++k) {
      prob.v[k] = target == kIgnored ? 0.f : (prob.v[k] + (target - column == k ? hit : miss)) * factor;
    }
    return prob;
  }
};

// The same after a cross entropy.
struct EntropyGradient {
  typedef CrossEntropyRow Row;

  __device__ explicit EntropyGradient(const SoftmaxOutputGrad&) {}
  __device__ static const Row* rows(const SoftmaxOutputGrad& a) { return a.of_rows; }
  __device__ static Row none() { return {0, 0, 0, kNoTarget}; }

  template <int W>
  __device__ Pack<W> of(Pack<W> prob, const Row& row, int column) const {
    for (int k = 0; k < W; ++k) {
      prob.v[k] = row.slope * prob.v[k] + row.rest + (row.target - column == k ? row.hit : 0.f);
    }
    return prob;
  }
};

// The gradient of scores as an operand of a product, whose lines are batch rows: by_depth, these are its terms.
template <typename T, bool by_depth, typename Gradient>
struct ScoreGradients {
  struct Raw {
    Pack<4> prob;
    typename Gradient::Row row;
  };
  enum { kByDepth = by_depth };
  const T* prob;  // of the first row and column
  const typename Gradient::Row* of_rows;  // from the first row on
  Long stride;
  int rows;
  Long depth;
  int column, wide;
  const Gradient& gradient;

  __device__ Raw fetch(int n, Long first, int per_row) const {
    const Place place = place_of<by_depth>(n, first, per_row, rows, depth);
    return {load_up_to(prob + place.line * stride + place.at, place.count, wide),
            place.count > 0 ? of_rows[place.line] : Gradient::none()};
  }
  __device__ Pack<4> finished(const Raw& raw, int n, Long first, int per_row) const {
    const int at = static_cast<int>(place_of<by_depth>(n, first, per_row, rows, depth).at);
    return gradient.template of<4>(raw.prob, raw.row, column + at);
  }
};

// The gradient of scores times w, over the classes: each block row of the grid has a chunk of them.
template <typename T, int R, typename Gradient>
__device__ void softmax_output_dx(const SoftmaxOutputGrad& a) {
  const Gradient gradient(a);
  for (Long part = blockIdx.y; part < a.chunks; part += gridDim.y) {
    const Long first = part * a.chunk, depth = smaller(a.chunk, a.classes - first);
    const auto rows_of = [&](Long m0, int rows) {
      const T* prob = static_cast<const T*>(a.prob) + m0 * a.classes + first;
      return ScoreGradients<T, false, Gradient>{prob,  Gradient::rows(a) + m0,  a.classes, rows,
                                                depth, static_cast<int>(first), a.wide,    gradient};
    };
    const auto columns_of = [&](Long n0, int columns) {
      return Operand<T, true>{static_cast<const T*>(a.w) + first * a.inputs + n0, a.inputs, columns, depth, a.w_wide};
    };
    each_product<R>(a.rows, a.inputs, rows_of, columns_of, [&](Long m, Long n, float sum) {
      if (a.partials)
        a.partials[(part * a.rows + m) * a.inputs + n] = sum;
      else
        put<T>(a.dx, m * a.inputs + n, sum);
    });
  }
}

// The gradient of scores, transposed, times x, over the rows.
template <typename T, int R, typename Gradient>
__device__ void softmax_output_dw(const SoftmaxOutputGrad& a) {
  const Gradient gradient(a);
  const auto rows_of = [&](Long m0, int rows) {
    const T* prob = static_cast<const T*>(a.prob) + m0;
    return ScoreGradients<T, true, Gradient>{prob,   Gradient::rows(a),    a.classes, rows,
                                             a.rows, static_cast<int>(m0), a.wide,    gradient};
  };
  const auto columns_of = [&](Long n0, int columns) {
    return Operand<T, true>{static_cast<const T*>(a.x) + n0, a.inputs, columns, a.rows, a.x_wide};
  };
  each_product<R>(a.classes, a.inputs, rows_of, columns_of,
                  [&](Long m, Long n, float sum) { put<T>(a.dw, m * a.inputs + n, sum); });
}

// Sums of the gradient of scores over chunks of rows.
template <typename T, int W, typename Gradient = ScoreGradient>
__device__ void softmax_output_db(const SoftmaxOutputGrad& a) {
  const Gradient gradient(a);
  each_column<W>(a.chunks, a.classes, [&](Long chunk, Long j) {
    const Long last = smaller((chunk + 1) * a.chunk, a.rows);
    Pack<W> sum = {};
    ECHO_UNROLL(4)
    for (Long row = chunk * a.chunk; row < last; ++row) {
      const Pack<W> prob = load<T, W>(a.prob, row * a.classes + j);
      const Pack<W> d = gradient.template of<W>(prob, Gradient::rows(a)[row], static_cast<int>(j));
      for (int k = 0; k < W; ++k) sum.v[k] += d.v[k];
    }
    Access<W>::store(a.partials + chunk * a.classes + j, sum);
  });
}

// A part of the gradient of scores, for a product that takes it from memory.
template <typename T, int W, typename Gradient = ScoreGradient>
__device__ void softmax_output_ds(const ScoreGradientPart& a) {
  const Gradient gradient(a);
  const float times = a.unit ? a.times / *a.unit : a.times;
  each_column<W>(a.part_rows, a.part_classes, [&](Long i, Long j) {
    const Long row = a.first_row + i, column = a.first_class + j;
    const Pack<W> prob = load<T, W>(a.prob, row * a.classes + column);
    Pack<W> d = gradient.template of<W>(prob, Gradient::rows(a)[row], static_cast<int>(column));
    for (int k = 0; k < W; ++k) d.v[k] *= times;
    Access<W>::store(static_cast<T*>(a.to) + i * a.stride + j, d);
  });
}

template <typename T, int W>
__device__ void put_scaled(const PutScaled& a) {
  const float factor = a.factor ? *a.factor * a.constant : a.constant;
  each_column<W>(1, a.size, [&](Long, Long i) {
    Pack<W> x = load<float, W>(a.in, i);
    for (int k = 0; k < W; ++k) x.v[k] *= factor;
    put<T, W>(a.out, i, x);
  });
}

}  // namespace echo_cuda

#if ECHO_IN(softmax_output)
ECHO_WIDE(softmax_output, SoftmaxOutput)
ECHO_WIDE(softmax_output_db, SoftmaxOutputGrad)
ECHO_WIDE(softmax_output_ds, ScoreGradientPart)
ECHO_WIDE(put_scaled, PutScaled)
ECHO_KERNEL(1, softmax_output_labels_f32, SoftmaxOutputLabels, echo_cuda::softmax_output_labels(a))

// With tiles of 64 (small) or 128 (big), of which so many blocks fit onto a multiprocessor.
#define ECHO_SOFTMAX_OUTPUT_GRAD(size, R, blocks, type, T)                     \
  ECHO_KERNEL(blocks, softmax_output_dx_##size##_##type, SoftmaxOutputGrad,    \
              echo_cuda::softmax_output_dx<T, R, echo_cuda::ScoreGradient>(a)) \
  ECHO_KERNEL(blocks, softmax_output_dw_##size##_##type, SoftmaxOutputGrad,    \
              echo_cuda::softmax_output_dw<T, R, echo_cuda::ScoreGradient>(a))

ECHO_SOFTMAX_OUTPUT_GRAD(small, 4, 2, f32, float)
ECHO_SOFTMAX_OUTPUT_GRAD(big, 8, 1, f32, float)
ECHO_SOFTMAX_OUTPUT_GRAD(small, 4, 2, f16, half_t)
ECHO_SOFTMAX_OUTPUT_GRAD(big, 8, 1, f16, half_t)
#endif

#endif  // ECHO_KERNELS_CUDA_SOFTMAX_OUTPUT_CUH_
