// lstm_cell, gru_cell and their gradients: one thread for one hidden unit, or four, of a batch row.
#ifndef ECHO_KERNELS_CUDA_CELLS_CUH_
#define ECHO_KERNELS_CUDA_CELLS_CUH_
#include "device.cuh"

namespace echo_cuda {

struct Gates {
  float i, f, g, o;
};

__device__ inline Gates gates_of(float i, float f, float g, float o) {
  return {sigmoid(i), sigmoid(f), tanhf(g), sigmoid(o)};
}

__device__ inline LstmGates lstm_gates(float i, float f, float g, float o) {
  return {sigmoid_gate(i), sigmoid_gate(f), tanh_gate(g), sigmoid_gate(o)};
}

template <typename T, int W>
__device__ void lstm_cell(const LstmCell& a) {
  each_column<W>(a.batch, a.hidden, [&](Long b, Long j) {
    const Long at = b * a.hidden + j, four = 4 * b * a.hidden + j;
    Pack<W> i = load<T, W>(a.pre, four), f = load<T, W>(a.pre, four + a.hidden);
    Pack<W> g = load<T, W>(a.pre, four + 2 * a.hidden), o = load<T, W>(a.pre, four + 3 * a.hidden);
    Pack<W> c = load<T, W>(a.c, at), h;
    for (int k = 0; k < W; ++k) {
      const Gates gate = gates_of(i.v[k], f.v[k], g.v[k], o.v[k]);
      c.v[k] = gate.f * c.v[k] + gate.i * gate.g;
      h.v[k] = gate.o * tanhf(c.v[k]);
    }
    put<T, W>(a.h, at, h);
    put<T, W>(a.c_next, at, c);
  });
}

template <typename T, int W>
__device__ void lstm_cell_grad(const LstmCellGrad& a) {
  each_column<W>(a.batch, a.hidden, [&](Long b, Long j) {
    const Long at = b * a.hidden + j, four = 4 * b * a.hidden + j;
    Pack<W> i = load<T, W>(a.pre, four), f = load<T, W>(a.pre, four + a.hidden);
    Pack<W> g = load<T, W>(a.pre, four + 2 * a.hidden), o = load<T, W>(a.pre, four + 3 * a.hidden);
    Pack<W> c = load<T, W>(a.c, at);
    const Pack<W> dh = load_if<T, W>(a.dh, at), dc = load_if<T, W>(a.dc_next, at);
    for (int k = 0; k < W; ++k) {
      const LstmGates gate = lstm_gates(i.v[k], f.v[k], g.v[k], o.v[k]);
      LstmGrads grads;
      c.v[k] = lstm_grad(gate, tanh_gate(gate.next_cell(c.v[k])), c.v[k], dh.v[k], dc.v[k], &grads);
      i.v[k] = grads.i, f.v[k] = grads.f, g.v[k] = grads.g, o.v[k] = grads.o;
    }
    put<T, W>(a.dpre, four, i);
    put<T, W>(a.dpre, four + a.hidden, f);
    put<T, W>(a.dpre, four + 2 * a.hidden, g);
    put<T, W>(a.dpre, four + 3 * a.hidden, o);
    put<T, W>(a.dc, at, c);
  });
}

__device__ inline GruGates gru_gates(float xr, float xz, float xn, float sr, float sz, float sn) {
  const Sigmoid r = sigmoid_gate(xr + sr);
  return {r, sigmoid_gate(xz + sz), tanh_gate(xn + r.value * sn)};
}

template <typename T, int W>
__device__ void gru_cell(const GruCell& a) {
  each_column<W>(a.batch, a.hidden, [&](Long b, Long j) {
    const Long at = b * a.hidden + j, three = 3 * b * a.hidden + j;
    const Pack<W> xr = load<T, W>(a.x, three), sr = load<T, W>(a.s, three);
    const Pack<W> xz = load<T, W>(a.x, three + a.hidden), sz = load<T, W>(a.s, three + a.hidden);
    const Pack<W> xn = load<T, W>(a.x, three + 2 * a.hidden), sn = load<T, W>(a.s, three + 2 * a.hidden);
    Pack<W> h = load<T, W>(a.h, at);
    for (int k = 0; k < W; ++k) {
      const GruGates gate = gru_gates(xr.v[k], xz.v[k], xn.v[k], sr.v[k], sz.v[k], sn.v[k]);
      h.v[k] = gru_next(gate.z.value, gate.n.value, h.v[k]);
    }
    put<T, W>(a.h_next, at, h);
  });
}

template <typename T, int W>
__device__ void gru_cell_grad(const GruCellGrad& a) {
  each_column<W>(a.batch, a.hidden, [&](Long b, Long j) {
    const Long at = b * a.hidden + j, three = 3 * b * a.hidden + j;
    Pack<W> xr = load<T, W>(a.x, three), sr = load<T, W>(a.s, three);
    Pack<W> xz = load<T, W>(a.x, three + a.hidden), sz = load<T, W>(a.s, three + a.hidden);
    Pack<W> xn = load<T, W>(a.x, three + 2 * a.hidden), sn = load<T, W>(a.s, three + 2 * a.hidden);
    const Pack<W> h = load<T, W>(a.h, at);
    Pack<W> dh = load_if<T, W>(a.dh_next, at);
    for (int k = 0; k < W; ++k) {
      const GruGates gate = gru_gates(xr.v[k], xz.v[k], xn.v[k], sr.v[k], sz.v[k], sn.v[k]);
      const GruGrads grads = gru_grad(gate, gate.n.value, sn.v[k], h.v[k], dh.v[k]);
      xr.v[k] = grads.r, xz.v[k] = grads.z, xn.v[k] = grads.n, sn.v[k] = grads.sn, dh.v[k] = grads.h;
    }
    put<T, W>(a.dx, three, xr);
    put<T, W>(a.dx, three + a.hidden, xz);
    put<T, W>(a.dx, three + 2 * a.hidden, xn);
    put<T, W>(a.ds, three, xr);
    put<T, W>(a.ds, three + a.hidden, xz);
    put<T, W>(a.ds, three + 2 * a.hidden, sn);
    put<T, W>(a.dh, at, dh);
  });
}

}  // namespace echo_cuda
ECHO_WIDE(lstm_cell, LstmCell)
ECHO_WIDE(lstm_cell_grad, LstmCellGrad)
ECHO_WIDE(gru_cell, GruCell)
ECHO_WIDE(gru_cell_grad, GruCellGrad)

#endif  // ECHO_KERNELS_CUDA_CELLS_CUH_
