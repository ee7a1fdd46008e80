// The backward pass of attention: the weights are computed again, block by block, from the logarithms of their
// denominators (Dao et al. 2022, algorithm 4).
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

// Scores become weights, and gradients of weights become gradients of scores.
ECHO_INLINE void weights_row(float* __restrict scores, float* __restrict dweights, const float* __restrict bias,
                             float scale, float lse, float delta, int64_t columns) {
  if (lse == -__builtin_inff()) {  // no key counts
    for (int64_t j = 0; j < columns; ++j) scores[j] = dweights[j] = 0.0f;
    return;
  }
  for (int64_t j = 0; j < columns; ++j) {
    scores[j] = exp_of(scores[j] * scale + bias[j] - lse);
    dweights[j] = scores[j] * (dweights[j] - delta) * scale;
  }
}

ECHO_INLINE float dot_row(const float* a, const float* b, int64_t n) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

struct Tensors {
  explicit Tensors(const Call& call)
      : N(call["N"]), Tq(call["Tq"]), Tk(call["Tk"]), D(call["D"]), Dv(call["Dv"]),
        scale(static_cast<float>(call.param("scale"))), dout(call, "dout"), q(call, "q"), k(call, "k"), v(call, "v"),
        bias(call, "bias"), out(call, "out"), lse(call, "lse"), dq(call, "dq"), dk(call, "dk"), dv(call, "dv"),
        lengths(call, Tk) {}

  const int64_t N, Tq, Tk, D, Dv;
  const float scale;
  const Input dout, q, k, v, bias, out, lse;
  const Output dq, dk, dv;
  const Lengths lengths;
};

// The parts of a chunk's workspace. Those with copies in float32 are empty where the tensors are float32.
enum { kQ, kDout, kOut, kK, kV, kKTransposed, kVTransposed, kDk, kDv, kDq, kDelta, kScores, kDscores, kParts };

struct Layout {
  Layout(int64_t Tq, int64_t D, int64_t Dv, bool half) {
    const int64_t rows = std::min(Tq, kQueries), copies = half ? 1 : 0;
    const int64_t floats[kParts] = {
        copies * rows * D, copies * rows * Dv, copies * rows * Dv, copies * kKeysAtOnce * D, copies * kKeysAtOnce * Dv,
        kKeysAtOnce * D,   kKeysAtOnce * Dv,   kKeysAtOnce * D,    kKeysAtOnce * Dv,         Tq * D,
        Tq,                rows * kKeysAtOnce, rows * kKeysAtOnce};
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

// A block of keys and values that count, and where their gradients are summed.
struct KeyBlock {
  int64_t first, columns;
  const float* keys;
  Columns key_columns, value_columns;
  float *dk, *dv;
};

// What a block of keys takes from, and gives to, a block of queries.
void block_grad(const Tensors& t, int64_t n, int64_t first, int64_t rows, const KeyBlock& block, const Buffers& b) {
  const int64_t row = n * t.Tq + first, columns = block.columns;
  const float* const queries = t.q.read(row * t.D, rows * t.D, b[kQ]);
  const float* const dout = t.dout.read(row * t.Dv, rows * t.Dv, b[kDout]);
  block.key_columns.dots(queries, rows, b[kScores]);
  block.value_columns.dots(dout, rows, b[kDscores]);
  for (int64_t i = 0; i < rows; ++i) {
    float bias_buffer[kKeysAtOnce], lse_buffer;
    cloned<weights_row>(b[kScores] + i * kKeysAtOnce, b[kDscores] + i * kKeysAtOnce,
                        t.bias.read((first + i) * t.Tk + block.first, columns, bias_buffer), t.scale,
                        *t.lse.read(row + i, 1, &lse_buffer), b[kDelta][first + i], columns);
  }
  if (!t.dv.skipped()) add_product(b[kScores], 1, kKeysAtOnce, dout, columns, rows, t.Dv, block.dv);
  if (!t.dk.skipped()) add_product(b[kDscores], 1, kKeysAtOnce, queries, columns, rows, t.D, block.dk);
  if (!t.dq.skipped()) {
    add_product(b[kDscores], kKeysAtOnce, 1, block.keys, rows, columns, t.D, b[kDq] + first * t.D);
  }
}

void sequence_grad(const Tensors& t, int64_t n, const Buffers& b) {
  fill_delta(t, n, b);
  std::fill_n(b[kDq], t.Tq * t.D, 0.0f);
  const int64_t length = t.lengths[n];
  in_tiles(t.Tk, kKeysAtOnce, [&](int64_t key, int64_t all) {
    const int64_t columns = std::min(std::max<int64_t>(length - key, 0), all), row = n * t.Tk + key;
    float* const dk = t.dk.place(row * t.D, b[kDk]);
    float* const dv = t.dv.place(row * t.Dv, b[kDv]);
    std::fill_n(dk, all * t.D, 0.0f);
    std::fill_n(dv, all * t.Dv, 0.0f);
    if (columns > 0) {
      const float* const keys = t.k.read(row * t.D, columns * t.D, b[kK]);
      const float* const values = t.v.read(row * t.Dv, columns * t.Dv, b[kV]);
      const KeyBlock block{key, columns, keys, {keys, columns, t.D, t.Tq, b[kKTransposed]},
                           {values, columns, t.Dv, t.Tq, b[kVTransposed]}, dk, dv};
      in_tiles(t.Tq, kQueries, [&](int64_t first, int64_t rows) { block_grad(t, n, first, rows, block, b); });
    }
    t.dk.write(row * t.D, all * t.D, dk);
    t.dv.write(row * t.Dv, all * t.Dv, dv);
  });
  t.dq.write(n * t.Tq * t.D, t.Tq * t.D, b[kDq]);
}

Layout layout_of(const Call& call) { return Layout(call["Tq"], call["D"], call["Dv"], call.half()); }

}  // namespace

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
  call.write_zeros("dlengths");
  call.write_zeros("dbias");
}

}  // namespace kernels
}  // namespace echo
