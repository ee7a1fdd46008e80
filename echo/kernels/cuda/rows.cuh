// Kernels that reduce over rows (mlp_score, layer_norm): one warp for one row, which stays in the first cache between
// its passes. Gradients of what all rows share: each thread sums over a chunk of rows, sum_rows over the chunks, in a
// fixed order and without atomics.
#ifndef ECHO_KERNELS_CUDA_ROWS_CUH_
#define ECHO_KERNELS_CUDA_ROWS_CUH_
#include "device.cuh"

namespace echo_cuda {

// A row as the sum of one or two arrays.
template <typename T, int W>
__device__ inline Pack<W> row_values(const void* x, Long x_at, const void* more, Long more_at) {
  Pack<W> value = load<T, W>(x, x_at);
  if (more) {
    const Pack<W> plus = load<T, W>(more, more_at);
    for (int k = 0; k < W; ++k) value.v[k] += plus.v[k];
  }
  return value;
}

// The gradient of a row after a layer norm with the normed values x, from their gradient d: sums of d and of d x over
// the elements of a lane, and after `average` their means over the row.
struct NormGrad {
  float d, dx;

  __device__ void add(float of_x, float x) {
    d += of_x;
    dx += of_x * x;
  }

  __device__ void average(Long hidden) {
    d = warp_sum(d) / hidden;
    dx = warp_sum(dx) / hidden;
  }

  __device__ float before_norm(float of_x, float x, const Moments& moments) const {
    return moments.grad(x, of_x, d, dx);
  }
};

template <typename T, int W>
__device__ inline Moments row_moments(const void* x, Long x_at, const void* more, Long more_at, Long hidden,
                                      float eps) {
  float sum = 0, square = 0;
  each_lane_column<W>(hidden, [&](Long j) {
    const Pack<W> value = row_values<T, W>(x, x_at + j, more, more_at + j);
    for (int k = 0; k < W; ++k) sum += value.v[k];
  });
  const float mean = warp_sum(sum) / hidden;
  each_lane_column<W>(hidden, [&](Long j) {
    const Pack<W> value = row_values<T, W>(x, x_at + j, more, more_at + j);
    for (int k = 0; k < W; ++k) square += (value.v[k] - mean) * (value.v[k] - mean);
  });
  return {mean, 1.f / sqrtf(warp_sum(square) / hidden + eps)};
}

template <typename T, int W>
__device__ void mlp_score(const MlpScore& a) {
  each_row(a.batch * a.steps, [&](Long row) {
    const Long at = row * a.hidden, query = row / a.steps * a.hidden;
    Moments moments = {0, 1};
    if (a.gamma) moments = row_moments<T, W>(a.keys, at, a.query, query, a.hidden, a.eps);
    float score = 0;
    each_lane_column<W>(a.hidden, [&](Long j) {
      Pack<W> value = row_values<T, W>(a.keys, at + j, a.query, query + j);
      const Pack<W> v = load<T, W>(a.v, j);
      if (a.gamma) {
        const Pack<W> gamma = load<T, W>(a.gamma, j), beta = load<T, W>(a.beta, j);
        for (int k = 0; k < W; ++k) value.v[k] = moments.norm(value.v[k]) * gamma.v[k] + beta.v[k];
      }
      for (int k = 0; k < W; ++k) score += v.v[k] * tanhf(value.v[k]);
    });
    score = warp_sum(score);
    if (threadIdx.x % 32 == 0) put<T>(a.score, row, score);
  });
}

// With a layer norm: what its gradient needs of each row.
template <typename T, int W>
__device__ void mlp_score_grad_rows(const MlpScoreGrad& a) {
  each_row(a.batch * a.steps, [&](Long row) {
    const Long at = row * a.hidden, query = row / a.steps * a.hidden;
    const Moments moments = row_moments<T, W>(a.keys, at, a.query, query, a.hidden, a.eps);
    const float dscore = get<T>(a.dscore, row);
    NormGrad grad = {};
    each_lane_column<W>(a.hidden, [&](Long j) {
      const Pack<W> value = row_values<T, W>(a.keys, at + j, a.query, query + j), v = load<T, W>(a.v, j);
      const Pack<W> gamma = load<T, W>(a.gamma, j), beta = load<T, W>(a.beta, j);
      for (int k = 0; k < W; ++k) {
        const float x = moments.norm(value.v[k]);
        grad.add(dscore * v.v[k] * tanh_gate(x * gamma.v[k] + beta.v[k]).slope * gamma.v[k], x);
      }
    });
    grad.average(a.hidden);
    if (threadIdx.x % 32 == 0) {
      *reinterpret_cast<float4*>(a.statistics + 4 * row) = make_float4(moments.mean, moments.scale, grad.d, grad.dx);
    }
  });
}

// One thread for its columns of one batch row over a chunk of steps: keys are read and dkeys written once.
template <typename T, int W>
__device__ void mlp_score_grad_columns(const MlpScoreGrad& a) {
  const Long items = a.chunks * a.batch, part = items * a.hidden;
  each_column<W>(items, a.hidden, [&](Long item, Long j) {
    const Long b = item % a.batch, first = item / a.batch * a.chunk, last = smaller(first + a.chunk, a.steps);
    const Pack<W> query = load<T, W>(a.query, b * a.hidden + j), v = load<T, W>(a.v, j);
    const Pack<W> gamma = load_if<T, W>(a.gamma, j), beta = load_if<T, W>(a.beta, j);
    Pack<W> sums[4] = {};
    ECHO_UNROLL(1)
    for (Long t = first; t < last; ++t) {
      const Long row = b * a.steps + t;
      const float dscore = get<T>(a.dscore, row);
      const Pack<W> keys = load<T, W>(a.keys, row * a.hidden + j);
      const float4 of_row = a.gamma ? *reinterpret_cast<const float4*>(a.statistics + 4 * row)
                                    : make_float4(0, 1, 0, 0);
      const Moments moments = {of_row.x, of_row.y};
      Pack<W> dkeys;
      for (int k = 0; k < W; ++k) {
        const float x = moments.norm(keys.v[k] + query.v[k]);
        const Tanh u = tanh_gate(a.gamma ? x * gamma.v[k] + beta.v[k] : x);
        float d = dscore * v.v[k] * u.slope;
        sums[1].v[k] += dscore * u.value;
        sums[2].v[k] += d * x;
        sums[3].v[k] += d;
        if (a.gamma) d = moments.grad(x, d * gamma.v[k], of_row.z, of_row.w);
        dkeys.v[k] = d;
        sums[0].v[k] += d;
      }
      put<T, W>(a.dkeys, row * a.hidden + j, dkeys);
    }
    ECHO_UNROLL(4)  // sums has to stay in registers
    for (int g = 0; g < 4; ++g) {
      if (g < 2 || a.gamma) Access<W>::store(a.partials + g * part + item * a.hidden + j, sums[g]);
    }
  });
}

template <typename T, int W>
__device__ void layer_norm(const LayerNorm& a) {
  each_row(a.rows, [&](Long row) {
    const Long at = row * a.hidden;
    const Moments moments = row_moments<T, W>(a.x, at, nullptr, 0, a.hidden, a.eps);
    each_lane_column<W>(a.hidden, [&](Long j) {
      Pack<W> x = load<T, W>(a.x, at + j);
      const Pack<W> gamma = load<T, W>(a.gamma, j), beta = load<T, W>(a.beta, j);
      for (int k = 0; k < W; ++k) x.v[k] = moments.norm(x.v[k]) * gamma.v[k] + beta.v[k];
      put<T, W>(a.y, at + j, x);
    });
  });
}

template <typename T, int W>
__device__ void layer_norm_grad_rows(const LayerNormGrad& a) {
  each_row(a.rows, [&](Long row) {
    const Long at = row * a.hidden;
    const Moments moments = row_moments<T, W>(a.x, at, nullptr, 0, a.hidden, a.eps);
    NormGrad grad = {};
    each_lane_column<W>(a.hidden, [&](Long j) {
      const Pack<W> x = load<T, W>(a.x, at + j), dy = load<T, W>(a.dy, at + j), gamma = load<T, W>(a.gamma, j);
      for (int k = 0; k < W; ++k) grad.add(dy.v[k] * gamma.v[k], moments.norm(x.v[k]));
    });
    grad.average(a.hidden);
    each_lane_column<W>(a.hidden, [&](Long j) {
      const Pack<W> x = load<T, W>(a.x, at + j), dy = load<T, W>(a.dy, at + j), gamma = load<T, W>(a.gamma, j);
      Pack<W> dx;
      for (int k = 0; k < W; ++k) {
        dx.v[k] = grad.before_norm(dy.v[k] * gamma.v[k], moments.norm(x.v[k]), moments);
      }
      put<T, W>(a.dx, at + j, dx);
    });
    if (threadIdx.x % 32 == 0) {
      a.statistics[2 * row] = moments.mean;
      a.statistics[2 * row + 1] = moments.scale;
    }
  });
}

template <typename T, int W>
__device__ void layer_norm_grad_columns(const LayerNormGrad& a) {
  each_column<W>(a.chunks, a.hidden, [&](Long chunk, Long j) {
    const Long last = smaller((chunk + 1) * a.chunk, a.rows);
    Pack<W> dgamma = {}, dbeta = {};
    ECHO_UNROLL(2)
    for (Long row = chunk * a.chunk; row < last; ++row) {
      const float mean = a.statistics[2 * row], scale = a.statistics[2 * row + 1];
      const Pack<W> x = load<T, W>(a.x, row * a.hidden + j), dy = load<T, W>(a.dy, row * a.hidden + j);
      for (int k = 0; k < W; ++k) {
        dgamma.v[k] += dy.v[k] * (x.v[k] - mean) * scale;
        dbeta.v[k] += dy.v[k];
      }
    }
    Access<W>::store(a.partials + chunk * a.hidden + j, dgamma);
    Access<W>::store(a.partials + (a.chunks + chunk) * a.hidden + j, dbeta);
  });
}

// A block of 32 columns by 8 row lanes.
template <typename T>
__device__ void sum_rows(const SumRows& a) {
  __shared__ float sums[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (Long group = blockIdx.y; group < a.groups; group += gridDim.y) {
    for (Long first = blockIdx.x * 32ll; first < a.columns; first += gridDim.x * 32ll) {
      const Long j = first + lane;
      float sum = 0;
      if (j < a.columns) {
        for (Long r = warp; r < a.rows; r += kWarps) sum += a.in[group * a.group_stride + r * a.row_stride + j];
      }
      sums[warp][lane] = sum;
      __syncthreads();
      if (warp == 0 && j < a.columns) {
        for (int w = 1; w < kWarps; ++w) sum += sums[w][lane];
        put<T>(a.out, group * a.columns + j, sum);
      }
      __syncthreads();
    }
  }
}

}  // namespace echo_cuda

#if ECHO_IN(rows)
ECHO_WIDE(mlp_score, MlpScore)
ECHO_WIDE(mlp_score_grad_rows, MlpScoreGrad)
ECHO_WIDE(mlp_score_grad_columns, MlpScoreGrad)
ECHO_WIDE(layer_norm, LayerNorm)
ECHO_WIDE(layer_norm_grad_rows, LayerNormGrad)
ECHO_WIDE(layer_norm_grad_columns, LayerNormGrad)
ECHO_BOTH(1, sum_rows, SumRows)
#endif

#endif  // ECHO_KERNELS_CUDA_ROWS_CUH_
