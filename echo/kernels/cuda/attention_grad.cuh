// The gradients of attention: scores are computed again, tile by tile.
#ifndef ECHO_KERNELS_CUDA_ATTENTION_GRAD_CUH_
#define ECHO_KERNELS_CUDA_ATTENTION_GRAD_CUH_
#include "attention.cuh"

namespace echo_cuda {

// What the gradients need of a query: its weights are exp(score - lse - rest). lse: inf where no key counts, and after
// the last query, so that weights are 0.
struct QueryStatistics {
  float lse, rest, delta;
};

__device__ inline QueryStatistics query_statistics(const AttentionGrad& a, const Tile& tile, Long query) {
  if (query >= a.queries) return {ECHO_INFINITY, 0, 0};
  const float4 found = *reinterpret_cast<const float4*>(a.statistics + 4 * (tile.item * a.queries + query));
  return {found.x, found.y, found.z};
}

__device__ inline void put_statistics(const AttentionGrad& a, Long row, const QueryStatistics& of_query) {
  *reinterpret_cast<float4*>(a.statistics + 4 * row) = make_float4(of_query.lse, of_query.rest, of_query.delta, 0);
}

template <typename T>
__device__ void attention_delta(const AttentionGrad& a) {
  each_row(a.items * a.queries, [&](Long row) {
    float sum = 0;
    each_lane_column<1>(a.value_depth, [&](Long j) {
      sum += get<T>(a.out, row * a.value_depth + j) * get<T>(a.dout, row * a.value_depth + j);
    });
    sum = warp_sum(sum);
    const float lse = a.lse[row];
    if (threadIdx.x % 32 == 0) put_statistics(a, row, {lse == -ECHO_INFINITY ? ECHO_INFINITY : lse, 0, sum});
  });
}

// The scores of a tile, and the gradients of its softmax. Scores wait in shared memory, each thread's where it will keep
// what it makes of them: registers are short.
template <typename T, bool by_key, typename Call>
__device__ inline void scores_and_gradients(const Call& a, const Tile& tile, Long query, Long key,
                                            AttentionShared* shared, float (*s)[4], float (*dp)[4]) {
  const T* dout = static_cast<const T*>(a.dout) + tile.item * a.queries * a.value_depth;
  const T* v = static_cast<const T*>(a.v) + tile.item * a.keys * a.value_depth;
  scores_of<T>(a, tile, query, key, shared, s);
  keep_tile<by_key>(shared, s);
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) dp[i][j] = 0;
  }
  tile_product<4>(rows_of(dout, query, a.queries, a.value_depth, a.wide),
                  rows_of(v, key, tile.keys, a.value_depth, a.wide), &shared->left, &shared->right, dp);
  multiply_by_factors<T>(a, tile, query, key, dp);
  take_tile<by_key>(shared, s);
}

// Whether weights from the logarithm of a row's denominator are off by more than 2e-6, since it is rounded.
__device__ inline bool is_large(float lse) { return fabsf(lse) > 32.f && fabsf(lse) < ECHO_INFINITY; }

// Whether a tile has all keys: then weights are summed there, and so are their gradients, as on the CPU.
__device__ inline bool is_whole(const AttentionGrad& a) { return a.keys <= kTile; }

// The same for all threads of a block: whether any of the tile's queries is large.
__device__ inline bool any_large(const AttentionGrad& a, const Tile& tile) {
  float count = 0;
  for (int i = 0; i < 2; ++i) {
    const Long query = tile.first + threadIdx.x % 32 + 32 * i;
    if (query < a.queries && is_large(a.lse[tile.item * a.queries + query])) count += 1;
  }
  return warp_sum(count) > 0;
}

// A weight. It is at most 1, however a score was rounded in the forward pass; a NaN stays a NaN.
__device__ inline float weight_of(float score, const QueryStatistics& of) {
  const float logarithm = score - of.lse - of.rest;
  return expf(logarithm > 0.f ? 0.f : logarithm);
}

// Where scores are large: the largest of them and the logarithm of what is left of the denominator, apart, since their sum
// is rounded, and as these kernels round them; and delta from the very weights and gradients that it is subtracted from
// later, so that nothing is left where one key has all the weight (as `mend_large` of the CPU).
template <typename T>
__device__ void attention_mend(const AttentionGrad& a) {
  __shared__ AttentionShared shared;
  each_tile(a, a.queries, [&](const Tile& tile) {
    if (is_whole(a) || !any_large(a, tile)) return;
    Exponentials mine[4];
    for (int i = 0; i < 4; ++i) mine[i] = {-ECHO_INFINITY, 0};
    for (Long key = 0; key < tile.keys; key += kTile) {
      float s[4][4];
      scores_of<T>(a, tile, tile.first, key, &shared, s);
      for (int i = 0; i < 4; ++i) mine[i].add<4>({s[i][0], s[i][1], s[i][2], s[i][3]});
    }
    QueryStatistics found[4];
    for (int i = 0; i < 4; ++i) {
      const float most = row_max(mine[i].most), base = Exponentials::base(most);
      found[i] = {base, logf(row_sum(mine[i].sum * expf(mine[i].most - base))), 0};
    }
    for (Long key = 0; key < tile.keys; key += kTile) {
      float s[4][4], dp[4][4];
      scores_and_gradients<T, false>(a, tile, tile.first, key, &shared, s, dp);
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) found[i].delta += weight_of(s[i][j], found[i]) * dp[i][j];
      }
    }
    for (int i = 0; i < 4; ++i) {
      const Long query = tile.first + spread(threadIdx.x / 16, i);
      found[i].delta = row_sum(found[i].delta);
      const Long row = tile.item * a.queries + query;
      if (threadIdx.x % 16 == 0 && query < a.queries && is_large(a.lse[row])) put_statistics(a, row, found[i]);
    }
  });
}

// Makes the weights of a row, of which a thread has four, sum up to 1, and returns the sum of their products with their
// gradients. All weights are 0 where no key counts.
__device__ inline float whole_row(float* p, const float* dp) {
  const float sum = row_sum(p[0] + p[1] + p[2] + p[3]), divisor = sum == 0 ? 1.f : sum;
  float delta = 0;
  for (int j = 0; j < 4; ++j) {
    p[j] /= divisor;
    delta += p[j] * dp[j];
  }
  return row_sum(delta);
}

// The softmax of a tile, and the gradient of its scores before the scale.
template <typename T, bool by_key, typename Call>
__device__ inline void weights_and_gradient(const Call& a, const Tile& tile, Long query, Long key,
                                            AttentionShared* shared, float (*p)[4], float (*ds)[4]) {
  scores_and_gradients<T, by_key>(a, tile, query, key, shared, p, ds);
  for (int i = 0; i < 4; ++i) {
    const QueryStatistics of = query_statistics(a, tile, query + spread(threadIdx.x / 16, i));
    for (int j = 0; j < 4; ++j) p[i][j] = weight_of(p[i][j], of);
    const float delta = is_whole(a) ? whole_row(p[i], ds[i]) : of.delta;
    for (int j = 0; j < 4; ++j) {
      ds[i][j] = p[i][j] * (ds[i][j] - delta) * a.scale;
      const Long row = query + spread(threadIdx.x / 16, i), column = key + spread(threadIdx.x % 16, j);
      if (!is_open<T>(a, tile, row, column)) ds[i][j] = 0;
    }
  }
}

template <typename T, typename Call>
__device__ void attention_grad_queries(const Call& a) {
  __shared__ AttentionShared shared;
  each_tile(a, a.queries, [&](const Tile& tile) {
    const T* k = static_cast<const T*>(a.k) + tile.item * a.keys * a.depth;
    for (Long column = blockIdx.y * static_cast<Long>(kTile); column < a.depth; column += gridDim.y * kTile) {
      float dq[4][4] = {};
      for (Long key = 0; key < tile.keys; key += kTile) {
        float p[4][4], ds[4][4];
        weights_and_gradient<T, true>(a, tile, tile.first, key, &shared, p, ds);
        keep_tile<true>(&shared, ds);
        shared_product(shared.scores, columns_of(k, key, tile.keys, a.depth, column, a.wide), &shared.right, dq);
      }
      put_tile<T>(a.dq, tile.item * a.queries * a.depth, tile.first, a.queries, column, a.depth, dq);
    }
  });
}

template <typename T>
__device__ void attention_grad_keys(const AttentionGrad& a) {
  __shared__ AttentionShared shared;
  const Long most = a.depth > a.value_depth ? a.depth : a.value_depth;
  each_tile(a, a.keys, [&](const Tile& tile) {
    const T* q = static_cast<const T*>(a.q) + tile.item * a.queries * a.depth;
    const T* dout = static_cast<const T*>(a.dout) + tile.item * a.queries * a.value_depth;
    for (Long column = blockIdx.y * static_cast<Long>(kTile); column < most; column += gridDim.y * kTile) {
      float dk[4][4] = {}, dv[4][4] = {};
      for (Long query = 0; tile.first < tile.keys && query < a.queries; query += kTile) {
        float p[4][4], ds[4][4];
        weights_and_gradient<T, false>(a, tile, query, tile.first, &shared, p, ds);
        multiply_by_factors<T>(a, tile, query, tile.first, p);
        keep_tile<false>(&shared, p);
        const Operand<T, true> douts = columns_of(dout, query, a.queries, a.value_depth, column, a.wide);
        shared_product(shared.scores, douts, &shared.right, dv);
        keep_tile<false>(&shared, ds);
        shared_product(shared.scores, columns_of(q, query, a.queries, a.depth, column, a.wide), &shared.right, dk);
      }
      put_tile<T>(a.dk, tile.item * a.keys * a.depth, tile.first, a.keys, column, a.depth, dk);
      put_tile<T>(a.dv, tile.item * a.keys * a.value_depth, tile.first, a.keys, column, a.value_depth, dv);
    }
  });
}

}  // namespace echo_cuda

#if ECHO_IN(attention_grad)
ECHO_BOTH(1, attention_delta, AttentionGrad)
ECHO_BOTH(1, attention_mend, AttentionGrad)
ECHO_ATTENTION(attention_grad_queries, AttentionGrad)
ECHO_BOTH(1, attention_grad_keys, AttentionGrad)
#endif

#endif  // ECHO_KERNELS_CUDA_ATTENTION_GRAD_CUH_
