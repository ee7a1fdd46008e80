#include "blocks.h"

#include <algorithm>

#include "clones.h"

namespace echo {
namespace kernels {
namespace {

// 16 floats anywhere in memory: one register with AVX-512, two with AVX2, four without.
typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias));
const int64_t kLanes = 16;
const int64_t kWorthTransposing = 8;  // rows: fewer make up for the transposition too late

// R rows of 16 columns; the sums stay in registers.
template <int R>
ECHO_INLINE void add_tile(const float* weights, int64_t row_step, int64_t inner_step, const float* b, int64_t inner,
                          int64_t width, float* out) {
  Lanes sums[R];
  for (int r = 0; r < R; ++r) sums[r] = *reinterpret_cast<const Lanes*>(out + r * width);
  for (int64_t j = 0; j < inner; ++j) {
    const Lanes row = *reinterpret_cast<const Lanes*>(b + j * width);
    for (int r = 0; r < R; ++r) sums[r] += weights[r * row_step + j * inner_step] * row;
  }
  for (int r = 0; r < R; ++r) *reinterpret_cast<Lanes*>(out + r * width) = sums[r];
}

// R rows; the columns that fill no tile come one by one.
template <int R>
ECHO_INLINE void add_rows(const float* weights, int64_t row_step, int64_t inner_step, const float* b, int64_t inner,
                          int64_t width, float* out) {
  const int64_t whole = width / kLanes * kLanes;
  for (int64_t d = 0; d < whole; d += kLanes) add_tile<R>(weights, row_step, inner_step, b + d, inner, width, out + d);
  for (int64_t j = 0; whole < width && j < inner; ++j) {
    for (int r = 0; r < R; ++r) {
      const float weight = weights[r * row_step + j * inner_step];
      for (int64_t d = whole; d < width; ++d) out[r * width + d] += weight * b[j * width + d];
    }
  }
}

ECHO_INLINE float dot(const float* a, const float* b, int64_t width) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < width; ++d) sum += a[d] * b[d];
  return sum;
}

// One row against four keys at once: four sums hide the latency of an addition.
ECHO_CLONES void direct_dots(const float* a, const float* keys, int64_t columns, int64_t width, float* scores) {
  int64_t j = 0;
  for (; j + 4 <= columns; j += 4) {
    const float *k0 = keys + j * width, *k1 = k0 + width, *k2 = k1 + width, *k3 = k2 + width;
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t d = 0; d < width; ++d) {
      s0 += a[d] * k0[d];
      s1 += a[d] * k1[d];
      s2 += a[d] * k2[d];
      s3 += a[d] * k3[d];
    }
    scores[j] = s0, scores[j + 1] = s1, scores[j + 2] = s2, scores[j + 3] = s3;
  }
  for (; j < columns; ++j) scores[j] = dot(a, keys + j * width, width);
}

// [columns,width] to [width,kKeysAtOnce], with zeros up to whole lanes of columns.
ECHO_CLONES void transpose(const float* __restrict from, int64_t columns, int64_t width, float* __restrict to) {
  int64_t j = 0;
  for (; j + 4 <= columns; j += 4) {
    const float *k0 = from + j * width, *k1 = k0 + width, *k2 = k1 + width, *k3 = k2 + width;
    for (int64_t d = 0; d < width; ++d) {
      float* const at = to + d * kKeysAtOnce + j;
      at[0] = k0[d], at[1] = k1[d], at[2] = k2[d], at[3] = k3[d];
    }
  }
  for (; j < columns; ++j) {
    for (int64_t d = 0; d < width; ++d) to[d * kKeysAtOnce + j] = from[j * width + d];
  }
  for (; j % kLanes != 0; ++j) {
    for (int64_t d = 0; d < width; ++d) to[d * kKeysAtOnce + j] = 0.0f;
  }
}

// scores = a transposed, for `columns` columns rounded up to whole lanes.
template <int R>
ECHO_INLINE void transposed_dots(const float* a, const float* transposed, int64_t columns, int64_t width, float* scores) {
  for (int64_t j = 0; j < columns; j += kLanes) {
    Lanes sums[R] = {};
    for (int64_t d = 0; d < width; ++d) {
      const Lanes row = *reinterpret_cast<const Lanes*>(transposed + d * kKeysAtOnce + j);
      for (int r = 0; r < R; ++r) sums[r] += a[r * width + d] * row;
    }
    for (int r = 0; r < R; ++r) *reinterpret_cast<Lanes*>(scores + r * kKeysAtOnce + j) = sums[r];
  }
}

ECHO_CLONES void all_transposed_dots(const float* a, const float* transposed, int64_t rows, int64_t columns,
                                     int64_t width, float* scores) {
  int64_t i = 0;
  for (; i + 8 <= rows; i += 8) {
    transposed_dots<8>(a + i * width, transposed, columns, width, scores + i * kKeysAtOnce);
  }
  for (; i < rows; ++i) transposed_dots<1>(a + i * width, transposed, columns, width, scores + i * kKeysAtOnce);
}

}  // namespace

ECHO_CLONES void add_product(const float* weights, int64_t row_step, int64_t inner_step, const float* b, int64_t rows,
                             int64_t inner, int64_t width, float* out) {
  int64_t i = 0;
  for (; i + 8 <= rows; i += 8) {
    add_rows<8>(weights + i * row_step, row_step, inner_step, b, inner, width, out + i * width);
  }
  for (; i < rows; ++i) {
    add_rows<1>(weights + i * row_step, row_step, inner_step, b, inner, width, out + i * width);
  }
}

Columns::Columns(const float* keys, int64_t columns, int64_t width, int64_t rows, float* room)
    : keys_(keys), transposed_(rows < kWorthTransposing ? nullptr : room), columns_(columns), width_(width) {
  if (transposed_ != nullptr) transpose(keys, columns, width, room);
}

void Columns::dots(const float* a, int64_t rows, float* scores) const {
  if (transposed_ != nullptr) return all_transposed_dots(a, transposed_, rows, columns_, width_, scores);
  for (int64_t i = 0; i < rows; ++i) direct_dots(a + i * width_, keys_, columns_, width_, scores + i * kKeysAtOnce);
}

}  // namespace kernels
}  // namespace echo
