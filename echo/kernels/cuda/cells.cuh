// lstm_cell, gru_cell, gru_reset, gru_mix and their gradients: one thread for one hidden unit, or four, of a batch row.
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
    const Long at = b * a.hidden + j;
    const auto part = [&](int gate) { return (4 * b + place_of_gate(a.places, gate)) * a.hidden + j; };
    Pack<W> i = load<T, W>(a.pre, part(0)), f = load<T, W>(a.pre, part(1));
    Pack<W> g = load<T, W>(a.pre, part(2)), o = load<T, W>(a.pre, part(3));
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
    const Long at = b * a.hidden + j;
    const auto part = [&](int gate) { return (4 * b + place_of_gate(a.places, gate)) * a.hidden + j; };
    Pack<W> i = load<T, W>(a.pre, part(0)), f = load<T, W>(a.pre, part(1));
    Pack<W> g = load<T, W>(a.pre, part(2)), o = load<T, W>(a.pre, part(3));
    Pack<W> c = load<T, W>(a.c, at);
    const Pack<W> dh = load_if<T, W>(a.dh, at), dc = load_if<T, W>(a.dc_next, at);
    for (int k = 0; k < W; ++k) {
      const LstmGates gate = lstm_gates(i.v[k], f.v[k], g.v[k], o.v[k]);
      LstmGrads grads;
      c.v[k] = lstm_grad(gate, tanh_gate(gate.next_cell(c.v[k])), c.v[k], dh.v[k], dc.v[k], &grads);
      i.v[k] = grads.i, f.v[k] = grads.f, g.v[k] = grads.g, o.v[k] = grads.o;
    }
    put<T, W>(a.dpre, part(0), i);
    put<T, W>(a.dpre, part(1), f);
    put<T, W>(a.dpre, part(2), g);
    put<T, W>(a.dpre, part(3), o);
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
    const Long at = b * a.hidden + j;
    const auto part = [&](int gate) { return (3 * b + place_of_gate(a.places, gate)) * a.hidden + j; };
    const Pack<W> xr = load<T, W>(a.x, part(0)), sr = load<T, W>(a.s, part(0));
    const Pack<W> xz = load<T, W>(a.x, part(1)), sz = load<T, W>(a.s, part(1));
    const Pack<W> xn = load<T, W>(a.x, part(2)), sn = load<T, W>(a.s, part(2));
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
    const Long at = b * a.hidden + j;
    const auto part = [&](int gate) { return (3 * b + place_of_gate(a.places, gate)) * a.hidden + j; };
    Pack<W> xr = load<T, W>(a.x, part(0)), sr = load<T, W>(a.s, part(0));
    Pack<W> xz = load<T, W>(a.x, part(1)), sz = load<T, W>(a.s, part(1));
    Pack<W> xn = load<T, W>(a.x, part(2)), sn = load<T, W>(a.s, part(2));
    const Pack<W> h = load<T, W>(a.h, at);
    Pack<W> dh = load_if<T, W>(a.dh_next, at);
    for (int k = 0; k < W; ++k) {
      const GruGates gate = gru_gates(xr.v[k], xz.v[k], xn.v[k], sr.v[k], sz.v[k], sn.v[k]);
      const GruGrads grads = gru_grad(gate, gate.n.value, sn.v[k], h.v[k], dh.v[k]);
      xr.v[k] = grads.r, xz.v[k] = grads.z, xn.v[k] = grads.n, sn.v[k] = grads.sn, dh.v[k] = grads.h;
    }
    put<T, W>(a.dx, part(0), xr);
    put<T, W>(a.dx, part(1), xz);
    put<T, W>(a.dx, part(2), xn);
    put<T, W>(a.ds, part(0), xr);
    put<T, W>(a.ds, part(1), xz);
    put<T, W>(a.ds, part(2), sn);
    put<T, W>(a.dh, at, dh);
  });
}

template <typename T, int W>
__device__ void gru_reset(const GruReset& a) {
  each_column<W>(a.batch, a.hidden, [&](Long b, Long j) {
    const Long at = b * a.hidden + j;
    const auto part = [&](int gate) { return (2 * b + place_of_gate(a.places, gate)) * a.hidden + j; };
    Pack<W> r = load<T, W>(a.pre, part(0)), z = load<T, W>(a.pre, part(1));
    const Pack<W> h = load<T, W>(a.h, at);
    for (int k = 0; k < W; ++k) r.v[k] = sigmoid(r.v[k]) * h.v[k], z.v[k] = sigmoid(a.sign * z.v[k]);
    put<T, W>(a.rh, at, r);
    put<T, W>(a.u, at, z);
  });
}

template <typename T, int W>
__device__ void gru_reset_grad(const GruResetGrad& a) {
  each_column<W>(a.batch, a.hidden, [&](Long b, Long j) {
    const Long at = b * a.hidden + j;
    const auto part = [&](int gate) { return (2 * b + place_of_gate(a.places, gate)) * a.hidden + j; };
    Pack<W> r = load<T, W>(a.pre, part(0)), z = load<T, W>(a.pre, part(1)), h = load<T, W>(a.h, at);
    const Pack<W> drh = load_if<T, W>(a.drh, at), du = load_if<T, W>(a.du, at);
    for (int k = 0; k < W; ++k) {
      const Sigmoid reset = sigmoid_gate(r.v[k]), update = sigmoid_gate(z.v[k]);
      const ResetGrads grads = reset_grad(reset, update, a.sign, h.v[k], drh.v[k], du.v[k]);
      r.v[k] = grads.r, z.v[k] = grads.z, h.v[k] = grads.h;
    }
    put<T, W>(a.dpre, part(0), r);
    put<T, W>(a.dpre, part(1), z);
    put<T, W>(a.dh, at, h);
  });
}

template <typename T, int W>
__device__ void gru_mix(const GruMix& a) {
  each_column<W>(a.batch, a.hidden, [&](Long b, Long j) {
    const Long at = b * a.hidden + j;
    Pack<W> h = load<T, W>(a.h, at);
    const Pack<W> u = load<T, W>(a.u, at), pre = load<T, W>(a.pre, at);
    for (int k = 0; k < W; ++k) h.v[k] = gru_next(u.v[k], h.v[k], tanhf(pre.v[k]));
    put<T, W>(a.h_next, at, h);
  });
}

template <typename T, int W>
__device__ void gru_mix_grad(const GruMixGrad& a) {
  each_column<W>(a.batch, a.hidden, [&](Long b, Long j) {
    const Long at = b * a.hidden + j;
    Pack<W> h = load<T, W>(a.h, at), u = load<T, W>(a.u, at), pre = load<T, W>(a.pre, at);
    const Pack<W> d = load_if<T, W>(a.dh_next, at);
    for (int k = 0; k < W; ++k) {
      const Tanh n = tanh_gate(pre.v[k]);
      const MixGrads grads = mix_grad(n, n.value, u.v[k], h.v[k], d.v[k]);
      h.v[k] = grads.h, u.v[k] = grads.u, pre.v[k] = grads.n;
    }
    put<T, W>(a.dh, at, h);
    put<T, W>(a.du, at, u);
    put<T, W>(a.dpre, at, pre);
  });
}

}  // namespace echo_cuda

#if ECHO_IN(cells)
ECHO_WIDE(lstm_cell, LstmCell)
ECHO_WIDE(lstm_cell_grad, LstmCellGrad)
ECHO_WIDE(gru_cell, GruCell)
ECHO_WIDE(gru_cell_grad, GruCellGrad)
ECHO_WIDE(gru_reset, GruReset)
ECHO_WIDE(gru_reset_grad, GruResetGrad)
ECHO_WIDE(gru_mix, GruMix)
ECHO_WIDE(gru_mix_grad, GruMixGrad)
#endif

#endif  // ECHO_KERNELS_CUDA_CELLS_CUH_
