#include "blocks.h"

#include <algorithm>

#include "clones.h"

namespace echo {
namespace kernels {
namespace {

// Floats anywhere in memory. A register of AVX-512 holds 16, one of AVX2 eight; wider types are slow there. As members,
// since a template argument loses its attributes.
struct Wide {
  typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias));
  static const int64_t kCount = 16;
};

struct Narrow {
  typedef float Lanes __attribute__((vector_size(32), aligned(4), may_alias));
  static const int64_t kCount = 8;
};

const int64_t kWorthTransposing = 8;  // rows: fewer make up for the transposition too late

// R rows of one register of columns; the sums stay in registers. Rows of `out` are out_step apart, those of b b_step.
template <typename Register, int R>
ECHO_INLINE void add_tile(const float* weights, int64_t row_step, int64_t inner_step, const float* b, int64_t b_step,
                          int64_t inner, float* out, int64_t out_step) {
  typedef typename Register::Lanes Lanes;
  Lanes sums[R];
  for (int r = 0; r < R; ++r) sums[r] = *reinterpret_cast<const Lanes*>(out + r * out_step);
  for (int64_t j = 0; j < inner; ++j) {
    const Lanes row = *reinterpret_cast<const Lanes*>(b + j * b_step);
    for (int r = 0; r < R; ++r) sums[r] += weights[r * row_step + j * inner_step] * row;
  }
  for (int r = 0; r < R; ++r) *reinterpret_cast<Lanes*>(out + r * out_step) = sums[r];
}

// R rows; the columns that fill no register come one by one.
template <typename Register, int R>
ECHO_INLINE void add_rows(const float* weights, int64_t row_step, int64_t inner_step, const float* b, int64_t b_step,
                          int64_t inner, int64_t width, float* out, int64_t out_step) {
  const int64_t whole = width / Register::kCount * Register::kCount;
  for (int64_t d = 0; d < whole; d += Register::kCount) {
    add_tile<Register, R>(weights, row_step, inner_step, b + d, b_step, inner, out + d, out_step);
  }
  for (int64_t j = 0; whole < width && j < inner; ++j) {
    for (int r = 0; r < R; ++r) {
      const float weight = weights[r * row_step + j * inner_step];
      for (int64_t d = whole; d < width; ++d) out[r * out_step + d] += weight * b[j * b_step + d];
    }
  }
}

// What add_product does, for rows of b and out that are steps apart.
struct Product {
  const float* weights;
  int64_t row_step, inner_step;
  const float* b;
  int64_t b_step, rows, inner, width;
  float* out;
  int64_t out_step;
};

template <typename Register>
ECHO_INLINE void add_all(const Product& p) {
  int64_t i = 0;
  for (; i + 8 <= p.rows; i += 8) {
    add_rows<Register, 8>(p.weights + i * p.row_step, p.row_step, p.inner_step, p.b, p.b_step, p.inner, p.width,
                          p.out + i * p.out_step, p.out_step);
  }
  for (; i < p.rows; ++i) {
    add_rows<Register, 1>(p.weights + i * p.row_step, p.row_step, p.inner_step, p.b, p.b_step, p.inner, p.width,
                          p.out + i * p.out_step, p.out_step);
  }
}

#ifdef ECHO_HAS_LEVELS
ECHO_AVX512 void add_wide(const Product& p) { add_all<Wide>(p); }
#endif
ECHO_INLINE void add_narrow(const Product& p) { add_all<Narrow>(p); }

void add(const Product& p) {
#ifdef ECHO_HAS_LEVELS
  if (level() == Level::kAvx512) return add_wide(p);
#endif
  cloned<add_narrow>(p);
}

ECHO_INLINE float dot(const float* a, const float* b, int64_t width) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < width; ++d) sum += a[d] * b[d];
  return sum;
}

// One row against four keys at once: four sums hide the latency of an addition.
ECHO_INLINE void direct_dots(const float* a, const float* keys, int64_t columns, int64_t width, float* scores) {
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

// [columns,width] to [width,kKeysAtOnce], with zeros up to a whole register of columns.
ECHO_INLINE void transpose(const float* __restrict from, int64_t columns, int64_t width, float* __restrict to) {
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
  for (; j % Wide::kCount != 0; ++j) {
    for (int64_t d = 0; d < width; ++d) to[d * kKeysAtOnce + j] = 0.0f;
  }
}

}  // namespace

void add_product(const float* weights, int64_t row_step, int64_t inner_step, const float* b, int64_t rows,
                 int64_t inner, int64_t width, float* out) {
  add({weights, row_step, inner_step, b, width, rows, inner, width, out, width});
}

Columns::Columns(const float* keys, int64_t columns, int64_t width, int64_t rows, float* room)
    : keys_(keys), transposed_(rows < kWorthTransposing ? nullptr : room), columns_(columns), width_(width) {
  if (transposed_ != nullptr) cloned<transpose>(keys, columns, width, room);
}

void Columns::dots(const float* a, int64_t rows, float* scores) const {
  if (transposed_ != nullptr) {
    const int64_t columns = (columns_ + Wide::kCount - 1) / Wide::kCount * Wide::kCount;
    std::fill_n(scores, rows * kKeysAtOnce, 0.0f);
    return add({a, width_, 1, transposed_, kKeysAtOnce, rows, width_, columns, scores, kKeysAtOnce});
  }
  for (int64_t i = 0; i < rows; ++i) {
    cloned<direct_dots>(a + i * width_, keys_, columns_, width_, scores + i * kKeysAtOnce);
  }
}

}  // namespace kernels
}  // namespace echo
