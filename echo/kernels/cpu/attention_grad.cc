// The backward pass of attention: the weights are computed again, block by block, from the logarithms of their
// denominators (Dao et al. 2022, algorithm 4). A large logarithm is rounded by as much as the weights would then be off
// by, relatively: there the weights are summed first (`mend_large`). Where a block has all keys that count, its weights
// are always summed, and so are their gradients: nothing but what MXNet rounds is rounded then.
#include <cmath>

#include "attention.h"
#include "blocks.h"
#include "chunk_vectors.h"
#include "clones.h"
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

// Whether weights from this logarithm are off by more than 2e-6. It is -inf where no key counts.
bool is_large(float lse) { return std::isgreater(std::fabs(lse), 32.0f) && std::isfinite(lse); }

// A weight from its score less the logarithm. It is at most 1, whatever was rounded.
ECHO_INLINE float weight_of(float logarithm) { return exp_below(logarithm > 0.0f ? 0.0f : logarithm); }

// The weights of a row of scores, summed.
ECHO_INLINE float sum_row(const float* __restrict scores, float lse, int64_t columns) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < columns; ++j) sum += weight_of(scores[j] - lse);
  return sum;
}

// The weights of a row times their gradients, summed.
ECHO_INLINE float delta_row(const float* __restrict scores, const float* __restrict dweights, float lse, float rest,
                            int64_t columns) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < columns; ++j) sum += weight_of(scores[j] - lse - rest) * dweights[j];
  return sum;
}

ECHO_INLINE void weights_row(float* __restrict scores, float lse, float rest, int64_t columns) {
  for (int64_t j = 0; j < columns; ++j) scores[j] = weight_of(scores[j] - lse - rest);
}

// Gradients of weights become gradients of scores.
ECHO_INLINE void dscores_row(const float* __restrict weights, float* __restrict dweights, float scale, float delta,
                             int64_t columns) {
  for (int64_t j = 0; j < columns; ++j) dweights[j] = weights[j] * (dweights[j] - delta) * scale;
}

// Makes the weights of a row sum up to 1, and returns the sum of their products with their gradients.
ECHO_INLINE float whole_row(float* __restrict weights, const float* __restrict dweights, int64_t columns) {
  float sum = 0.0f, delta = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < columns; ++j) sum += weights[j];
#pragma omp simd reduction(+ : delta)
  for (int64_t j = 0; j < columns; ++j) {
    weights[j] /= sum;
    delta += weights[j] * dweights[j];
  }
  return delta;
}

// Nothing flows back to scores that the mask has replaced.
ECHO_INLINE void close_row(float* __restrict dscores, const float* __restrict mask, int64_t columns) {
  for (int64_t j = 0; j < columns; ++j) dscores[j] = mask[j] != 0.0f ? dscores[j] : 0.0f;
}

ECHO_INLINE float dot_row(const float* a, const float* b, int64_t n) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

struct Tensors {
  explicit Tensors(const Call& call)
      : N(call["N"]),
        Tq(call["Tq"]),
        Tk(call["Tk"]),
        D(call["D"]),
        Dv(call["Dv"]),
        dout(call, "dout"),
        q(call, "q"),
        k(call, "k"),
        v(call, "v"),
        out(call, "out"),
        lse(call, "lse"),
        dq(call, "dq"),
        dk(call, "dk"),
        dv(call, "dv"),
        rules(call) {}

  float lse_of(int64_t n, int64_t query) const {
    float buffer;
    return *lse.read(n * Tq + query, 1, &buffer);
  }

  bool any_large(int64_t n, int64_t first, int64_t rows) const {
    for (int64_t i = 0; i < rows; ++i) {
      if (is_large(lse_of(n, first + i))) return true;
    }
    return false;
  }

  const int64_t N, Tq, Tk, D, Dv;
  const Input dout, q, k, v, out, lse;
  const Output dq, dk, dv;
  const Scores rules;
};

// The parts of a chunk's workspace. Those with copies in float32 are empty where the tensors are float32.
enum { kQ, kDout, kOut, kK, kV, kKTransposed, kVTransposed, kDk, kDv, kDq, kDelta, kRest, kScores, kDscores, kParts };

struct Layout {
  Layout(int64_t Tq, int64_t D, int64_t Dv, bool half) {
    const int64_t rows = std::min(Tq, kQueries), copies = half ? 1 : 0;
    const int64_t floats[kParts] = {copies * rows * D,
                                    copies * rows * Dv,
                                    copies * rows * Dv,
                                    copies * kKeysAtOnce * D,
                                    copies * kKeysAtOnce * Dv,
                                    kKeysAtOnce * D,
                                    kKeysAtOnce * Dv,
                                    kKeysAtOnce * D,
                                    kKeysAtOnce * Dv,
                                    Tq * D,
                                    Tq,
                                    Tq,
                                    rows * kKeysAtOnce,
                                    rows * kKeysAtOnce};
    for (int part = 0; part < kParts; ++part) start[part + 1] = start[part] + whole_lines(floats[part]);
  }

  int64_t start[kParts + 1] = {};  // of each part, in floats; the last is the size of all
};

struct Buffers {
  float* floats;
  const Layout& layout;

  float* operator[](int part) const { return floats + layout.start[part]; }
};

// delta[i] = dout[i] . out[i], which is the sum over j of weight(i, j) times its gradient.
void fill_delta(const Tensors& t, int64_t n, const Buffers& b) {
  in_tiles(t.Tq, kQueries, [&](int64_t first, int64_t rows) {
    const int64_t at = (n * t.Tq + first) * t.Dv;
    const float* const dout = t.dout.read(at, rows * t.Dv, b[kDout]);
    const float* const out = t.out.read(at, rows * t.Dv, b[kOut]);
    for (int64_t i = 0; i < rows; ++i) b[kDelta][first + i] = cloned<dot_row>(dout + i * t.Dv, out + i * t.Dv, t.Dv);
  });
}

// A row of products becomes scores, and gradients of what the weights were multiplied by become those of the weights. So
// many of the columns count.
int64_t finish_row(const Tensors& t, int64_t n, int64_t query, int64_t key, int64_t columns, float* scores,
                   float* dweights, float* buffer, MaskRow* row) {
  const int64_t inside = t.rules.inside(n, query, key, columns);
  *row = t.rules.row(n, query, key, inside, buffer);
  cloned<finish_scores>(scores, row->mask, t.rules.scale, t.rules.masking, t.rules.fill, inside);
  if (row->factors != nullptr) cloned<multiply_rows>(dweights, row->factors, inside);
  return inside;
}

// Calls f(query, at, columns) for each query with large scores and block of keys that count: the scores, and the
// gradients of the weights, of that query are at `at`.
template <typename F>
void each_large_row(const Tensors& t, int64_t n, const Buffers& b, F f) {
  in_tiles(t.rules.most(n), kKeysAtOnce, [&](int64_t key, int64_t columns) {
    const float* const keys = t.k.read((n * t.Tk + key) * t.D, columns * t.D, b[kK]);
    const float* const values = t.v.read((n * t.Tk + key) * t.Dv, columns * t.Dv, b[kV]);
    const Columns key_columns(keys, columns, t.D, t.Tq, b[kKTransposed]);
    const Columns value_columns(values, columns, t.Dv, t.Tq, b[kVTransposed]);
    in_tiles(t.Tq, kQueries, [&](int64_t first, int64_t rows) {
      if (!t.any_large(n, first, rows)) return;
      const int64_t row = n * t.Tq + first;
      key_columns.dots(t.q.read(row * t.D, rows * t.D, b[kQ]), rows, b[kScores]);
      value_columns.dots(t.dout.read(row * t.Dv, rows * t.Dv, b[kDout]), rows, b[kDscores]);
      for (int64_t i = 0; i < rows; ++i) {
        if (!is_large(t.lse_of(n, first + i))) continue;
        float buffer[2 * kKeysAtOnce];
        MaskRow unused;
        const int64_t at = i * kKeysAtOnce;
        f(first + i, at, finish_row(t, n, first + i, key, columns, b[kScores] + at, b[kDscores] + at, buffer, &unused));
      }
    });
  });
}

// Where scores are large: what their logarithms lost in rounding, and delta from the very weights and gradients that it
// is subtracted from later, so that nothing is left where one key has all the weight, as in MXNet.
void mend_large(const Tensors& t, int64_t n, const Buffers& b) {
  float *const rest = b[kRest], *const delta = b[kDelta];
  if (!t.any_large(n, 0, t.Tq)) return;
  each_large_row(t, n, b, [&](int64_t query, int64_t at, int64_t columns) {
    rest[query] += cloned<sum_row>(b[kScores] + at, t.lse_of(n, query), columns);
  });
  for (int64_t i = 0; i < t.Tq; ++i) {
    if (is_large(t.lse_of(n, i))) rest[i] = std::log(rest[i]), delta[i] = 0.0f;
  }
  each_large_row(t, n, b, [&](int64_t query, int64_t at, int64_t columns) {
    delta[query] += cloned<delta_row>(b[kScores] + at, b[kDscores] + at, t.lse_of(n, query), rest[query], columns);
  });
}

// A block of keys and values that count, and where their gradients are summed.
struct KeyBlock {
  int64_t first, columns;
  bool is_all;  // no other keys count
  const float* keys;
  Columns key_columns, value_columns;
  float *dk, *dv;
};

// What a block of keys takes from, and gives to, a block of queries.
void block_grad(const Tensors& t, int64_t n, int64_t first, int64_t rows, const KeyBlock& block, const Buffers& b) {
  const int64_t from = n * t.Tq + first, columns = block.columns;
  const float* const queries = t.q.read(from * t.D, rows * t.D, b[kQ]);
  const float* const dout = t.dout.read(from * t.Dv, rows * t.Dv, b[kDout]);
  block.key_columns.dots(queries, rows, b[kScores]);
  block.value_columns.dots(dout, rows, b[kDscores]);
  for (int64_t i = 0; i < rows; ++i) {
    float* const scores = b[kScores] + i * kKeysAtOnce;
    float* const dscores = b[kDscores] + i * kKeysAtOnce;
    float buffer[2 * kKeysAtOnce];
    MaskRow row;
    const int64_t inside = finish_row(t, n, first + i, block.first, columns, scores, dscores, buffer, &row);
    // the weight of one key alone is always 1: what rounding leaves of its gradient would be all that there is
    const float scale = t.rules.length(n, first + i) == 1 ? 0.0f : t.rules.scale;
    cloned<weights_row>(scores, t.lse_of(n, first + i), b[kRest][first + i], inside);
    const float delta = block.is_all ? cloned<whole_row>(scores, dscores, inside) : b[kDelta][first + i];
    cloned<dscores_row>(scores, dscores, scale, delta, inside);
    if (row.factors != nullptr) cloned<multiply_rows>(scores, row.factors, inside);
    if (row.mask != nullptr && t.rules.masking != kAdds) cloned<close_row>(dscores, row.mask, inside);
    std::fill(scores + inside, scores + columns, 0.0f);
    std::fill(dscores + inside, dscores + columns, 0.0f);
  }
  if (!t.dv.skipped()) add_product(b[kScores], 1, kKeysAtOnce, dout, columns, rows, t.Dv, block.dv);
  if (!t.dk.skipped()) add_product(b[kDscores], 1, kKeysAtOnce, queries, columns, rows, t.D, block.dk);
  if (!t.dq.skipped()) {
    add_product(b[kDscores], kKeysAtOnce, 1, block.keys, rows, columns, t.D, b[kDq] + first * t.D);
  }
}

void sequence_grad(const Tensors& t, int64_t n, const Buffers& b) {
  std::fill_n(b[kRest], t.Tq, 0.0f);
  if (t.rules.most(n) > kKeysAtOnce) {
    fill_delta(t, n, b);
    mend_large(t, n, b);
  }
  std::fill_n(b[kDq], t.Tq * t.D, 0.0f);
  const int64_t length = t.rules.most(n);
  in_tiles(t.Tk, kKeysAtOnce, [&](int64_t key, int64_t all) {
    const int64_t columns = std::min(std::max<int64_t>(length - key, 0), all), row = n * t.Tk + key;
    float* const dk = t.dk.place(row * t.D, b[kDk]);
    float* const dv = t.dv.place(row * t.Dv, b[kDv]);
    std::fill_n(dk, all * t.D, 0.0f);
    std::fill_n(dv, all * t.Dv, 0.0f);
    if (columns > 0) {
      const float* const keys = t.k.read(row * t.D, columns * t.D, b[kK]);
      const float* const values = t.v.read(row * t.Dv, columns * t.Dv, b[kV]);
      const KeyBlock block{key,
                           columns,
                           columns == length,
                           keys,
                           {keys, columns, t.D, t.Tq, b[kKTransposed]},
                           {values, columns, t.Dv, t.Tq, b[kVTransposed]},
                           dk,
                           dv};
      in_tiles(t.Tq, kQueries, [&](int64_t first, int64_t rows) { block_grad(t, n, first, rows, block, b); });
    }
    t.dk.write(row * t.D, all * t.D, dk);
    t.dv.write(row * t.Dv, all * t.Dv, dv);
  });
  t.dq.write(n * t.Tq * t.D, t.Tq * t.D, b[kDq]);
}

Layout layout_of(const Call& call) { return Layout(call["Tq"], call["D"], call["Dv"], call.half()); }

size_t attention_grad_workspace(const Call& call) {
  return chunk_count(call["N"]) * layout_of(call).start[kParts] * sizeof(float);
}

void attention_grad(const Call& call) {
  const Tensors t(call);
  const Layout layout = layout_of(call);
  in_chunks(t.N, t.N * t.Tq * t.Tk * (t.D + t.Dv) / 4, [&](int64_t chunk, int64_t begin, int64_t end) {
    const Buffers buffers{static_cast<float*>(call.raw().workspace) + chunk * layout.start[kParts], layout};
    for (int64_t n = begin; n < end; ++n) sequence_grad(t, n, buffers);
  });
  for (const char* name : {"dlengths", "dmask", "dbits", "dfactor"}) call.write_zeros(name);
}

const CpuKernel kAttentionGrad("attention_grad", attention_grad, attention_grad_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
