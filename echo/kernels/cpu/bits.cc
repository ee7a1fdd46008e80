#include "bits.h"

#include "clones.h"

namespace echo {
namespace kernels {

ECHO_CLONES void multiply_by_flags(const float* __restrict x, const uint8_t* __restrict flags, float factor,
                                   float* __restrict y, int64_t n) {
  for (int64_t j = 0; j < n; ++j) y[j] = x[j] * (flags[j] ? factor : 0.0f);
}

ECHO_CLONES void pack_bits(const uint8_t* __restrict flags, uint8_t* __restrict bits, int64_t n) {
  for (int64_t byte = 0; byte < n / 8; ++byte) {
    unsigned packed = 0;
    for (int i = 0; i < 8; ++i) packed |= static_cast<unsigned>(flags[8 * byte + i]) << i;
    bits[byte] = static_cast<uint8_t>(packed);
  }
  if (n % 8 == 0) return;
  unsigned packed = 0;
  for (int64_t i = n / 8 * 8; i < n; ++i) packed |= static_cast<unsigned>(flags[i]) << (i % 8);
  bits[n / 8] = static_cast<uint8_t>(packed);
}

ECHO_CLONES void unpack_bits(const uint8_t* __restrict bits, uint8_t* __restrict flags, int64_t n) {
  for (int64_t i = 0; i < n; ++i) flags[i] = (bits[i >> 3] >> (i & 7)) & 1;
}

void multiply_by_bits(const Call& call, float factor) {
  const int64_t count = call["n"];
  const Input dy(call, "dy");
  const Output dx(call, "dx");
  const uint8_t* const bits = static_cast<const uint8_t*>(call.in("bits"));
  in_tile_chunks(count, [&](int64_t at, int64_t n) {
    float dy_buffer[kTile], result[kTile];
    uint8_t kept[kTile];
    unpack_bits(bits + at / 8, kept, n);
    float* const place = dx.place(at, result);
    multiply_by_flags(dy.read(at, n, dy_buffer), kept, factor, place, n);
    dx.write(at, n, place);
  });
}

}  // namespace kernels
}  // namespace echo
