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
ECHO_CLONES void weights_row(float* __restrict scores, float* __restrict dweights, const float* __restrict bias,
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

ECHO_CLONES float dot_row(const float* a, const float* b, int64_t n) {
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

// The workspace of a chunk.
struct Buffers {
  Buffers(float* floats, int64_t Tq, int64_t D, int64_t Dv) : start(floats), end(floats) {
    q = take(kQueries * D);
    dout = take(kQueries * Dv);
    k = take(kKeysAtOnce * D);
    v = take(kKeysAtOnce * Dv);
    dk = take(kKeysAtOnce * D);
    dv = take(kKeysAtOnce * Dv);
    dq = take(Tq * D);
    delta = take(Tq);
    scores = take(kQueries * kKeysAtOnce);
    dscores = take(kQueries * kKeysAtOnce);
  }

  int64_t size() const { return end - start; }

  float *start, *end;
  float *q, *dout, *k, *v, *dk, *dv, *dq, *delta, *scores, *dscores;

 private:
  float* take(int64_t floats) {
    float* const taken = end;
    end += whole_lines(floats);
    return taken;
  }
};

// delta[i] = dout[i] . out[i], which is the sum over j of weight(i, j) times its gradient.
void fill_delta(const Tensors& t, int64_t n, const Buffers& b) {
  in_tiles(t.Tq, std::min(kQueries, kKeysAtOnce), [&](int64_t first, int64_t rows) {
    const int64_t at = (n * t.Tq + first) * t.Dv;
    const float* const dout = t.dout.read(at, rows * t.Dv, b.dout);
    const float* const out = t.out.read(at, rows * t.Dv, b.v);
    for (int64_t i = 0; i < rows; ++i) b.delta[first + i] = dot_row(dout + i * t.Dv, out + i * t.Dv, t.Dv);
  });
}

// What a block of keys takes from, and gives to, a block of queries.
void block_grad(const Tensors& t, int64_t n, int64_t first, int64_t rows, int64_t key, int64_t columns,
                const float* keys, const float* values, const Buffers& b) {
  const int64_t row = n * t.Tq + first;
  const float* const queries = t.q.read(row * t.D, rows * t.D, b.q);
  const float* const dout = t.dout.read(row * t.Dv, rows * t.Dv, b.dout);
  dots(queries, keys, rows, columns, t.D, b.scores);
  dots(dout, values, rows, columns, t.Dv, b.dscores);
  for (int64_t i = 0; i < rows; ++i) {
    float bias_buffer[kKeysAtOnce], lse_buffer;
    weights_row(b.scores + i * kKeysAtOnce, b.dscores + i * kKeysAtOnce,
                t.bias.read((first + i) * t.Tk + key, columns, bias_buffer), t.scale,
                *t.lse.read(row + i, 1, &lse_buffer), b.delta[first + i], columns);
  }
  if (!t.dv.skipped()) add_product(b.scores, 1, kKeysAtOnce, dout, columns, rows, t.Dv, b.dv);
  if (!t.dk.skipped()) add_product(b.dscores, 1, kKeysAtOnce, queries, columns, rows, t.D, b.dk);
  if (!t.dq.skipped()) add_product(b.dscores, kKeysAtOnce, 1, keys, rows, columns, t.D, b.dq + first * t.D);
}

void sequence_grad(const Tensors& t, int64_t n, const Buffers& b) {
  fill_delta(t, n, b);
  std::fill_n(b.dq, t.Tq * t.D, 0.0f);
  const int64_t length = t.lengths[n];
  in_tiles(t.Tk, kKeysAtOnce, [&](int64_t key, int64_t all) {
    const int64_t columns = std::min(std::max<int64_t>(length - key, 0), all), row = n * t.Tk + key;
    std::fill_n(b.dk, all * t.D, 0.0f);
    std::fill_n(b.dv, all * t.Dv, 0.0f);
    if (columns > 0) {
      const float* const keys = t.k.read(row * t.D, columns * t.D, b.k);
      const float* const values = t.v.read(row * t.Dv, columns * t.Dv, b.v);
      in_tiles(t.Tq, kQueries, [&](int64_t first, int64_t rows) {
        block_grad(t, n, first, rows, key, columns, keys, values, b);
      });
    }
    t.dk.write(row * t.D, all * t.D, b.dk);
    t.dv.write(row * t.Dv, all * t.Dv, b.dv);
  });
  t.dq.write(n * t.Tq * t.D, t.Tq * t.D, b.dq);
}

int64_t chunk_floats(const Call& call) { return Buffers(nullptr, call["Tq"], call["D"], call["Dv"]).size(); }

}  // namespace

size_t attention_grad_workspace(const Call& call) {
  return chunk_count(call["N"]) * chunk_floats(call) * sizeof(float);
}

void attention_grad(const Call& call) {
  const Tensors t(call);
  const int64_t floats = chunk_floats(call);
  in_chunks(t.N, t.N * t.Tq * t.Tk * (t.D + t.Dv) / 4, [&](int64_t chunk, int64_t begin, int64_t end) {
    const Buffers buffers(static_cast<float*>(call.raw().workspace) + chunk * floats, t.Tq, t.D, t.Dv);
    for (int64_t n = begin; n < end; ++n) sequence_grad(t, n, buffers);
  });
  call.write_zeros("dlengths");
  call.write_zeros("dbias");
}

}  // namespace kernels
}  // namespace echo
