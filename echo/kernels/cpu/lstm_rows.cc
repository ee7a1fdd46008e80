#include "lstm_rows.h"

#include "clones.h"
#include "math.h"

namespace echo {
namespace kernels {
namespace {

// The loops stand in functions of pointers alone, which the compiler knows not to overlap.
ECHO_INLINE void step(int64_t n, const float* __restrict i, const float* __restrict f, const float* __restrict g,
                      const float* __restrict o, float* __restrict c, float* __restrict h) {
  for (int64_t k = 0; k < n; ++k) {
    const float next = sigmoid_of(f[k]) * c[k] + sigmoid_of(i[k]) * tanh_of(g[k]);
    c[k] = next;
    h[k] = sigmoid_of(o[k]) * tanh_of(next);
  }
}

ECHO_INLINE void advance(int64_t n, const float* __restrict i, const float* __restrict f, const float* __restrict g,
                         float* __restrict c) {
  for (int64_t k = 0; k < n; ++k) c[k] = sigmoid_of(f[k]) * c[k] + sigmoid_of(i[k]) * tanh_of(g[k]);
}

ECHO_INLINE void sigmoids(int64_t n, const float* __restrict x, float* __restrict y) {
  for (int64_t k = 0; k < n; ++k) y[k] = sigmoid_code(x[k]);
}

ECHO_INLINE void tanhs(int64_t n, const float* __restrict x, float* __restrict y) {
  for (int64_t k = 0; k < n; ++k) y[k] = tanh_code(x[k]);
}

ECHO_INLINE void next_cells(int64_t n, const float* __restrict i, const float* __restrict f, const float* __restrict g,
                            const float* __restrict c, float* __restrict next) {
  for (int64_t k = 0; k < n; ++k) {
    next[k] = sigmoid_decoded(f[k]).value * c[k] + sigmoid_decoded(i[k]).value * tanh_decoded(g[k]).value;
  }
}

ECHO_INLINE void step_grad(int64_t n, const float* __restrict dh, const float* __restrict dy, const float* __restrict c,
                           const float* __restrict next, float* __restrict gate_i, float* __restrict gate_f,
                           float* __restrict gate_g, float* __restrict gate_o, float* __restrict dc) {
  for (int64_t k = 0; k < n; ++k) {
    const echo_formulas::LstmGates gate = {sigmoid_decoded(gate_i[k]), sigmoid_decoded(gate_f[k]),
                                           tanh_decoded(gate_g[k]), sigmoid_decoded(gate_o[k])};
    echo_formulas::LstmGrads grads;
    dc[k] = lstm_grad(gate, tanh_gate(next[k]), c[k], dh[k] + dy[k], dc[k], &grads);
    gate_i[k] = grads.i, gate_f[k] = grads.f, gate_g[k] = grads.g, gate_o[k] = grads.o;
  }
}

}  // namespace

void cell_step(int64_t n, const Gates<const float>& pre, float* c, float* h) {
  cloned<step>(n, pre.i, pre.f, pre.g, pre.o, c, h);
}

void cell_advance(int64_t n, const Gates<const float>& pre, float* c) { cloned<advance>(n, pre.i, pre.f, pre.g, c); }

void cell_gates(int64_t n, const Gates<const float>& pre, const float* c, const Gates<float>& gates, float* next) {
  cloned<sigmoids>(n, pre.i, gates.i);
  cloned<sigmoids>(n, pre.f, gates.f);
  cloned<tanhs>(n, pre.g, gates.g);
  cloned<sigmoids>(n, pre.o, gates.o);
  cloned<next_cells>(n, gates.i, gates.f, gates.g, c, next);
}

void cell_step_grad(int64_t n, const float* dh, const float* dy, const float* c, const float* next,
                    const Gates<float>& gates, float* dc) {
  cloned<step_grad>(n, dh, dy, c, next, gates.i, gates.f, gates.g, gates.o, dc);
}

}  // namespace kernels
}  // namespace echo
