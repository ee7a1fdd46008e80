#include "bits.h"

#include <cstring>

#include "clones.h"

namespace echo {
namespace kernels {

namespace {

ECHO_INLINE void multiply(const float* __restrict x, const uint8_t* __restrict flags, float factor, float* __restrict y,
                          int64_t n) {
  for (int64_t j = 0; j < n; ++j) y[j] = x[j] * (flags[j] ? factor : 0.0f);
}

}  // namespace

void multiply_by_flags(const float* x, const uint8_t* flags, float factor, float* y, int64_t n) {
  cloned<multiply>(x, flags, factor, y, n);
}

// Eight flags as one number, on a little-endian machine: the product moves flag i to bit 56 + i.
void pack_bits(const uint8_t* flags, uint8_t* bits, int64_t n) {
  for (int64_t byte = 0; byte < n / 8; ++byte) {
    uint64_t eight;
    std::memcpy(&eight, flags + 8 * byte, sizeof eight);
    bits[byte] = static_cast<uint8_t>((eight * 0x0102040810204080u) >> 56);
  }
  if (n % 8 == 0) return;
  unsigned packed = 0;
  for (int64_t i = n / 8 * 8; i < n; ++i) packed |= static_cast<unsigned>(flags[i]) << (i % 8);
  bits[n / 8] = static_cast<uint8_t>(packed);
}

// The byte eight times, of which flag i keeps bit i.
void unpack_bits(const uint8_t* bits, uint8_t* flags, int64_t n) {
  for (int64_t byte = 0; byte < n / 8; ++byte) {
    const uint64_t eight = (bits[byte] * 0x0101010101010101u) & 0x8040201008040201u;
    std::memcpy(flags + 8 * byte, &eight, sizeof eight);
  }
  for (int64_t i = n / 8 * 8; i < n; ++i) flags[i] = bits[n / 8] & (1u << (i % 8));
}

void multiply_by_bits(const Call& call, float factor, const char* from, const char* to) {
  const int64_t count = call["n"];
  const Input x(call, from);
  const Output y(call, to);
  const uint8_t* const bits = static_cast<const uint8_t*>(call.in("bits"));
  in_tile_chunks(count, [&](int64_t at, int64_t n) {
    float x_buffer[kTile], result[kTile];
    uint8_t kept[kTile];
    unpack_bits(bits + at / 8, kept, n);
    float* const place = y.place(at, result);
    multiply_by_flags(x.read(at, n, x_buffer), kept, factor, place, n);
    y.write(at, n, place);
  });
}

}  // namespace kernels
}  // namespace echo
