// Mean and variance of a row and the gradient through them, for kernels with a layer norm.
#ifndef ECHO_KERNELS_CPU_STATISTICS_H_
#define ECHO_KERNELS_CPU_STATISTICS_H_
#include <cmath>
#include <cstdint>

#include "clones.h"
#include "formulas.h"

namespace echo {
namespace kernels {

using echo_formulas::Moments;

// The gradient of a value, from that of its norm and the row's sums of those gradients: alone, and times the norms.
struct NormGradient {
  ECHO_INLINE NormGradient(const Moments& of_row, float sum, float product, int64_t n)
      : row(of_row), mean(sum / static_cast<float>(n)), slope(product / static_cast<float>(n)) {}

  ECHO_INLINE float operator()(float norm, float d) const { return row.grad(norm, d, mean, slope); }

  Moments row;
  float mean, slope;
};

// In two passes: the square of the mean taken from the mean of squares cancels where the mean is large.
ECHO_INLINE Moments moments_of(const float* x, int64_t n, float eps) {
  float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; ++j) sum += x[j];
  const float mean = sum / static_cast<float>(n);
#pragma omp simd reduction(+ : squares)
  for (int64_t j = 0; j < n; ++j) squares += (x[j] - mean) * (x[j] - mean);
  return {mean, 1.0f / std::sqrt(squares / static_cast<float>(n) + eps)};
}

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_STATISTICS_H_
