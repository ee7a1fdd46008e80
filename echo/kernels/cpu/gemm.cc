#include "gemm.h"

#include <algorithm>
#include <cstring>
#include <utility>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "clones.h"
#include "float_mode.h"
#include "half.h"
#include "parallel.h"

namespace echo {
namespace kernels {
namespace gemm {
namespace {

constexpr int kTileRows = 16, kTileColumns = 32;  // at most, in any instruction set
// A block of A, kRows high and kDepth deep at most, and a group of panels of B with kGroup floats at most stay in the
// second-level cache. Each strip of the block, which stays in the first level, passes by all panels of the group.
// Panels are fetched kAhead depths early: without that, backward passes took 7 % longer. Depths of 256 to 832, 128 or
// 256 rows and groups of half as many or twice as many floats differ by less than 3 %.
constexpr int64_t kDepth = 512, kRows = 256, kGroup = 1 << 17;
constexpr int kAhead = 24;
constexpr int64_t kWorthProduct = 1 << 20;  // multiplications: below some 15 us threads cost more than they bring

using Tile = void (*)(int64_t depth, const float* a, const float* b, Start start, float* c, int64_t c_stride);

struct Tiles {
  int rows, columns;
  Tile tile[kTileRows];  // of 1, 2, ... rows
};

#ifdef ECHO_HAS_LEVELS
#define LEVEL avx512
#define LEVEL_TARGET ECHO_AVX512
#define VECTOR_BYTES 64
#define TILE_VECTORS 2
#define TILE_ROWS 14
#include "gemm_tile.h"

#define LEVEL avx2
#define LEVEL_TARGET ECHO_AVX2
#define VECTOR_BYTES 32
#define TILE_VECTORS 2
#define TILE_ROWS 6
#include "gemm_tile.h"
#endif

#define LEVEL portable
#define LEVEL_TARGET
#define VECTOR_BYTES 16
#define TILE_VECTORS 2
#define TILE_ROWS 6
#include "gemm_tile.h"

const Tiles& chosen() {
#ifdef ECHO_HAS_LEVELS
  if (level() == Level::kAvx512) return avx512::tiles;
  if (level() == Level::kAvx2) return avx2::tiles;
#endif
  return portable::tiles;
}

int64_t blocks_of(int64_t total, int64_t most) { return (total + most - 1) / most; }

// The size of equal blocks, the last one maybe smaller.
int64_t block_size(int64_t total, int64_t most) {
  const int64_t blocks = std::max<int64_t>(blocks_of(total, most), 1);
  return (total + blocks - 1) / blocks;
}

// to[d * width + r] = from[r * row_stride + d] for 4 rows and depths at a time, in part or as a whole.
void transpose(const float* from, int64_t row_stride, int64_t rows, int64_t depth, float* to, int64_t width) {
  int64_t r = 0;
#if defined(__SSE__)
  for (; r + 4 <= rows; r += 4) {
    const float* row = from + r * row_stride;
    int64_t d = 0;
    for (; d + 4 <= depth; d += 4) {
      __m128 v0 = _mm_loadu_ps(row + d), v1 = _mm_loadu_ps(row + row_stride + d);
      __m128 v2 = _mm_loadu_ps(row + 2 * row_stride + d), v3 = _mm_loadu_ps(row + 3 * row_stride + d);
      _MM_TRANSPOSE4_PS(v0, v1, v2, v3);
      float* out = to + d * width + r;
      _mm_storeu_ps(out, v0);
      _mm_storeu_ps(out + width, v1);
      _mm_storeu_ps(out + 2 * width, v2);
      _mm_storeu_ps(out + 3 * width, v3);
    }
    for (; d < depth; ++d) {
      for (int64_t i = 0; i < 4; ++i) to[d * width + r + i] = row[i * row_stride + d];
    }
  }
#endif
  for (; r < rows; ++r) {
    for (int64_t d = 0; d < depth; ++d) to[d * width + r] = from[r * row_stride + d];
  }
}

ECHO_INLINE void widen(const Half* __restrict from, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
}

// to[d * width + r] = from[d * stride + r] for rows <= LENGTH. Copies of a fixed length are several times as fast; what
// they copy beyond a run, the next run writes over. Runs are far apart in memory: they are fetched early.
template <int LENGTH>
void copy_runs(const float* from, int64_t stride, int64_t rows, int64_t depth, float* to, int64_t width) {
  int64_t fixed = depth;
  if (rows < LENGTH) fixed = stride < LENGTH ? 0 : depth - LENGTH / width - 1;
  int64_t d = 0;
  for (; d < fixed; ++d) {
    __builtin_prefetch(from + (d + 24) * stride);
    __builtin_prefetch(from + (d + 24) * stride + LENGTH - 1);
    std::memcpy(to + d * width, from + d * stride, sizeof(float) * LENGTH);
  }
  for (; d < depth; ++d) std::memcpy(to + d * width, from + d * stride, sizeof(float) * rows);
}

// Packs rows [row, row + rows) and depths [begin, begin + depth) into one panel of `width` rows; what stands in the
// place of missing rows does not matter.
void pack_panel(const Operand& x, int64_t row, int64_t rows, int64_t begin, int64_t depth, int64_t width, float* to) {
  if (rows < width) std::memset(to, 0, sizeof(float) * width * depth);
  const bool by_rows = x.depth_stride == 1;  // as it lies in memory: a run is a row, or all rows at one depth
  const int64_t runs = by_rows ? rows : depth, length = by_rows ? depth : rows;
  const int64_t offset = row * x.row_stride + begin * x.depth_stride;
  const float* from = static_cast<const float*>(x.data) + offset;
  int64_t stride = by_rows ? x.row_stride : x.depth_stride;
  float wide[kTileColumns * kDepth];
  if (x.half) {
    const Half* halves = static_cast<const Half*>(x.data) + offset;
    for (int64_t i = 0; i < runs; ++i) cloned<widen>(halves + i * stride, length, wide + i * length);
    from = wide;
    stride = length;
  }
  if (by_rows) return transpose(from, stride, rows, depth, to, width);
  const auto copy = rows > kTileRows ? copy_runs<kTileColumns> : copy_runs<kTileRows>;
  copy(from, stride, rows, depth, to, width);
}

}  // namespace

int64_t packed_floats(int64_t columns, int64_t depth) {
  const int64_t width = chosen().columns;
  return blocks_of(columns, width) * width * depth;
}

int64_t scratch_floats(int64_t rows, int64_t depth) { return std::min(rows, kRows) * std::min(depth, kDepth); }

void pack(const Operand& b, float* panels) {
  const int64_t width = chosen().columns, count = blocks_of(b.rows, width), step = block_size(b.depth, kDepth);
  const int64_t total = count * (b.depth ? blocks_of(b.depth, step) : 0);
  const auto one = [&](int64_t i) {
    const int64_t begin = i / count * step, depth = std::min(step, b.depth - begin), row = i % count * width;
    float* const to = panels + begin * count * width + row * depth;
    pack_panel(b, row, std::min(width, b.rows - row), begin, depth, width, to);
  };
  if (b.rows * b.depth < kWorthThreads || !threads_work()) {
    for (int64_t i = 0; i < total; ++i) one(i);
    return;
  }
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < total; ++i) one(i);
}

// Row r, column n of the start.
static float value_of(Start start, int64_t r, int64_t n) {
  return start.data ? start.data[r * start.stride + n] : 0.0f;
}

static Start moved(Start start, int64_t r, int64_t n) {
  return start.data ? Start{start.data + r * start.stride + n, start.stride} : start;
}

// One tile of C; at the right edge, where the panel is wider than C, through a buffer.
static void run_tile(const Tiles& tiles, int64_t rows, int64_t columns, int64_t depth, const float* a, const float* b,
                     Start start, float* c, int64_t c_stride) {
  if (columns == tiles.columns) return tiles.tile[rows - 1](depth, a, b, start, c, c_stride);
  float buffer[kTileRows * kTileColumns];
  tiles.tile[rows - 1](depth, a, b, Start{nullptr, 0}, buffer, tiles.columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < columns; ++n) c[r * c_stride + n] = value_of(start, r, n) + buffer[r * tiles.columns + n];
  }
}

// A block of A, and what the tiles of C from it need.
struct Block {
  int64_t row, rows, height, strips;  // strips of `height` rows
  int64_t begin, depth;
};

static void pack_block(const Operand& a, const Block& block, float* scratch) {
#pragma omp for schedule(static)
  for (int64_t s = 0; s < block.strips; ++s) {
    const int64_t first = s * block.height, rows = std::min(block.height, block.rows - first);
    pack_panel(a, block.row + first, rows, block.begin, block.depth, rows, scratch + first * block.depth);
  }
}

static void multiply_block(const Block& block, const float* a, const float* b, int64_t columns, Start start, float* c,
                           int64_t c_stride) {
  const Tiles& tiles = chosen();
  const int64_t width = tiles.columns, panels = blocks_of(columns, width);
  const int64_t group = std::max<int64_t>(kGroup / (width * block.depth), 1);
#pragma omp for schedule(static)
  for (int64_t i = 0; i < panels * block.strips; ++i) {
    // all strips pass by a group of panels, and each strip by one panel of the group after the other
    const int64_t start_panel = i / (group * block.strips) * group, size = std::min(group, panels - start_panel);
    const int64_t inside = i - start_panel * block.strips;
    const int64_t first = inside / size * block.height, column = (start_panel + inside % size) * width;
    const int64_t row = block.row + first;
    run_tile(tiles, std::min(block.height, block.rows - first), std::min(width, columns - column), block.depth,
             a + first * block.depth, b + block.begin * panels * width + column * block.depth,
             moved(start, row, column), c + row * c_stride + column, c_stride);
  }
}

// Every thread of a region calls this; outside of a region it does all the work.
static void multiply_blocks(const Operand& a, const float* b_panels, int64_t columns, Start start, float* c,
                            int64_t c_stride, float* scratch) {
  const int64_t row_step = block_size(a.rows, kRows), depth_step = block_size(a.depth, kDepth);
  for (int64_t row = 0; row < a.rows; row += row_step) {
    const int64_t rows = std::min(row_step, a.rows - row), height = block_size(rows, chosen().rows);
    for (int64_t begin = 0; begin < a.depth; begin += depth_step) {
      const Block block{row, rows, height, blocks_of(rows, height), begin, std::min(depth_step, a.depth - begin)};
      pack_block(a, block, scratch);
      multiply_block(block, scratch, b_panels, columns, begin ? Start{c, c_stride} : start, c, c_stride);
    }
  }
}

void multiply(const Operand& a, const float* b_panels, int64_t columns, Start start, float* c, int64_t c_stride,
              float* scratch) {
  if (a.depth == 0) {
    for (int64_t r = 0; r < a.rows; ++r) {
      for (int64_t n = 0; n < columns; ++n) c[r * c_stride + n] = value_of(start, r, n);
    }
    return;
  }
  if (a.rows * columns * a.depth < kWorthProduct || !threads_work()) {
    return multiply_blocks(a, b_panels, columns, start, c, c_stride, scratch);
  }
  const FloatMode mode = float_mode();
#pragma omp parallel
  {
    const FloatModeScope scope(mode);
    multiply_blocks(a, b_panels, columns, start, c, c_stride, scratch);
  }
}

}  // namespace gemm
}  // namespace kernels
}  // namespace echo
