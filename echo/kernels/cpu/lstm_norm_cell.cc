// The pointwise part of an LSTM step with a layer norm of its cell in front of the output. The backward pass computes gates
// and norm again.
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

using echo_formulas::cell_grad;

// A row of gates in front of their activations.
struct Gates {
  const float *i, *f, *g, *o;
};

ECHO_INLINE void forward_row(const Gates& pre, const float* __restrict c, const float* __restrict gamma,
                             const float* __restrict beta, float eps, float* __restrict h, float* __restrict c_next,
                             int64_t n) {
  for (int64_t j = 0; j < n; ++j) c_next[j] = sigmoid_of(pre.f[j]) * c[j] + sigmoid_of(pre.i[j]) * tanh_of(pre.g[j]);
  const Moments of_cell = moments_of(c_next, n, eps);
  for (int64_t j = 0; j < n; ++j) h[j] = sigmoid_of(pre.o[j]) * tanh_of(of_cell.norm(c_next[j]) * gamma[j] + beta[j]);
}

// `cell` receives the next cell, then its gradient; `d_norm` the gradient of what the norm gives.
ECHO_INLINE void output_gradients(const float* __restrict dh, const float* __restrict dc_next, const Gates& pre,
                                  const float* __restrict c, const float* __restrict gamma,
                                  const float* __restrict beta, float eps, float* __restrict cell,
                                  float* __restrict d_norm, float* __restrict d_o, float* __restrict dgamma,
                                  float* __restrict dbeta, int64_t n) {
  for (int64_t j = 0; j < n; ++j) cell[j] = sigmoid_of(pre.f[j]) * c[j] + sigmoid_of(pre.i[j]) * tanh_of(pre.g[j]);
  const Moments of_cell = moments_of(cell, n, eps);
  for (int64_t j = 0; j < n; ++j) {
    const float norm = of_cell.norm(cell[j]);
    const Sigmoid o = sigmoid_gate(pre.o[j]);
    const Tanh t = tanh_gate(norm * gamma[j] + beta[j]);
    d_o[j] = dh[j] * t.value * o.slope;
    const float d = dh[j] * o.value * t.slope;
    dgamma[j] += d * norm;
    dbeta[j] += d;
    d_norm[j] = d * gamma[j];
  }
  float sum = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t j = 0; j < n; ++j) {
    sum += d_norm[j];
    product += d_norm[j] * of_cell.norm(cell[j]);
  }
  const NormGradient gradient(of_cell, sum, product, n);
  for (int64_t j = 0; j < n; ++j) cell[j] = dc_next[j] + gradient(of_cell.norm(cell[j]), d_norm[j]);
}

ECHO_INLINE void cell_gradients(const float* __restrict d_cell, const Gates& pre, const float* __restrict c,
                                float* __restrict d_i, float* __restrict d_f, float* __restrict d_g,
                                float* __restrict dc, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    const Sigmoid unread = {};
    echo_formulas::LstmGrads grads;
    dc[j] = cell_grad({sigmoid_gate(pre.i[j]), sigmoid_gate(pre.f[j]), tanh_gate(pre.g[j]), unread}, c[j], d_cell[j],
                      &grads);
    d_i[j] = grads.i, d_f[j] = grads.f, d_g[j] = grads.g;
  }
}

enum { kPre, kC = kPre + 4, kGamma, kBeta, kH, kCell, kForwardVectors };
enum { kDh = kH, kNext = kForwardVectors, kNorm, kDpre, kDc = kDpre + 4, kDgamma, kDbeta, kBackwardVectors };

Gates gates_of(const Input& pre, const Places& place, int64_t row, int64_t H, const ChunkVectors& rows, int64_t chunk) {
  const float* at[4];
  for (int gate = 0; gate < 4; ++gate) at[gate] = pre.read((4 * row + place[gate]) * H, H, rows.at(chunk, kPre + gate));
  return {at[0], at[1], at[2], at[3]};
}

size_t lstm_norm_cell_workspace(const Call& call) { return ChunkVectors::bytes(call["B"], kForwardVectors, call["H"]); }

void lstm_norm_cell(const Call& call) {
  const int64_t B = call["B"], H = call["H"];
  const float eps = static_cast<float>(call.param("eps"));
  const Places place = call.places(4);
  const Input pre(call, "pre"), c(call, "c"), gamma(call, "gamma"), beta(call, "beta");
  const Output h(call, "h"), c_next(call, "c'");
  const ChunkVectors rows(call.raw().workspace, B, kForwardVectors, H);
  in_chunks(B, B * H * 5, [&](int64_t chunk, int64_t begin, int64_t end) {
    const float* const weight = gamma.read(0, H, rows.at(chunk, kGamma));
    const float* const bias = beta.read(0, H, rows.at(chunk, kBeta));
    for (int64_t row = begin; row < end; ++row) {
      float* const h_at = h.place(row * H, rows.at(chunk, kH));
      float* const c_at = c_next.place(row * H, rows.at(chunk, kCell));
      cloned<forward_row>(gates_of(pre, place, row, H, rows, chunk), c.read(row * H, H, rows.at(chunk, kC)), weight,
                          bias, eps, h_at, c_at, H);
      h.write(row * H, H, h_at);
      c_next.write(row * H, H, c_at);
    }
  });
}

size_t lstm_norm_cell_grad_workspace(const Call& call) {
  return ChunkVectors::bytes(call["B"], kBackwardVectors, call["H"]);
}

void lstm_norm_cell_grad(const Call& call) {
  const int64_t B = call["B"], H = call["H"];
  const float eps = static_cast<float>(call.param("eps"));
  const Places place = call.places(4);
  const Input dh(call, "dh"), dc_next(call, "dc'"), pre(call, "pre"), c(call, "c"), gamma(call, "gamma"),
      beta(call, "beta");
  const Output dpre(call, "dpre"), dc(call, "dc");
  const ChunkVectors rows(call.raw().workspace, B, kBackwardVectors, H);
  in_chunks(B, B * H * 9, [&](int64_t chunk, int64_t begin, int64_t end) {
    const float* const weight = gamma.read(0, H, rows.at(chunk, kGamma));
    const float* const bias = beta.read(0, H, rows.at(chunk, kBeta));
    float *const weight_sum = rows.zeros(chunk, kDgamma), *const bias_sum = rows.zeros(chunk, kDbeta);
    float *const cell = rows.at(chunk, kCell), *const norm = rows.at(chunk, kNorm);
    for (int64_t row = begin; row < end; ++row) {
      const Gates gates = gates_of(pre, place, row, H, rows, chunk);
      const float* const before = c.read(row * H, H, rows.at(chunk, kC));
      float* out[4];
      for (int gate = 0; gate < 4; ++gate)
        out[gate] = dpre.place((4 * row + place[gate]) * H, rows.at(chunk, kDpre + gate));
      float* const dc_at = dc.place(row * H, rows.at(chunk, kDc));
      cloned<output_gradients>(dh.read(row * H, H, rows.at(chunk, kDh)),
                               dc_next.read(row * H, H, rows.at(chunk, kNext)), gates, before, weight, bias, eps, cell,
                               norm, out[3], weight_sum, bias_sum, H);
      cloned<cell_gradients>(cell, gates, before, out[0], out[1], out[2], dc_at, H);
      for (int gate = 0; gate < 4; ++gate) dpre.write((4 * row + place[gate]) * H, H, out[gate]);
      dc.write(row * H, H, dc_at);
    }
  });
  rows.write_sum(kDgamma, Output(call, "dgamma"));
  rows.write_sum(kDbeta, Output(call, "dbeta"));
}

const CpuKernel kLstmNormCell("lstm_norm_cell", lstm_norm_cell, lstm_norm_cell_workspace);
const CpuKernel kLstmNormCellGrad("lstm_norm_cell_grad", lstm_norm_cell_grad, lstm_norm_cell_grad_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
