// Softmax attention in blocks, without a [Tq,Tk] map in memory: the forward pass keeps a running maximum and denominator
// (Milakov and Gimelshein 2018; Rabe and Staats 2021; Dao et al. 2022).
#include "attention.h"

#include <cmath>

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

// A row of scores becomes exponentials; the row's maximum, denominator and what was summed so far follow.
ECHO_INLINE void softmax_row(float* __restrict scores, int64_t columns, float* __restrict most, float* __restrict total,
                             float* __restrict out, int64_t width) {
  float maximum = *most;
#pragma omp simd reduction(max : maximum)
  for (int64_t j = 0; j < columns; ++j) maximum = scores[j] > maximum ? scores[j] : maximum;
  const float base = maximum == -__builtin_inff() ? 0.0f : maximum;  // every score so far is -inf: exponentials are 0
  // apart from the sum: clang works on several vectors of a sum at once, and leaves more of a short row to one by one
  for (int64_t j = 0; j < columns; ++j) scores[j] = exp_below(scores[j] - base);
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < columns; ++j) sum += scores[j];
  const float shrink = exp_below(*most - base);
  *total = *total * shrink + sum;
  *most = maximum;
  if (shrink == 1.0f) return;
  for (int64_t d = 0; d < width; ++d) out[d] *= shrink;
}

ECHO_INLINE void scale_row(float* row, float factor, int64_t n) {
  for (int64_t d = 0; d < n; ++d) row[d] *= factor;
}

// The parts of a chunk's workspace. Those with copies in float32 are empty where the tensors are float32.
enum { kQ, kK, kV, kTransposed, kScores, kSums, kParts };

struct Sizes {
  explicit Sizes(const Call& call)
      : N(call["N"]),
        Tq(call["Tq"]),
        Tk(call["Tk"]),
        D(call["D"]),
        Dv(call["Dv"]),
        blocks((Tq + kQueries - 1) / kQueries),
        rows(std::min(Tq, kQueries)) {
    const int64_t copies = call.half() ? 1 : 0;
    const int64_t floats[kParts] = {copies * rows * D, copies * kKeysAtOnce * D, copies * kKeysAtOnce * Dv,
                                    kKeysAtOnce * D,   rows * kKeysAtOnce,       rows * Dv};
    for (int part = 0; part < kParts; ++part) start[part + 1] = start[part] + whole_lines(floats[part]);
  }

  int64_t N, Tq, Tk, D, Dv;
  int64_t blocks, rows;  // blocks of queries of a sequence, and the most rows of one
  int64_t start[kParts + 1] = {};  // of each part, in floats; the last is the size of all
};

size_t attention_workspace(const Call& call) {
  const Sizes s(call);
  return chunk_count(s.N * s.blocks) * s.start[kParts] * sizeof(float);
}

void attention(const Call& call) {
  const Sizes s(call);
  const Scores rules(call);
  const Input q(call, "q"), k(call, "k"), v(call, "v");
  const Output out(call, "out"), lse(call, "lse");
  in_chunks(s.N * s.blocks, s.N * s.Tq * s.Tk * (s.D + s.Dv) / 8, [&](int64_t chunk, int64_t begin, int64_t end) {
    float* const workspace = static_cast<float*>(call.raw().workspace) + chunk * s.start[kParts];
    float* const scores = workspace + s.start[kScores];
    float* const sums = workspace + s.start[kSums];
    float most[kQueries], totals[kQueries];
    for (int64_t block = begin; block < end; ++block) {
      const int64_t n = block / s.blocks, first = block % s.blocks * kQueries;
      const int64_t rows = std::min(kQueries, s.Tq - first), row = n * s.Tq + first;
      const float* const queries = q.read(row * s.D, rows * s.D, workspace + s.start[kQ]);
      std::fill_n(most, rows, -__builtin_inff());
      std::fill_n(totals, rows, 0.0f);
      std::fill_n(sums, rows * s.Dv, 0.0f);
      in_tiles(rules.most(n), kKeysAtOnce, [&](int64_t key, int64_t columns) {
        const float* const keys = k.read((n * s.Tk + key) * s.D, columns * s.D, workspace + s.start[kK]);
        const float* const values = v.read((n * s.Tk + key) * s.Dv, columns * s.Dv, workspace + s.start[kV]);
        // for all queries, not for these rows: the gradient needs the very bits of these scores
        Columns(keys, columns, s.D, s.Tq, workspace + s.start[kTransposed]).dots(queries, rows, scores);
        for (int64_t i = 0; i < rows; ++i) {
          float* const row_scores = scores + i * kKeysAtOnce;
          float buffer[2 * kKeysAtOnce];
          const int64_t inside = rules.inside(n, first + i, key, columns);
          const MaskRow row = rules.row(n, first + i, key, inside, buffer);
          cloned<finish_scores>(row_scores, row.mask, rules.scale, rules.masking, rules.fill, inside);
          cloned<softmax_row>(row_scores, inside, most + i, totals + i, sums + i * s.Dv, s.Dv);
          if (row.factors != nullptr) cloned<multiply_rows>(row_scores, row.factors, inside);
          std::fill(row_scores + inside, row_scores + columns, 0.0f);
        }
        add_product(scores, kKeysAtOnce, 1, values, rows, columns, s.Dv, sums);
      });
      for (int64_t i = 0; i < rows; ++i) {
        const bool no_key = rules.length(n, first + i) == 0;  // else a sum of 0 makes NaNs, as in MXNet
        const float total = totals[i] == 0.0f && !no_key ? __builtin_nanf("") : totals[i];
        const float logarithm = most[i] + std::log(total);
        lse.write(row + i, 1, &logarithm);
        cloned<scale_row>(sums + i * s.Dv, no_key ? 0.0f : 1.0f / total, s.Dv);
      }
      out.write(row * s.Dv, rows * s.Dv, sums);
    }
  });
}

const CpuKernel kAttention("attention", attention, attention_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
