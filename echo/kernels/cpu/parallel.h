// Work on several threads, in chunks that do not depend on how many there are: sums come out the same with any number.
#ifndef ECHO_KERNELS_CPU_PARALLEL_H_
#define ECHO_KERNELS_CPU_PARALLEL_H_
#include <algorithm>
#include <cstdint>

#include "float_mode.h"

namespace echo {
namespace kernels {

const int64_t kChunks = 32;             // most chunks of a call; each may have a part of the workspace of its own
const int64_t kWorthThreads = 1 << 15;  // elements: below some 10 us of work starting threads costs more than it brings

// Whether a region with several threads may be begun: not in a child that was forked after the library was loaded, where
// OpenMP would wait for the parent's threads for ever.
bool threads_work();

// How many chunks `count` items are cut into.
inline int64_t chunk_count(int64_t count) { return std::min(count, kChunks); }

// action(chunk, begin, end) for chunks of [0, count); `elements` says how much work all of it is.
template <typename Action>
void in_chunks(int64_t count, int64_t elements, const Action& action) {
  const int64_t chunks = chunk_count(count);
  const auto one = [&](int64_t chunk) { action(chunk, count * chunk / chunks, count * (chunk + 1) / chunks); };
  // no region with an if clause: libgomp would let go of its threads to run it
  if (chunks <= 1 || elements < kWorthThreads || !threads_work()) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) one(chunk);
    return;
  }
  const FloatMode mode = float_mode();
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const FloatModeScope scope(mode);
    one(chunk);
  }
}

// action(offset, n) for tiles of n <= tile elements of [0, count).
template <typename Action>
void in_tiles(int64_t count, int64_t tile, const Action& action) {
  for (int64_t offset = 0; offset < count; offset += tile) action(offset, std::min(tile, count - offset));
}

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_PARALLEL_H_
