// Mean and variance of a row, for kernels with a layer norm.
#ifndef ECHO_KERNELS_CPU_STATISTICS_H_
#define ECHO_KERNELS_CPU_STATISTICS_H_
#include <cmath>
#include <cstdint>

#include "clones.h"

namespace echo {
namespace kernels {

struct Statistics {
  float mean, scale;  // scale: 1 / sqrt(variance + eps)
};

// In two passes: the square of the mean taken from the mean of squares cancels where the mean is large.
ECHO_INLINE Statistics statistics_of(const float* x, int64_t n, float eps) {
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
