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

// The gates with their derivatives.
struct SlopedGates {
  Sigmoid i, f;
  Tanh g;
  Sigmoid o;

  __device__ float next_cell(float c) const { return f.value * c + i.value * g.value; }
};

__device__ inline SlopedGates sloped_gates(float i, float f, float g, float o) {
  return {sigmoid_gate(i), sigmoid_gate(f), tanh_gate(g), sigmoid_gate(o)};
}

// The gradients of the pre-activations that make a cell, and of the cell before it (returned), from d, that of the cell.
__device__ inline float cell_grad(const SlopedGates& gate, float c, float d, Gates* dpre) {
  dpre->i = d * gate.g.value * gate.i.slope;
  dpre->f = d * c * gate.f.slope;
  dpre->g = d * gate.i.value * gate.g.slope;
  return d * gate.f.value;
}

// What dh and dc' of one unit say of its pre-activations, and of c (returned).
__device__ inline float lstm_unit_grad(const SlopedGates& gate, float c, float dh, float dc, Gates* dpre) {
  const Tanh cell = tanh_gate(gate.next_cell(c));
  dpre->o = dh * cell.value * gate.o.slope;
  return cell_grad(gate, c, dc + dh * gate.o.value * cell.slope, dpre);
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
      Gates dpre;
      c.v[k] = lstm_unit_grad(sloped_gates(i.v[k], f.v[k], g.v[k], o.v[k]), c.v[k], dh.v[k], dc.v[k], &dpre);
      i.v[k] = dpre.i, f.v[k] = dpre.f, g.v[k] = dpre.g, o.v[k] = dpre.o;
    }
    put<T, W>(a.dpre, four, i);
    put<T, W>(a.dpre, four + a.hidden, f);
    put<T, W>(a.dpre, four + 2 * a.hidden, g);
    put<T, W>(a.dpre, four + 3 * a.hidden, o);
    put<T, W>(a.dc, at, c);
  });
}

struct GruGates {
  Sigmoid r, z;
  Tanh n;
};

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
      // z itself: where n is h, what comes out has to be h, too.
      h.v[k] = (1.f - gate.z.value) * gate.n.value + gate.z.value * h.v[k];
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
      const float d = dh.v[k], dn = d * gate.z.rest * gate.n.slope;
      const float dr = dn * sn.v[k] * gate.r.slope;
      const float dz = d * (h.v[k] - gate.n.value) * gate.z.slope;
      xr.v[k] = dr, xz.v[k] = dz, xn.v[k] = dn;
      sn.v[k] = dn * gate.r.value;
      dh.v[k] = d * gate.z.value;
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
