// The inner loop of gemm.cc, included once for each instruction set. Instructions have to be chosen on the function
// that holds the vectors: GCC takes wide vectors apart before it inlines. To be defined:
//   LEVEL           the namespace
//   LEVEL_TARGET    attributes of the functions
//   VECTOR_BYTES    bytes of a vector
//   TILE_VECTORS    vectors in a row of the tile
//   TILE_ROWS       most rows of a tile; all sums of a tile live in registers
namespace LEVEL {

typedef float Vector __attribute__((vector_size(VECTOR_BYTES), aligned(4)));
constexpr int lanes = VECTOR_BYTES / 4;

// c = start + a b' for ROWS rows and lanes * TILE_VECTORS columns, both packed depth by depth.
template <int ROWS>
LEVEL_TARGET void tile(int64_t depth, const float* a, const float* b, Start start, float* c, int64_t c_stride) {
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < TILE_VECTORS; ++v) __builtin_prefetch(c + r * c_stride + v * lanes, 1);
  }
  Vector sum[ROWS][TILE_VECTORS] = {};
  for (int64_t d = 0; d < depth; ++d) {
    Vector right[TILE_VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < TILE_VECTORS; ++v) {
      right[v] = *reinterpret_cast<const Vector*>(b + v * lanes);
      __builtin_prefetch(b + (v + kAhead * TILE_VECTORS) * lanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < TILE_VECTORS; ++v) sum[r][v] += a[r] * right[v];
    }
    a += ROWS;
    b += TILE_VECTORS * lanes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < TILE_VECTORS; ++v) {
      if (start.data) sum[r][v] += *reinterpret_cast<const Vector*>(start.data + r * start.stride + v * lanes);
      *reinterpret_cast<Vector*>(c + r * c_stride + v * lanes) = sum[r][v];
    }
  }
}

template <int... ROWS>
constexpr Tiles tiles_of(std::integer_sequence<int, ROWS...>) {
  return {sizeof...(ROWS), lanes * TILE_VECTORS, {tile<ROWS + 1>...}};
}

constexpr Tiles tiles = tiles_of(std::make_integer_sequence<int, TILE_ROWS>());

}  // namespace LEVEL
#undef LEVEL
#undef LEVEL_TARGET
#undef VECTOR_BYTES
#undef TILE_VECTORS
#undef TILE_ROWS
