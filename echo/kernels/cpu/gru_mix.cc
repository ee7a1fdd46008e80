// What stands after the second product of a GRU step that takes the state after its reset gate. The backward pass
// computes the candidate again.
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

ECHO_INLINE void mix_tile(const float* __restrict h, const float* __restrict u, const float* __restrict pre,
                          float* __restrict h_next, int64_t count) {
  for (int64_t j = 0; j < count; ++j) h_next[j] = echo_formulas::gru_next(u[j], h[j], tanh_of(pre[j]));
}

ECHO_INLINE void mix_grad_tile(const float* __restrict d, const float* __restrict h, const float* __restrict u,
                               const float* __restrict pre, float* __restrict d_h, float* __restrict d_u,
                               float* __restrict d_pre, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    const Tanh n = tanh_gate(pre[j]);
    const echo_formulas::MixGrads grads = echo_formulas::mix_grad(n, rounded(n), u[j], h[j], d[j]);
    d_h[j] = grads.h, d_u[j] = grads.u, d_pre[j] = grads.n;
  }
}

void gru_mix(const Call& call) {
  const int64_t size = call["B"] * call["H"];
  const Input h(call, "h"), u(call, "u"), pre(call, "pre");
  const Output h_next(call, "h'");
  in_chunks(size, size * 3, [&](int64_t, int64_t begin, int64_t end) {
    float buffers[3][kTile], result[kTile];
    in_tiles(end - begin, kTile, [&](int64_t j, int64_t n) {
      const int64_t at = begin + j;
      float* const next = h_next.place(at, result);
      cloned<mix_tile>(h.read(at, n, buffers[0]), u.read(at, n, buffers[1]), pre.read(at, n, buffers[2]), next, n);
      h_next.write(at, n, next);
    });
  });
}

void gru_mix_grad(const Call& call) {
  const int64_t size = call["B"] * call["H"];
  const Input dh_next(call, "dh'"), h(call, "h"), u(call, "u"), pre(call, "pre");
  const Output dh(call, "dh"), du(call, "du"), dpre(call, "dpre");
  in_chunks(size, size * 3, [&](int64_t, int64_t begin, int64_t end) {
    float buffers[4][kTile], d_h[kTile], d_u[kTile], d_pre[kTile];
    in_tiles(end - begin, kTile, [&](int64_t j, int64_t n) {
      const int64_t at = begin + j;
      cloned<mix_grad_tile>(dh_next.read(at, n, buffers[0]), h.read(at, n, buffers[1]), u.read(at, n, buffers[2]),
                            pre.read(at, n, buffers[3]), d_h, d_u, d_pre, n);
      dh.write(at, n, d_h);
      du.write(at, n, d_u);
      dpre.write(at, n, d_pre);
    });
  });
}

const CpuKernel kGruMix("gru_mix", gru_mix);
const CpuKernel kGruMixGrad("gru_mix_grad", gru_mix_grad);

}  // namespace
}  // namespace kernels
}  // namespace echo
