// Masks of one bit an element: bit i of byte j is element 8j + i.
#ifndef ECHO_KERNELS_CPU_BITS_H_
#define ECHO_KERNELS_CPU_BITS_H_
#include <cstdint>

#include "check.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {

// n flags of 0 or 1 into (n + 7) / 8 bytes, and back: then a flag is 0, or anything else where it is set.
void pack_bits(const uint8_t* flags, uint8_t* bits, int64_t n);
void unpack_bits(const uint8_t* bits, uint8_t* flags, int64_t n);

// y = x * (flag ? factor : 0) for n elements.
void multiply_by_flags(const float* x, const uint8_t* flags, float factor, float* y, int64_t n);

// to = from * (bit ? factor : 0), elements of a call with bits: the backward pass of every kernel with a mask.
void multiply_by_bits(const Call& call, float factor, const char* from = "dy", const char* to = "dx");

// action(offset, n) for tiles of [0, count), on several threads; offsets are multiples of eight.
template <typename Action>
void in_tile_chunks(int64_t count, const Action& action) {
  static_assert(kTile % 8 == 0, "no byte of bits may belong to two tiles");
  in_chunks((count + kTile - 1) / kTile, count, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) action(tile * kTile, std::min(kTile, count - tile * kTile));
  });
}

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_BITS_H_
