// exp, tanh, the logistic function and softplus in float32, without branches, so that loops over them are vectorised.
// Within 3 ulp of the true value; a NaN stays a NaN, infinities give the limits.
#ifndef ECHO_KERNELS_CPU_MATH_H_
#define ECHO_KERNELS_CPU_MATH_H_
#include <cstdint>
#include <cstring>

#include "clones.h"
#include "formulas.h"

namespace echo {
namespace kernels {

// x as n ln 2 + r with |r| <= ln 2 / 2: exp(r) - 1, and 2^(n + shift) for n + shift from -126 to 127.
ECHO_INLINE float reduced_expm1(float x, int shift, float* power) {
  const float round = 12582912.0f;  // 1.5 * 2^23: added, it leaves the nearest integer in the lowest bits
  const float t = x * 1.44269504088896341f + round;
  const float n = t - round;
  const float r = (x - n * 0.693359375f) - n * -2.12194440054690583e-4f;  // ln 2 in two parts, the first exact times n
  uint32_t bits;
  std::memcpy(&bits, &t, sizeof bits);
  bits = (bits << 23) + (static_cast<uint32_t>(127 + shift) << 23);
  std::memcpy(power, &bits, sizeof bits);
  float p = 0x1.6d720ep-10f;  // minimax: within 2e-8 of exp(r) - 1, relatively
  p = p * r + 0x1.12266ap-7f;
  p = p * r + 0x1.5554c8p-5f;
  p = p * r + 0x1.5554b2p-3f;
  p = p * r + 0.5f;
  return r + r * r * p;
}

// Results below 2^-125 are 0.
ECHO_INLINE float exp_of(float x) {
  const float least = -86.6433975f, most = 88.7228394f;
  const float low = x < least ? least : x;
  const float clamped = low > most ? most : low;
  float power;
  const float p = reduced_expm1(clamped, -1, &power);
  const float result = (power + power * p) * 2.0f;  // in two steps: 2^128 is no float
  const float bounded = x > most ? __builtin_inff() : result;
  return x < least ? 0.0f : bounded;
}

// The same for x <= 0, or NaN.
ECHO_INLINE float exp_below(float x) {
  const float least = -86.6433975f;
  const float clamped = x < least ? least : x;
  float power;
  const float p = reduced_expm1(clamped, 0, &power);
  const float result = power + power * p;
  return x < least ? 0.0f : result;
}

// exp(x) - 1 for x from 0 to 87, or NaN.
ECHO_INLINE float expm1_of(float x) {
  float power;
  const float p = reduced_expm1(x, 0, &power);
  return power * p + (power - 1.0f);
}

ECHO_INLINE float tanh_of(float x) {
  const float size = __builtin_fabsf(x);
  const float clamped = size > 9.1f ? 9.1f : size;  // from there on tanh is 1
  const float e = expm1_of(clamped + clamped);
  return __builtin_copysignf(e / (e + 2.0f), x);
}

ECHO_INLINE float sigmoid_of(float x) {
  const float e = exp_below(-__builtin_fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

using echo_formulas::Sigmoid;
using echo_formulas::Tanh;

// The value, to the nearest float: exactly 1 where it comes near, so that differences from it vanish there.
ECHO_INLINE float rounded(const Tanh& gate) {
  return gate.rest < 0.5f ? __builtin_copysignf(1.0f - gate.rest, gate.value) : gate.value;
}

ECHO_INLINE Sigmoid sigmoid_gate(float x) {
  const float e = exp_below(-__builtin_fabsf(x)), more = 1.0f / (1.0f + e);
  return {(x < 0.0f ? e : 1.0f) * more, e * more * more, (x < 0.0f ? 1.0f : e) * more};
}

// With r = 1 / (1 + exp(2 |x|)) tanh |x| is 1 - 2 r, and its derivative 4 r (1 - r): 0 where r would be below 2^-126, since
// large weights would make something of even the least number.
ECHO_INLINE Tanh tanh_gate(float x) {
  const float size = __builtin_fabsf(x);
  const float clamped = size > 43.5f ? 43.5f : size;
  const float e = expm1_of(clamped + clamped), r = 1.0f / (2.0f + e);
  return {__builtin_copysignf(e * r, x), size > 43.5f ? 0.0f : r * (4.0f - 4.0f * r), 2.0f * r};
}

// The same gates in one number each, to be kept. That of a logistic function is the smaller of its value and 1 - value,
// negative where that is the latter.
ECHO_INLINE float sigmoid_code(float x) {
  const float e = exp_below(-__builtin_fabsf(x));
  return __builtin_copysignf(e / (1.0f + e), -x);
}

ECHO_INLINE Sigmoid sigmoid_decoded(float code) {
  const float half = __builtin_copysignf(0.5f, code), size = __builtin_fabsf(code);
  return {(0.5f - half) + code, size - size * size, (0.5f + half) - code};
}

// That of tanh is its value up to a half, after it r times 2^126, which is above 1, and 1 where the derivative is 0.
ECHO_INLINE float tanh_code(float x) {
  const float size = __builtin_fabsf(x);
  const float clamped = size > 43.5f ? 43.5f : size;
  const float e = expm1_of(clamped + clamped), r = 1.0f / (2.0f + e);
  const float code = r < 0.25f ? r * 0x1p126f : e * r;
  return __builtin_copysignf(size > 43.5f ? 1.0f : code, x);
}

ECHO_INLINE Tanh tanh_decoded(float code) {
  const float size = __builtin_fabsf(code);
  const float r = size > 1.0f ? size * 0x1p-126f : 0.5f - 0.5f * size;
  return {__builtin_copysignf(size > 1.0f ? 1.0f - 2.0f * r : size, code), r * (4.0f - 4.0f * r), 2.0f * r};
}

// log(1 + exp(x))
ECHO_INLINE float softplus_of(float x) {
  const float e = exp_below(-__builtin_fabsf(x));
  const float s = e / (2.0f + e), z = s * s;  // log(1 + e) = 2 artanh(s), s <= 1/3; the next term is below 2e-9
  float p = 1.0f / 15;
  p = p * z + 1.0f / 13;
  p = p * z + 1.0f / 11;
  p = p * z + 1.0f / 9;
  p = p * z + 1.0f / 7;
  p = p * z + 1.0f / 5;
  p = p * z + 1.0f / 3;
  return (x > 0.0f ? x : 0.0f) + 2.0f * (s + s * z * p);
}

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_MATH_H_
