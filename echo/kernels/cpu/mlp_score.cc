// The scores of additive attention in one pass: the [B,T,H] maps between keys and scores are never in memory, and the
// backward pass computes them again.
#include "chunk_vectors.h"
#include "clones.h"
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "statistics.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

ECHO_INLINE float forward_row(const float* __restrict keys, const float* __restrict query, const float* __restrict v,
                              int64_t n) {
  float score = 0.0f;
#pragma omp simd reduction(+ : score)
  for (int64_t j = 0; j < n; ++j) score += v[j] * tanh_of(keys[j] + query[j]);
  return score;
}

ECHO_INLINE float forward_normed_row(const float* __restrict keys, const float* __restrict query,
                                     const float* __restrict v, const float* __restrict gamma,
                                     const float* __restrict beta, float eps, float* __restrict total, int64_t n) {
  for (int64_t j = 0; j < n; ++j) total[j] = keys[j] + query[j];
  const Moments of_total = moments_of(total, n, eps);
  float score = 0.0f;
#pragma omp simd reduction(+ : score)
  for (int64_t j = 0; j < n; ++j) {
    score += v[j] * tanh_of(of_total.norm(total[j]) * gamma[j] + beta[j]);
  }
  return score;
}

ECHO_INLINE void backward_row(float dscore, const float* __restrict keys, const float* __restrict query,
                              const float* __restrict v, float* __restrict dkeys, float* __restrict dquery,
                              float* __restrict dv, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    const Tanh t = tanh_gate(keys[j] + query[j]);
    const float d = dscore * v[j] * t.slope;
    dkeys[j] = d;
    dquery[j] += d;
    dv[j] += dscore * t.value;
  }
}

ECHO_INLINE void backward_normed_row(float dscore, const float* __restrict keys, const float* __restrict query,
                                     const float* __restrict v, const float* __restrict gamma,
                                     const float* __restrict beta, float eps, float* __restrict norm,
                                     float* __restrict dkeys, float* __restrict dquery, float* __restrict dv,
                                     float* __restrict dgamma, float* __restrict dbeta, int64_t n) {
  for (int64_t j = 0; j < n; ++j) norm[j] = keys[j] + query[j];
  const Moments of_total = moments_of(norm, n, eps);
  for (int64_t j = 0; j < n; ++j) {
    norm[j] = of_total.norm(norm[j]);
    const Tanh t = tanh_gate(norm[j] * gamma[j] + beta[j]);
    const float d = dscore * v[j] * t.slope;
    dv[j] += dscore * t.value;
    dgamma[j] += d * norm[j];
    dbeta[j] += d;
    dkeys[j] = d * gamma[j];
  }
  float sum = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t j = 0; j < n; ++j) {
    sum += dkeys[j];
    product += dkeys[j] * norm[j];
  }
  const NormGradient gradient(of_total, sum, product, n);
  for (int64_t j = 0; j < n; ++j) {
    dkeys[j] = gradient(norm[j], dkeys[j]);
    dquery[j] += dkeys[j];
  }
}

enum { kKeys, kQuery, kV, kGamma, kBeta, kTotal, kForwardVectors };
enum { kDkeys = kForwardVectors, kDquery, kDv, kDgamma, kDbeta, kBackwardVectors };

// The inputs that both passes read, and a chunk's copies of the vectors that all rows share.
struct Inputs {
  explicit Inputs(const Call& call)
      : keys(call, "keys"),
        query(call, "query"),
        v(call, "v"),
        gamma(call, "gamma"),
        beta(call, "beta"),
        eps(static_cast<float>(call.param("eps"))) {}

  const Input keys, query, v, gamma, beta;
  const float eps;
};

struct Shared {
  Shared(const Inputs& in, const ChunkVectors& rows, int64_t chunk, int64_t H)
      : v(in.v.read(0, H, rows.at(chunk, kV))),
        gamma(in.gamma.read(0, H, rows.at(chunk, kGamma))),
        beta(in.beta.read(0, H, rows.at(chunk, kBeta))) {}

  const float *v, *gamma, *beta;
};

size_t mlp_score_workspace(const Call& call) { return ChunkVectors::bytes(call["B"], kForwardVectors, call["H"]); }

void mlp_score(const Call& call) {
  const int64_t B = call["B"], T = call["T"], H = call["H"];
  const Inputs in(call);
  const Output score(call, "score");
  const ChunkVectors rows(call.raw().workspace, B, kForwardVectors, H);
  in_chunks(B, B * T * H, [&](int64_t chunk, int64_t begin, int64_t end) {
    const Shared shared(in, rows, chunk, H);
    for (int64_t b = begin; b < end; ++b) {
      const float* const query = in.query.read(b * H, H, rows.at(chunk, kQuery));
      for (int64_t t = 0; t < T; ++t) {
        const float* const keys = in.keys.read((b * T + t) * H, H, rows.at(chunk, kKeys));
        const float value = in.gamma.absent()
                                ? cloned<forward_row>(keys, query, shared.v, H)
                                : cloned<forward_normed_row>(keys, query, shared.v, shared.gamma, shared.beta, in.eps,
                                                             rows.at(chunk, kTotal), H);
        score.write(b * T + t, 1, &value);
      }
    }
  });
}

size_t mlp_score_grad_workspace(const Call& call) {
  return ChunkVectors::bytes(call["B"], kBackwardVectors, call["H"]);
}

void mlp_score_grad(const Call& call) {
  const int64_t B = call["B"], T = call["T"], H = call["H"];
  const Inputs in(call);
  const Input dscore(call, "dscore");
  const Output dkeys(call, "dkeys"), dquery(call, "dquery"), dv(call, "dv");
  const ChunkVectors rows(call.raw().workspace, B, kBackwardVectors, H);
  in_chunks(B, B * T * H * 2, [&](int64_t chunk, int64_t begin, int64_t end) {
    const Shared shared(in, rows, chunk, H);
    float* const v_sum = rows.zeros(chunk, kDv);
    float* const gamma_sum = rows.zeros(chunk, kDgamma);
    float* const beta_sum = rows.zeros(chunk, kDbeta);
    for (int64_t b = begin; b < end; ++b) {
      const float* const query = in.query.read(b * H, H, rows.at(chunk, kQuery));
      float* const query_sum = rows.zeros(chunk, kDquery);
      for (int64_t t = 0; t < T; ++t) {
        const int64_t row = b * T + t;
        float head_buffer;
        const float head = *dscore.read(row, 1, &head_buffer);
        const float* const keys = in.keys.read(row * H, H, rows.at(chunk, kKeys));
        float* const place = dkeys.place(row * H, rows.at(chunk, kDkeys));
        if (in.gamma.absent()) {
          cloned<backward_row>(head, keys, query, shared.v, place, query_sum, v_sum, H);
        } else {
          cloned<backward_normed_row>(head, keys, query, shared.v, shared.gamma, shared.beta, in.eps,
                                      rows.at(chunk, kTotal), place, query_sum, v_sum, gamma_sum, beta_sum, H);
        }
        dkeys.write(row * H, H, place);
      }
      dquery.write(b * H, H, query_sum);
    }
  });
  rows.write_sum(kDv, dv);
  rows.write_sum(kDgamma, Output(call, "dgamma"));
  rows.write_sum(kDbeta, Output(call, "dbeta"));
}

const CpuKernel kMlpScore("mlp_score", mlp_score, mlp_score_workspace);
const CpuKernel kMlpScoreGrad("mlp_score_grad", mlp_score_grad, mlp_score_grad_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
