// lstm_norm_cell and weighted_sum: one warp for one row, as in rows.cuh.
#ifndef ECHO_KERNELS_CUDA_NORM_CELL_CUH_
#define ECHO_KERNELS_CUDA_NORM_CELL_CUH_
#include "cells.cuh"
#include "rows.cuh"

namespace echo_cuda {

// The gates, and the cells before and after the step, of W units from column j on.
template <int W>
struct CellUnits {
  LstmGates gate[W];
  float before[W], after[W];
};

template <typename T, int W>
__device__ inline CellUnits<W> cell_units(const void* pre, const void* c, Long b, Long j, Long hidden, int places) {
  const auto part = [&](int gate) { return load<T, W>(pre, (4 * b + place_of_gate(places, gate)) * hidden + j); };
  const Pack<W> i = part(0), f = part(1), g = part(2), o = part(3), before = load<T, W>(c, b * hidden + j);
  CellUnits<W> units;
  for (int k = 0; k < W; ++k) {
    units.gate[k] = lstm_gates(i.v[k], f.v[k], g.v[k], o.v[k]);
    units.before[k] = before.v[k];
    units.after[k] = units.gate[k].next_cell(before.v[k]);
  }
  return units;
}

// Of a row's next cells, which are computed again in each pass: they are not rounded to the arrays' type in between.
template <typename T, int W, typename Arguments>
__device__ inline Moments cell_norm(const Arguments& a, Long b) {
  float sum = 0, square = 0;
  each_lane_column<W, 1>(a.hidden, [&](Long j) {
    const CellUnits<W> units = cell_units<T, W>(a.pre, a.c, b, j, a.hidden, a.places);
    for (int k = 0; k < W; ++k) sum += units.after[k];
  });
  const float mean = warp_sum(sum) / a.hidden;
  each_lane_column<W, 1>(a.hidden, [&](Long j) {
    const CellUnits<W> units = cell_units<T, W>(a.pre, a.c, b, j, a.hidden, a.places);
    for (int k = 0; k < W; ++k) square += (units.after[k] - mean) * (units.after[k] - mean);
  });
  return {mean, 1.f / sqrtf(warp_sum(square) / a.hidden + a.eps)};
}

template <typename T, int W>
__device__ void lstm_norm_cell(const LstmNormCell& a) {
  each_row(a.batch, [&](Long b) {
    const Moments moments = cell_norm<T, W>(a, b);
    each_lane_column<W, 1>(a.hidden, [&](Long j) {
      const CellUnits<W> units = cell_units<T, W>(a.pre, a.c, b, j, a.hidden, a.places);
      const Pack<W> gamma = load<T, W>(a.gamma, j), beta = load<T, W>(a.beta, j);
      Pack<W> h, c;
      for (int k = 0; k < W; ++k) {
        c.v[k] = units.after[k];
        h.v[k] = units.gate[k].o.value * tanhf(moments.norm(c.v[k]) * gamma.v[k] + beta.v[k]);
      }
      put<T, W>(a.h, b * a.hidden + j, h);
      put<T, W>(a.c_next, b * a.hidden + j, c);
    });
  });
}

// The gradient of the norm's result m = n gamma + beta, with h = o tanh(m); n and tanh(m) on the way.
struct NormUnit {
  float n, u, dm;
};

__device__ inline NormUnit norm_unit(float c, const Moments& moments, float gamma, float beta, float o, float dh) {
  const float n = moments.norm(c);
  const Tanh u = tanh_gate(n * gamma + beta);
  return {n, u.value, dh * o * u.slope};
}

template <typename T, int W>
__device__ void lstm_norm_cell_grad_rows(const LstmNormCellGrad& a) {
  each_row(a.batch, [&](Long b) {
    const Moments moments = cell_norm<T, W>(a, b);
    const Long row = b * a.hidden;
    NormGrad grad = {};
    each_lane_column<W, 1>(a.hidden, [&](Long j) {
      const CellUnits<W> units = cell_units<T, W>(a.pre, a.c, b, j, a.hidden, a.places);
      const Pack<W> gamma = load<T, W>(a.gamma, j), beta = load<T, W>(a.beta, j), dh = load_if<T, W>(a.dh, row + j);
      for (int k = 0; k < W; ++k) {
        const NormUnit at = norm_unit(units.after[k], moments, gamma.v[k], beta.v[k], units.gate[k].o.value, dh.v[k]);
        grad.add(at.dm * gamma.v[k], at.n);
      }
    });
    grad.average(a.hidden);
    each_lane_column<W, 1>(a.hidden, [&](Long j) {
      const CellUnits<W> units = cell_units<T, W>(a.pre, a.c, b, j, a.hidden, a.places);
      const Pack<W> gamma = load<T, W>(a.gamma, j), beta = load<T, W>(a.beta, j), dh = load_if<T, W>(a.dh, row + j);
      Pack<W> dc = load_if<T, W>(a.dc_next, row + j), di, df, dg, d_o;
      for (int k = 0; k < W; ++k) {
        const NormUnit at = norm_unit(units.after[k], moments, gamma.v[k], beta.v[k], units.gate[k].o.value, dh.v[k]);
        const float d = dc.v[k] + grad.before_norm(at.dm * gamma.v[k], at.n, moments);
        LstmGrads grads;
        dc.v[k] = cell_grad(units.gate[k], units.before[k], d, &grads);
        di.v[k] = grads.i, df.v[k] = grads.f, dg.v[k] = grads.g;
        d_o.v[k] = dh.v[k] * at.u * units.gate[k].o.slope;
      }
      const auto part = [&](int gate) { return (4 * b + place_of_gate(a.places, gate)) * a.hidden + j; };
      put<T, W>(a.dpre, part(0), di);
      put<T, W>(a.dpre, part(1), df);
      put<T, W>(a.dpre, part(2), dg);
      put<T, W>(a.dpre, part(3), d_o);
      put<T, W>(a.dc, row + j, dc);
    });
    if (threadIdx.x % 32 == 0) {
      a.statistics[2 * b] = moments.mean;
      a.statistics[2 * b + 1] = moments.scale;
    }
  });
}

template <typename T, int W>
__device__ void lstm_norm_cell_grad_columns(const LstmNormCellGrad& a) {
  each_column<W>(a.chunks, a.hidden, [&](Long chunk, Long j) {
    const Long last = smaller((chunk + 1) * a.chunk, a.batch);
    const Pack<W> gamma = load<T, W>(a.gamma, j), beta = load<T, W>(a.beta, j);
    Pack<W> dgamma = {}, dbeta = {};
    ECHO_UNROLL(1)
    for (Long b = chunk * a.chunk; b < last; ++b) {
      const Moments moments = {a.statistics[2 * b], a.statistics[2 * b + 1]};
      const CellUnits<W> units = cell_units<T, W>(a.pre, a.c, b, j, a.hidden, a.places);
      const Pack<W> dh = load_if<T, W>(a.dh, b * a.hidden + j);
      for (int k = 0; k < W; ++k) {
        const NormUnit at = norm_unit(units.after[k], moments, gamma.v[k], beta.v[k], units.gate[k].o.value, dh.v[k]);
        dgamma.v[k] += at.dm * at.n;
        dbeta.v[k] += at.dm;
      }
    }
    Access<W>::store(a.partials + chunk * a.hidden + j, dgamma);
    Access<W>::store(a.partials + (a.chunks + chunk) * a.hidden + j, dbeta);
  });
}

template <typename T, int W>
__device__ void weighted_sum(const WeightedSum& a) {
  each_column<W>(a.batch, a.hidden, [&](Long b, Long j) {
    Pack<W> sum = {};
    ECHO_UNROLL(4)
    for (Long row = b * a.steps; row < (b + 1) * a.steps; ++row) {
      const Pack<W> values = load<T, W>(a.values, row * a.hidden + j);
      const float w = get<T>(a.w, row);
      for (int k = 0; k < W; ++k) sum.v[k] += w * values.v[k];
    }
    put<T, W>(a.out, b * a.hidden + j, sum);
  });
}

template <typename T, int W>
__device__ void weighted_sum_grad(const WeightedSumGrad& a) {
  each_row(a.batch * a.steps, [&](Long row) {
    const Long at = row * a.hidden, out = row / a.steps * a.hidden;
    const float w = get<T>(a.w, row);
    float sum = 0;
    each_lane_column<W>(a.hidden, [&](Long j) {
      Pack<W> dout = load<T, W>(a.dout, out + j);
      const Pack<W> values = load<T, W>(a.values, at + j);
      for (int k = 0; k < W; ++k) {
        sum += dout.v[k] * values.v[k];
        dout.v[k] *= w;
      }
      put<T, W>(a.dvalues, at + j, dout);
    });
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) put<T>(a.dw, row, sum);
  });
}

}  // namespace echo_cuda

#if ECHO_IN(norm_cell)
ECHO_WIDE(lstm_norm_cell, LstmNormCell)
ECHO_WIDE(lstm_norm_cell_grad_rows, LstmNormCellGrad)
ECHO_WIDE(lstm_norm_cell_grad_columns, LstmNormCellGrad)
ECHO_WIDE(weighted_sum, WeightedSum)
ECHO_WIDE(weighted_sum_grad, WeightedSumGrad)
#endif

#endif  // ECHO_KERNELS_CUDA_NORM_CELL_CUH_
