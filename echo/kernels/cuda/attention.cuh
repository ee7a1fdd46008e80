// Attention without its matrix of scores: tiles of 64 queries by 64 keys, the softmax kept up to date from tile to tile
// (Dao et al., FlashAttention, NeurIPS 2022, algorithms 1 and 4), scores computed again in the gradients. A block owns
// 64 columns of its result: deeper heads take more blocks, each of which computes the scores for itself.
#ifndef ECHO_KERNELS_CUDA_ATTENTION_CUH_
#define ECHO_KERNELS_CUDA_ATTENTION_CUH_
#include "tile.cuh"

namespace echo_cuda {

// The tile of scores, transposed where its queries are the rows of the next product; behind it the slices of products.
struct AttentionShared {
  Slices<4> left, right;
  float scores[kTile][kTile + 4];
};

// Rows `first` up to `end` of an array of [end][depth], as an operand that is summed over depth...
template <typename T>
__device__ inline Operand<T, false> rows_of(const T* data, Long first, Long end, Long depth, int wide) {
  return {data + first * depth, depth, static_cast<int>(smaller(kTile, end - first)), depth, wide};
}

// ... or over rows: 64 columns from `column` on.
template <typename T>
__device__ inline Operand<T, true> columns_of(const T* data, Long first, Long end, Long depth, Long column, int wide) {
  return {data + first * depth + column, depth, static_cast<int>(smaller(kTile, depth - column)),
          smaller(kTile, end - first), wide};
}

struct Tile {
  Long item, first;  // the batch item, and its first query or key
  Long keys;  // that the item has
};

// Calls visit for each tile of 64 of `rows` rows that an item has.
template <typename Visit>
__device__ inline void each_tile(Long items, Long rows, Long keys, const void* lengths, int type, Visit visit) {
  const Long per_item = (rows + kTile - 1) / kTile;
  for (Long t = blockIdx.x; t < items * per_item; t += gridDim.x) {
    const Long item = t / per_item;
    visit(Tile{item, t % per_item * kTile, length_of(lengths, type, item, keys)});
  }
}

// The thread's four by four scores, query spread(y, i) and key spread(x, j); -inf outside.
template <typename T, typename Call>
__device__ inline void scores_of(const Call& a, const Tile& tile, Long query, Long key, AttentionShared* shared,
                                 float (*s)[4]) {
  const T* q = static_cast<const T*>(a.q) + tile.item * a.queries * a.depth;
  const T* k = static_cast<const T*>(a.k) + tile.item * a.keys * a.depth;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) s[i][j] = 0;
  }
  tile_product<4>(rows_of(q, query, a.queries, a.depth, a.wide), rows_of(k, key, tile.keys, a.depth, a.wide),
                  &shared->left, &shared->right, s);
  for (int i = 0; i < 4; ++i) {
    const Long row = query + spread(threadIdx.x / 16, i);
    for (int j = 0; j < 4; ++j) {
      const Long column = key + spread(threadIdx.x % 16, j);
      const bool inside = row < a.queries && column < tile.keys;
      s[i][j] = inside ? s[i][j] * a.scale : -ECHO_INFINITY;
      if (inside && a.bias) s[i][j] += get<T>(a.bias, row * a.keys + column);
    }
  }
}

// Over the 16 threads that share a row of the tile.
__device__ inline float row_max(float x) {
  for (int lane = 8; lane; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}

__device__ inline float row_sum(float x) {
  for (int lane = 8; lane; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

// Softmax so far: most and sum of each of the thread's four rows; scores become weights, results shrink with `most`.
__device__ inline void update_softmax(float (*s)[4], float* most, float* sum, float (*out)[4]) {
  for (int i = 0; i < 4; ++i) {
    const float now = fmaxf(most[i], row_max(fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3]))));
    const float zero = now == -ECHO_INFINITY ? 0.f : now;  // nothing but -inf so far: weights of 0, not NaN
    const float shrink = expf(most[i] - zero);
    float row = 0;
    for (int j = 0; j < 4; ++j) {
      s[i][j] = expf(s[i][j] - zero);
      row += s[i][j];
      out[i][j] *= shrink;
    }
    sum[i] = sum[i] * shrink + row_sum(row);
    most[i] = now;
  }
}

// The place of four of a thread's numbers: of one query, or transposed, [key][query], of one key.
template <bool by_key>
__device__ inline float* place_of_four(AttentionShared* shared, int i) {
  const int x = threadIdx.x % 16 * 4, y = threadIdx.x / 16 * 4;
  return by_key ? &shared->scores[x + i][y] : &shared->scores[y + i][x];
}

template <bool by_key>
__device__ inline void keep_tile(AttentionShared* shared, float (*s)[4]) {
  for (int i = 0; i < 4; ++i) {
    Pack<4> four;
    for (int j = 0; j < 4; ++j) four.v[j] = by_key ? s[j][i] : s[i][j];
    Access<4>::store(place_of_four<by_key>(shared, i), four);
  }
}

// What this thread kept, for which it waits for nobody.
template <bool by_key>
__device__ inline void take_tile(AttentionShared* shared, float (*s)[4]) {
  for (int i = 0; i < 4; ++i) {
    const Pack<4> four = Access<4>::load(place_of_four<by_key>(shared, i));
    for (int j = 0; j < 4; ++j) (by_key ? s[j][i] : s[i][j]) = four.v[j];
  }
}

// Puts a thread's results: rows from `first`, columns from `column`, of [end][depth].
template <typename T>
__device__ inline void put_tile(Output to, Long base, Long first, Long end, Long column, Long depth, float (*x)[4]) {
  for (int i = 0; i < 4; ++i) {
    const Long row = first + spread(threadIdx.x / 16, i);
    for (int j = 0; j < 4; ++j) {
      const Long at = column + spread(threadIdx.x % 16, j);
      if (row < end && at < depth) put<T>(to, base + row * depth + at, x[i][j]);
    }
  }
}

template <typename T>
__device__ void attention(const Attention& a) {
  __shared__ AttentionShared shared;
  each_tile(a.items, a.queries, a.keys, a.lengths, a.lengths_type, [&](const Tile& tile) {
    const T* v = static_cast<const T*>(a.v) + tile.item * a.keys * a.value_depth;
    Long column = blockIdx.y * static_cast<Long>(kTile);
    do {
      float most[4], sum[4] = {}, out[4][4] = {};
      for (int i = 0; i < 4; ++i) most[i] = -ECHO_INFINITY;
      for (Long key = 0; key < tile.keys; key += kTile) {
        float s[4][4];
        keep_tile<true>(&shared, out);  // where registers are short
        scores_of<T>(a, tile, tile.first, key, &shared, s);
        take_tile<true>(&shared, out);
        update_softmax(s, most, sum, out);
        keep_tile<true>(&shared, s);
        shared_product(shared.scores, columns_of(v, key, tile.keys, a.value_depth, column, a.wide), &shared.right, out);
      }
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) out[i][j] = sum[i] > 0 ? out[i][j] / sum[i] : 0.f;
        const Long row = tile.first + spread(threadIdx.x / 16, i);
        if (column == 0 && threadIdx.x % 16 == 0 && row < a.queries) {
          put<float>(a.lse, tile.item * a.queries + row, sum[i] > 0 ? most[i] + logf(sum[i]) : -ECHO_INFINITY);
        }
      }
      put_tile<T>(a.out, tile.item * a.queries * a.value_depth, tile.first, a.queries, column, a.value_depth, out);
      column += gridDim.y * static_cast<Long>(kTile);
    } while (column < a.value_depth);
  });
}

// What the gradients need of a query. lse: inf where no key counts, and behind the last query, so that weights are 0.
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

// The scores of a tile, and the gradients of its weights. Scores wait in shared memory, each thread's where it will keep
// what it makes of them: registers are short.
template <typename T, bool by_key>
__device__ inline void scores_and_gradients(const AttentionGrad& a, const Tile& tile, Long query, Long key,
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
  take_tile<by_key>(shared, s);
}

// Whether weights from the logarithm of a row's denominator are off by more than 2e-6, since it is rounded.
__device__ inline bool is_large(float lse) { return fabsf(lse) > 32.f && fabsf(lse) < ECHO_INFINITY; }

// The same for all threads of a block: whether any of the tile's queries is large.
__device__ inline bool any_large(const AttentionGrad& a, const Tile& tile) {
  float count = 0;
  for (int i = 0; i < 2; ++i) {
    const Long query = tile.first + threadIdx.x % 32 + 32 * i;
    if (query < a.queries && is_large(a.lse[tile.item * a.queries + query])) count += 1;
  }
  return warp_sum(count) > 0;
}

// Where scores are large: what their logarithms lost in rounding, and delta from the very weights and gradients that it
// is subtracted from later, so that nothing is left where one key has all the weight (as `mend_large` of the CPU).
template <typename T>
__device__ void attention_mend(const AttentionGrad& a) {
  __shared__ AttentionShared shared;
  each_tile(a.items, a.queries, a.keys, a.lengths, a.lengths_type, [&](const Tile& tile) {
    if (!any_large(a, tile)) return;
    QueryStatistics found[4];
    for (int i = 0; i < 4; ++i) {
      found[i] = query_statistics(a, tile, tile.first + spread(threadIdx.x / 16, i));
      found[i].rest = found[i].delta = 0;
    }
    for (Long key = 0; key < tile.keys; key += kTile) {
      float s[4][4];
      scores_of<T>(a, tile, tile.first, key, &shared, s);
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) found[i].rest += expf(s[i][j] - found[i].lse);
      }
    }
    for (int i = 0; i < 4; ++i) found[i].rest = logf(row_sum(found[i].rest));
    for (Long key = 0; key < tile.keys; key += kTile) {
      float s[4][4], dp[4][4];
      scores_and_gradients<T, false>(a, tile, tile.first, key, &shared, s, dp);
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) found[i].delta += expf(s[i][j] - found[i].lse - found[i].rest) * dp[i][j];
      }
    }
    for (int i = 0; i < 4; ++i) {
      const Long query = tile.first + spread(threadIdx.x / 16, i);
      found[i].delta = row_sum(found[i].delta);
      if (threadIdx.x % 16 == 0 && is_large(found[i].lse)) put_statistics(a, tile.item * a.queries + query, found[i]);
    }
  });
}

// The softmax's weights of a tile, and the gradient of its scores before the scale.
template <typename T, bool by_key>
__device__ inline void weights_and_gradient(const AttentionGrad& a, const Tile& tile, Long query, Long key,
                                            AttentionShared* shared, float (*p)[4], float (*ds)[4]) {
  scores_and_gradients<T, by_key>(a, tile, query, key, shared, p, ds);
  for (int i = 0; i < 4; ++i) {
    const QueryStatistics of = query_statistics(a, tile, query + spread(threadIdx.x / 16, i));
    for (int j = 0; j < 4; ++j) {
      p[i][j] = expf(p[i][j] - of.lse - of.rest);
      ds[i][j] = p[i][j] * (ds[i][j] - of.delta) * a.scale;
    }
  }
}

template <typename T>
__device__ void attention_grad_queries(const AttentionGrad& a) {
  __shared__ AttentionShared shared;
  each_tile(a.items, a.queries, a.keys, a.lengths, a.lengths_type, [&](const Tile& tile) {
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
  each_tile(a.items, a.keys, a.keys, a.lengths, a.lengths_type, [&](const Tile& tile) {
    const T* q = static_cast<const T*>(a.q) + tile.item * a.queries * a.depth;
    const T* dout = static_cast<const T*>(a.dout) + tile.item * a.queries * a.value_depth;
    for (Long column = blockIdx.y * static_cast<Long>(kTile); column < most; column += gridDim.y * kTile) {
      float dk[4][4] = {}, dv[4][4] = {};
      for (Long query = 0; tile.first < tile.keys && query < a.queries; query += kTile) {
        float p[4][4], ds[4][4];
        weights_and_gradient<T, false>(a, tile, query, tile.first, &shared, p, ds);
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
ECHO_BOTH(2, attention, Attention)
ECHO_BOTH(1, attention_delta, AttentionGrad)
ECHO_BOTH(2, attention_mend, AttentionGrad)
ECHO_BOTH(2, attention_grad_queries, AttentionGrad)
ECHO_BOTH(1, attention_grad_keys, AttentionGrad)

#endif  // ECHO_KERNELS_CUDA_ATTENTION_CUH_
