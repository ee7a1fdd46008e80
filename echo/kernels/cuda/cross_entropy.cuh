// cross_entropy, and linear_cross_entropy after its scores, which gemm.cuh computes; a block for each row. Gradients of
// the scores of a layer are made where a product reads them, as those of softmax_output.
#ifndef ECHO_KERNELS_CUDA_CROSS_ENTROPY_CUH_
#define ECHO_KERNELS_CUDA_CROSS_ENTROPY_CUH_
#include "softmax_output.cuh"

namespace echo_cuda {

// As MXNet's pick has it: towards 0, and into the classes that there are; 0 for what is no int.
__device__ inline Long class_of(const void* label, int type, Long i, Long classes) {
  const float number = number_of_label(label, type, i);
  return number > 0 && number < 2147483648.f ? smaller(static_cast<Long>(number), classes - 1) : 0;
}

// Scores of type S; after a layer also their probabilities, of type T.
template <typename S, typename T, int W, bool behind_layer>
__device__ void entropies(const CrossEntropy& a) {
  __shared__ float of_warps[kWarps];
  const Long first = threadIdx.x * static_cast<Long>(W), step = blockDim.x * static_cast<Long>(W);
  for (Long row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const Long at = row * a.classes;
    Exponentials mine = {-ECHO_INFINITY, 0};
    ECHO_UNROLL(1)  // many warps wait for memory at once
    for (Long j = first; j < a.classes; j += step) mine.add<W>(load<S, W>(a.x, at + j));
    const float most = block_joined(mine.most, of_warps, Largest()), base = Exponentials::base(most);
    const float total = block_joined(mine.sum * expf(mine.most - base), of_warps, Sum());
    float differences = 0;
    ECHO_UNROLL(1)
    for (Long j = first; j < a.classes; j += step) {
      Pack<W> x = load<S, W>(a.x, at + j);
      for (int k = 0; k < W; ++k) differences += x.v[k] - most;
    }
    differences = block_joined(differences, of_warps, Sum());
    const float logsum = logf(total);
    if (threadIdx.x == 0) {
      const float wanted = get<S>(a.x, at + class_of(a.label, a.label_type, row, a.classes)) - most;
      put<T>(a.logp, row, wanted - logsum);
      put<T>(a.sum, row, differences - a.classes * logsum);
      if (a.most) a.most[row] = most;
      if (a.logsum) a.logsum[row] = logsum;
    }
    if (!behind_layer) continue;
    __syncthreads();  // the score at the label has been read
    ECHO_UNROLL(1)
    for (Long j = first; j < a.classes; j += step) {
      Pack<W> x = load<S, W>(a.x, at + j);
      for (int k = 0; k < W; ++k) x.v[k] = expf(x.v[k] - most) / total;
      put<T, W>(a.prob, at + j, x);
    }
  }
}

template <typename T, int W>
__device__ void cross_entropy(const CrossEntropy& a) {
  entropies<T, T, W, false>(a);
}

template <typename T, int W>
__device__ void linear_cross_entropy(const CrossEntropy& a) {
  entropies<float, T, W, true>(a);
}

template <typename T>
__device__ inline CrossEntropyRow entropy_row(const CrossEntropyGrad& a, Long row) {
  const float dlogp = a.dlogp ? get<T>(a.dlogp, row) : 0.f, dsum = a.dsum ? get<T>(a.dsum, row) : 0.f;
  const Long target = class_of(a.label, a.label_type, row, a.classes);
  return {-(dlogp + a.classes * dsum), dsum, dlogp, static_cast<int>(target)};
}

// What the products of a layer's gradients need of each row; one block where a unit is wanted.
template <typename T>
__device__ void cross_entropy_rows(const CrossEntropyGrad& a) {
  __shared__ float of_warps[kWarps];
  const Long step = static_cast<Long>(gridDim.x) * blockDim.x;
  float most = 0;
  for (Long row = static_cast<Long>(blockIdx.x) * blockDim.x + threadIdx.x; row < a.rows; row += step) {
    const CrossEntropyRow of_row = entropy_row<T>(a, row);
    const float largest = fmaxf(fabsf(of_row.slope), fmaxf(fabsf(of_row.rest), fabsf(of_row.hit)));
    if (largest < ECHO_INFINITY) most = fmaxf(most, largest);  // an infinite unit makes all other rows NaN
    a.of_rows[row] = of_row;
  }
  if (!a.unit) return;
  most = block_joined(most, of_warps, Largest());
  if (threadIdx.x == 0) *a.unit = most > 0 ? most : 1.f;
}

template <typename T, int W>
__device__ void cross_entropy_grad(const CrossEntropyGrad& a) {
  const Long first = threadIdx.x * static_cast<Long>(W), step = blockDim.x * static_cast<Long>(W);
  for (Long row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const CrossEntropyRow of_row = entropy_row<T>(a, row);
    const float most = a.most[row], logsum = a.logsum[row];
    ECHO_UNROLL(1)
    for (Long j = first; j < a.classes; j += step) {
      Pack<W> x = load<T, W>(a.x, row * a.classes + j);
      for (int k = 0; k < W; ++k) {
        const float logarithm = (x.v[k] - most) - logsum;
        // at the target 1 - p, which vanishes in p where that is nearly 1
        x.v[k] = j + k == of_row.target
                     ? of_row.rest * (1.f - a.classes * expf(logarithm)) - of_row.hit * expm1f(logarithm)
                     : of_row.slope * expf(logarithm) + of_row.rest;
      }
      put<T, W>(a.dx, row * a.classes + j, x);
    }
  }
}

template <typename T, int W>
__device__ void linear_cross_entropy_db(const SoftmaxOutputGrad& a) {
  softmax_output_db<T, W, EntropyGradient>(a);
}

template <typename T, int W>
__device__ void linear_cross_entropy_ds(const ScoreGradientPart& a) {
  softmax_output_ds<T, W, EntropyGradient>(a);
}

}  // namespace echo_cuda

#if ECHO_IN(cross_entropy)
ECHO_WIDE(cross_entropy, CrossEntropy)
ECHO_WIDE(linear_cross_entropy, CrossEntropy)
ECHO_WIDE(cross_entropy_grad, CrossEntropyGrad)
ECHO_BOTH(1, cross_entropy_rows, CrossEntropyGrad)
ECHO_WIDE(linear_cross_entropy_db, SoftmaxOutputGrad)
ECHO_WIDE(linear_cross_entropy_ds, ScoreGradientPart)

#define ECHO_CROSS_ENTROPY_GRAD(size, R, blocks, type, T)                         \
  ECHO_KERNEL(blocks, linear_cross_entropy_dx_##size##_##type, SoftmaxOutputGrad, \
              echo_cuda::softmax_output_dx<T, R, echo_cuda::EntropyGradient>(a))  \
  ECHO_KERNEL(blocks, linear_cross_entropy_dw_##size##_##type, SoftmaxOutputGrad, \
              echo_cuda::softmax_output_dw<T, R, echo_cuda::EntropyGradient>(a))

ECHO_CROSS_ENTROPY_GRAD(small, 4, 2, f32, float)
ECHO_CROSS_ENTROPY_GRAD(big, 8, 1, f32, float)
ECHO_CROSS_ENTROPY_GRAD(small, 4, 2, f16, half_t)
ECHO_CROSS_ENTROPY_GRAD(big, 8, 1, f16, half_t)
#endif

#endif  // ECHO_KERNELS_CUDA_CROSS_ENTROPY_CUH_
