// float16 to float32 and back, without branches and without instructions that not every machine has.
#ifndef ECHO_KERNELS_CPU_HALF_H_
#define ECHO_KERNELS_CPU_HALF_H_
#include <cstdint>
#include <cstring>

#include "clones.h"

namespace echo {
namespace kernels {

struct Half {
  uint16_t bits;
};

ECHO_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

ECHO_INLINE float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

ECHO_INLINE float to_float(float x) { return x; }

ECHO_INLINE float to_float(Half x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16, rest = (x.bits & 0x7fffu) << 13;
  const uint32_t normal = rest + (112u << 23);                          // from the bias 15 to the bias 127
  const uint32_t special = rest + (224u << 23);                         // infinities and NaNs
  const uint32_t tiny = bits_of(float_of(rest + (113u << 23)) - 6.103515625e-05f);  // zero and subnormals: minus 2^-14
  const uint32_t small = rest < (1u << 23) ? tiny : normal;
  return float_of(sign | (rest >= (31u << 23) ? special : small));
}

// To the nearest, ties to even; too large becomes an infinity.
ECHO_INLINE Half to_half(float x) {
  const uint32_t bits = bits_of(x), sign = bits & 0x80000000u, size = bits ^ sign;
  const uint32_t rounded = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
  const uint32_t tiny = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);  // the addition rounds to multiples of 2^-24
  const uint32_t huge = size > 0x7f800000u ? 0x7e00u : 0x7c00u;  // NaN or infinity
  const uint32_t finite = size < (113u << 23) ? tiny : rounded;
  const uint32_t result = size >= 0x47800000u ? huge : finite;  // from 2^16 on
  return Half{static_cast<uint16_t>(result | (sign >> 16))};
}

template <typename T>
ECHO_INLINE T from_float(float x);

template <>
ECHO_INLINE float from_float<float>(float x) {
  return x;
}

template <>
ECHO_INLINE Half from_float<Half>(float x) {
  return to_half(x);
}

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_HALF_H_
