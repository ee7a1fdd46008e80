// What stands before the second product of a GRU step that takes the state after its reset gate. The backward pass
// computes the gates again.
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

// The sign of z in the weight of the new state.
float sign_of(const Call& call) { return call.param("keeps") == 0 ? 1.0f : -1.0f; }

ECHO_INLINE void reset_tile(const float* __restrict r, const float* __restrict z, const float* __restrict h, float sign,
                            float* __restrict rh, float* __restrict u, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    rh[j] = sigmoid_of(r[j]) * h[j];
    u[j] = sigmoid_of(sign * z[j]);
  }
}

ECHO_INLINE void reset_grad_tile(const float* __restrict d_rh, const float* __restrict d_u, const float* __restrict r,
                                 const float* __restrict z, const float* __restrict h, float sign,
                                 float* __restrict d_r, float* __restrict d_z, float* __restrict d_h, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    const echo_formulas::ResetGrads grads = echo_formulas::reset_grad(sigmoid_gate(r[j]), sigmoid_gate(z[j]), sign,
                                                                      h[j], d_rh[j], d_u[j]);
    d_r[j] = grads.r, d_z[j] = grads.z, d_h[j] = grads.h;
  }
}

void gru_reset(const Call& call) {
  const int64_t B = call["B"], H = call["H"];
  const Places place = call.places(2);
  const float sign = sign_of(call);
  const Input pre(call, "pre"), h(call, "h");
  const Output rh(call, "rh"), u(call, "u");
  in_chunks(B, B * H * 3, [&](int64_t, int64_t begin, int64_t end) {
    float buffers[3][kTile], results[2][kTile];
    for (int64_t b = begin; b < end; ++b) {
      in_tiles(H, kTile, [&](int64_t at, int64_t n) {
        const float* const r = pre.read((2 * b + place[0]) * H + at, n, buffers[0]);
        const float* const z = pre.read((2 * b + place[1]) * H + at, n, buffers[1]);
        float* const product = rh.place(b * H + at, results[0]);
        float* const weight = u.place(b * H + at, results[1]);
        cloned<reset_tile>(r, z, h.read(b * H + at, n, buffers[2]), sign, product, weight, n);
        rh.write(b * H + at, n, product);
        u.write(b * H + at, n, weight);
      });
    }
  });
}

void gru_reset_grad(const Call& call) {
  const int64_t B = call["B"], H = call["H"];
  const Places place = call.places(2);
  const float sign = sign_of(call);
  const Input drh(call, "drh"), du(call, "du"), pre(call, "pre"), h(call, "h");
  const Output dpre(call, "dpre"), dh(call, "dh");
  in_chunks(B, B * H * 3, [&](int64_t, int64_t begin, int64_t end) {
    float buffers[5][kTile], d_r[kTile], d_z[kTile], d_h[kTile];
    for (int64_t b = begin; b < end; ++b) {
      in_tiles(H, kTile, [&](int64_t at, int64_t n) {
        const int64_t here = b * H + at, r_at = (2 * b + place[0]) * H + at, z_at = (2 * b + place[1]) * H + at;
        cloned<reset_grad_tile>(drh.read(here, n, buffers[0]), du.read(here, n, buffers[1]),
                                pre.read(r_at, n, buffers[2]), pre.read(z_at, n, buffers[3]),
                                h.read(here, n, buffers[4]), sign, d_r, d_z, d_h, n);
        dpre.write(r_at, n, d_r);
        dpre.write(z_at, n, d_z);
        dh.write(here, n, d_h);
      });
    }
  });
}

const CpuKernel kGruReset("gru_reset", gru_reset);
const CpuKernel kGruResetGrad("gru_reset_grad", gru_reset_grad);

}  // namespace
}  // namespace kernels
}  // namespace echo
