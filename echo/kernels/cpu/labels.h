// The classes that a loss wants, and rows of scores.
#ifndef ECHO_KERNELS_CPU_LABELS_H_
#define ECHO_KERNELS_CPU_LABELS_H_
#include <cstdint>
#include <limits>

#include "check.h"
#include "clones.h"
#include "half.h"
#include "math.h"

namespace echo {
namespace kernels {

class Labels {
 public:
  explicit Labels(const Call& call) : data_(call.in("label")), dtype_(call.in_dtype("label")) {}

  float operator[](int64_t index) const {
    if (dtype_ == ECHO_INT32) return static_cast<float>(static_cast<const int32_t*>(data_)[index]);
    return dtype_ == ECHO_FLOAT16 ? to_float(static_cast<const Half*>(data_)[index])
                                  : static_cast<const float*>(data_)[index];
  }

 private:
  const void* data_;
  int dtype_;
};

ECHO_INLINE float largest(const float* x, int64_t n) {
  float most = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

// Exponentials of x - most instead of x, and their sum.
ECHO_INLINE float exp_and_sum(float* x, int64_t n, float most) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] = exp_of(x[i] - most);
  return sum;
}

ECHO_INLINE void scale(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_LABELS_H_
