#include "blocks.h"

#include "clones.h"

namespace echo {
namespace kernels {
namespace {

ECHO_INLINE float dot(const float* a, const float* b, int64_t width) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < width; ++d) sum += a[d] * b[d];
  return sum;
}

// Two rows against four: eight sums at once keep both multipliers busy.
ECHO_INLINE void dots_2x4(const float* a, const float* b, int64_t width, float* scores) {
  const float *a1 = a + width, *b1 = b + width, *b2 = b1 + width, *b3 = b2 + width;
  float s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
#pragma omp simd reduction(+ : s00, s01, s02, s03, s10, s11, s12, s13)
  for (int64_t d = 0; d < width; ++d) {
    s00 += a[d] * b[d];
    s01 += a[d] * b1[d];
    s02 += a[d] * b2[d];
    s03 += a[d] * b3[d];
    s10 += a1[d] * b[d];
    s11 += a1[d] * b1[d];
    s12 += a1[d] * b2[d];
    s13 += a1[d] * b3[d];
  }
  float* const next = scores + kKeysAtOnce;
  scores[0] = s00, scores[1] = s01, scores[2] = s02, scores[3] = s03;
  next[0] = s10, next[1] = s11, next[2] = s12, next[3] = s13;
}

ECHO_INLINE void add_row(const float* weights, int64_t column_step, const float* b, int64_t columns, int64_t width,
                         float* __restrict out) {
  for (int64_t j = 0; j < columns; ++j) {
    const float weight = weights[j * column_step];
    for (int64_t d = 0; d < width; ++d) out[d] += weight * b[j * width + d];
  }
}

ECHO_INLINE void add_2x4(const float* w0, const float* w1, int64_t step, const float* __restrict b, int64_t width,
                         float* __restrict out0, float* __restrict out1) {
  const float *b1 = b + width, *b2 = b1 + width, *b3 = b2 + width;
  const float w00 = w0[0], w01 = w0[step], w02 = w0[2 * step], w03 = w0[3 * step];
  const float w10 = w1[0], w11 = w1[step], w12 = w1[2 * step], w13 = w1[3 * step];
  for (int64_t d = 0; d < width; ++d) {
    out0[d] += (w00 * b[d] + w01 * b1[d]) + (w02 * b2[d] + w03 * b3[d]);
    out1[d] += (w10 * b[d] + w11 * b1[d]) + (w12 * b2[d] + w13 * b3[d]);
  }
}

}  // namespace

ECHO_CLONES void dots(const float* a, const float* b, int64_t rows, int64_t columns, int64_t width, float* scores) {
  const int64_t whole_rows = rows & ~int64_t{1}, whole_columns = columns & ~int64_t{3};
  for (int64_t j = 0; j < whole_columns; j += 4) {
    for (int64_t i = 0; i < whole_rows; i += 2) {
      dots_2x4(a + i * width, b + j * width, width, scores + i * kKeysAtOnce + j);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j) {
      scores[i * kKeysAtOnce + j] = dot(a + i * width, b + j * width, width);
    }
  }
}

ECHO_CLONES void add_product(const float* weights, int64_t row_step, int64_t column_step, const float* b, int64_t rows,
                             int64_t columns, int64_t width, float* out) {
  const int64_t whole_columns = columns & ~int64_t{3};
  int64_t i = 0;
  for (; i + 1 < rows; i += 2) {
    const float *w0 = weights + i * row_step, *w1 = w0 + row_step;
    float *out0 = out + i * width, *out1 = out0 + width;
    for (int64_t j = 0; j < whole_columns; j += 4) {
      add_2x4(w0 + j * column_step, w1 + j * column_step, column_step, b + j * width, width, out0, out1);
    }
    const int64_t rest = whole_columns * column_step;
    add_row(w0 + rest, column_step, b + whole_columns * width, columns - whole_columns, width, out0);
    add_row(w1 + rest, column_step, b + whole_columns * width, columns - whole_columns, width, out1);
  }
  if (i < rows) add_row(weights + i * row_step, column_step, b, columns, width, out + i * width);
}

}  // namespace kernels
}  // namespace echo
