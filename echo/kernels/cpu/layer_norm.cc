// The layer norm over rows. The backward pass computes mean and variance again.
#include "chunk_vectors.h"
#include "clones.h"
#include "kernels.h"
#include "parallel.h"
#include "statistics.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

ECHO_INLINE void forward_row(const float* __restrict x, const float* __restrict gamma, const float* __restrict beta,
                             float eps, float* __restrict y, int64_t n) {
  const Moments of_x = moments_of(x, n, eps);
  for (int64_t j = 0; j < n; ++j) y[j] = of_x.norm(x[j]) * gamma[j] + beta[j];
}

ECHO_INLINE void backward_row(const float* __restrict dy, const float* __restrict x, const float* __restrict gamma,
                              float eps, float* __restrict dx, float* __restrict dgamma, float* __restrict dbeta,
                              int64_t n) {
  const Moments of_x = moments_of(x, n, eps);
  float sum = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t j = 0; j < n; ++j) {
    const float norm = of_x.norm(x[j]), dnorm = dy[j] * gamma[j];
    sum += dnorm;
    product += dnorm * norm;
    dgamma[j] += dy[j] * norm;
    dbeta[j] += dy[j];
  }
  const NormGradient gradient(of_x, sum, product, n);
  for (int64_t j = 0; j < n; ++j) dx[j] = gradient(of_x.norm(x[j]), dy[j] * gamma[j]);
}

enum { kX, kGamma, kBeta, kY, kForwardVectors };
enum { kDy = kBeta, kDx = kY, kDgamma = kForwardVectors, kDbeta, kBackwardVectors };

size_t layer_norm_workspace(const Call& call) { return ChunkVectors::bytes(call["N"], kForwardVectors, call["H"]); }

void layer_norm(const Call& call) {
  const int64_t N = call["N"], H = call["H"];
  const float eps = static_cast<float>(call.param("eps"));
  const Input x(call, "x"), gamma(call, "gamma"), beta(call, "beta");
  const Output y(call, "y");
  const ChunkVectors rows(call.raw().workspace, N, kForwardVectors, H);
  in_chunks(N, N * H, [&](int64_t chunk, int64_t begin, int64_t end) {
    const float* const weight = gamma.read(0, H, rows.at(chunk, kGamma));
    const float* const bias = beta.read(0, H, rows.at(chunk, kBeta));
    for (int64_t row = begin; row < end; ++row) {
      float* const place = y.place(row * H, rows.at(chunk, kY));
      cloned<forward_row>(x.read(row * H, H, rows.at(chunk, kX)), weight, bias, eps, place, H);
      y.write(row * H, H, place);
    }
  });
}

size_t layer_norm_grad_workspace(const Call& call) {
  return ChunkVectors::bytes(call["N"], kBackwardVectors, call["H"]);
}

void layer_norm_grad(const Call& call) {
  const int64_t N = call["N"], H = call["H"];
  const float eps = static_cast<float>(call.param("eps"));
  const Input dy(call, "dy"), x(call, "x"), gamma(call, "gamma");
  const Output dx(call, "dx"), dgamma(call, "dgamma"), dbeta(call, "dbeta");
  const ChunkVectors rows(call.raw().workspace, N, kBackwardVectors, H);
  in_chunks(N, N * H * 2, [&](int64_t chunk, int64_t begin, int64_t end) {
    const float* const weight = gamma.read(0, H, rows.at(chunk, kGamma));
    float* const weight_sum = rows.zeros(chunk, kDgamma);
    float* const bias_sum = rows.zeros(chunk, kDbeta);
    for (int64_t row = begin; row < end; ++row) {
      float* const place = dx.place(row * H, rows.at(chunk, kDx));
      cloned<backward_row>(dy.read(row * H, H, rows.at(chunk, kDy)), x.read(row * H, H, rows.at(chunk, kX)), weight,
                           eps, place, weight_sum, bias_sum, H);
      dx.write(row * H, H, place);
    }
  });
  rows.write_sum(kDgamma, dgamma);
  rows.write_sum(kDbeta, dbeta);
}

const CpuKernel kLayerNorm("layer_norm", layer_norm, layer_norm_workspace);
const CpuKernel kLayerNormGrad("layer_norm_grad", layer_norm_grad, layer_norm_grad_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
