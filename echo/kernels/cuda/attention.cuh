// Attention without its matrix of scores: tiles of 64 queries by 64 keys, the softmax kept up to date from tile to tile
// (Dao et al., FlashAttention, NeurIPS 2022, algorithms 1 and 4), scores computed again in the gradients. A block owns
// 64 columns of its result: deeper heads take more blocks, each of which computes the scores for itself.
#ifndef ECHO_KERNELS_CUDA_ATTENTION_CUH_
#define ECHO_KERNELS_CUDA_ATTENTION_CUH_
#include "tile.cuh"

namespace echo_cuda {

// The tile of scores, transposed where its queries are the rows of the next product; after it the slices of products.
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
  Long keys;  // that the item has for any of its queries
};

// The most keys that any query of an item has; the same for all threads of a block.
template <typename Call>
__device__ inline Long keys_of(const Call& a, Long item) {
  if (!Call::kMasked || !a.per_query) return length_of(a.lengths, a.lengths_type, item, a.keys);
  Long most = 0;
  for (Long query = threadIdx.x % 32; query < a.queries; query += 32) {
    const Long keys = length_of(a.lengths, a.lengths_type, item * a.queries + query, a.keys);
    most = keys > most ? keys : most;
  }
  for (int lane = 16; lane; lane /= 2) {  // numbers of keys that a float would round come one by one
    const int other = __shfl_xor_sync(0xffffffffu, static_cast<int>(most), lane);
    most = other > most ? other : most;
  }
  return most;
}

// Calls visit for each tile of 64 of `rows` rows that an item has.
template <typename Call, typename Visit>
__device__ inline void each_tile(const Call& a, Long rows, Visit visit) {
  const Long per_item = (rows + kTile - 1) / kTile;
  for (Long t = blockIdx.x; t < a.items * per_item; t += gridDim.x) {
    const Long item = t / per_item;
    visit(Tile{item, t % per_item * kTile, keys_of(a, item)});
  }
}

// The score of a product of a query and a key that are there.
template <typename T, typename Call>
__device__ inline float score_of(const Call& a, const T* mask, Long row, Long column, float product) {
  const float score = product * a.scale;
  if (!Call::kMasked || !mask) return score;
  const float x = number(mask[row * a.row_stride + column]);
  if (a.masking == kMaskAdds) return score + x;
  return x != 0.f ? score : a.fill;
}

// The mask of an item, null where there is none.
template <typename T, typename Call>
__device__ inline const T* mask_of(const Call& a, Long item) {
  if (!Call::kMasked || !a.mask) return nullptr;
  return static_cast<const T*>(a.mask) + item / a.heads * a.batch_stride + item % a.heads * a.head_stride;
}

// Whether weights are multiplied by something.
template <typename Call>
__device__ inline bool has_factors(const Call& a) {
  return Call::kMasked && (a.bits || a.masking == kMaskMultiplies);
}

// What the weight of a query and a key is multiplied by; 0 outside.
template <typename T, typename Call>
__device__ inline float factor_of(const Call& a, const Tile& tile, Long row, Long column) {
  if (row >= a.queries || column >= tile.keys) return 0.f;
  float x = 1.f;
  if (a.masking == kMaskMultiplies) x = number(mask_of<T>(a, tile.item)[row * a.row_stride + column]);
  if (!a.bits) return x;
  const Long at = (tile.item * a.queries + row) * a.keys + column;
  return a.bits[at / 8] >> at % 8 & 1 ? x * *a.factor : 0.f;
}

// Whether a gradient flows back to a score.
template <typename T, typename Call>
__device__ inline bool is_open(const Call& a, const Tile& tile, Long row, Long column) {
  if (!Call::kMasked || a.masking == kMaskAdds) return true;
  if (row >= a.queries || column >= tile.keys) return false;
  return number(mask_of<T>(a, tile.item)[row * a.row_stride + column]) != 0.f;
}

// Multiplies a thread's numbers by the factors of their weights.
template <typename T, typename Call>
__device__ inline void multiply_by_factors(const Call& a, const Tile& tile, Long query, Long key, float (*s)[4]) {
  if (!has_factors(a)) return;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      s[i][j] *= factor_of<T>(a, tile, query + spread(threadIdx.x / 16, i), key + spread(threadIdx.x % 16, j));
    }
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
  const T* mask = mask_of<T>(a, tile.item);
  for (int i = 0; i < 4; ++i) {
    const Long row = query + spread(threadIdx.x / 16, i);
    Long keys = tile.keys;
    if (Call::kMasked && a.per_query && row < a.queries)
      keys = length_of(a.lengths, a.lengths_type, tile.item * a.queries + row, keys);
    for (int j = 0; j < 4; ++j) {
      const Long column = key + spread(threadIdx.x % 16, j);
      const bool inside = row < a.queries && column < keys;
      s[i][j] = inside ? score_of<T>(a, mask, row, column, s[i][j]) : -ECHO_INFINITY;
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

// Takes the values that this thread kept: no barrier is needed.
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

template <typename T, typename Call>
__device__ void attention(const Call& a) {
  __shared__ AttentionShared shared;
  each_tile(a, a.queries, [&](const Tile& tile) {
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
        multiply_by_factors<T>(a, tile, tile.first, key, s);
        keep_tile<true>(&shared, s);
        shared_product(shared.scores, columns_of(v, key, tile.keys, a.value_depth, column, a.wide), &shared.right, out);
      }
      for (int i = 0; i < 4; ++i) {
        const Long row = tile.first + spread(threadIdx.x / 16, i);
        if (row >= a.queries) continue;
        const Long at = tile.item * a.queries + row;
        const bool no_key = length_of(a.lengths, a.lengths_type, Call::kMasked && a.per_query ? at : tile.item,
                                      a.keys) == 0;
        // a sum of 0 makes NaNs where keys count, as in MXNet
        for (int j = 0; j < 4; ++j) out[i][j] = no_key ? 0.f : out[i][j] / sum[i];
        if (column == 0 && threadIdx.x % 16 == 0) {
          const float lse = sum[i] == 0 ? ECHO_INFINITY - ECHO_INFINITY : most[i] + logf(sum[i]);
          put<float>(a.lse, at, no_key ? -ECHO_INFINITY : lse);
        }
      }
      put_tile<T>(a.out, tile.item * a.queries * a.value_depth, tile.first, a.queries, column, a.value_depth, out);
      column += gridDim.y * static_cast<Long>(kTile);
    } while (column < a.value_depth);
  });
}

}  // namespace echo_cuda

// Registers are short where there is something to mask: then one block has to fit onto a multiprocessor, else two.
#define ECHO_ATTENTION(name, Arguments)                                    \
  ECHO_KERNEL(2, name##_f32, Arguments##Plain, echo_cuda::name<float>(a))  \
  ECHO_KERNEL(2, name##_f16, Arguments##Plain, echo_cuda::name<half_t>(a)) \
  ECHO_KERNEL(1, name##_masked_f32, Arguments, echo_cuda::name<float>(a))  \
  ECHO_KERNEL(1, name##_masked_f16, Arguments, echo_cuda::name<half_t>(a))

#if ECHO_IN(attention)
ECHO_ATTENTION(attention, Attention)
#endif

#endif  // ECHO_KERNELS_CUDA_ATTENTION_CUH_
