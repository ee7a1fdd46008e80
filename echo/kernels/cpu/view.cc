#include "view.h"

#include <cstring>

#include "clones.h"
#include "half.h"

namespace echo {
namespace kernels {
namespace {

ECHO_INLINE void widen(const Half* __restrict from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
}

ECHO_INLINE void narrow(const float* __restrict from, Half* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_half(from[i]);
}

ECHO_INLINE void narrow_sum(const float* __restrict from, Half* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_half(to_float(to[i]) + from[i]);
}

ECHO_INLINE void add(float* __restrict y, const float* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

}  // namespace

void add_to(float* y, const float* x, int64_t n) { cloned<add>(y, x, n); }

Input::Input(const Call& call, const char* name) : data_(call.in(name)), half_(call.in_dtype(name) == ECHO_FLOAT16) {}

const float* Input::read(int64_t offset, int64_t n, float* buffer) const {
  if (data_ == nullptr) {
    std::fill_n(buffer, n, 0.0f);
    return buffer;
  }
  if (!half_) return static_cast<const float*>(data_) + offset;
  cloned<widen>(static_cast<const Half*>(data_) + offset, buffer, n);
  return buffer;
}

Output::Output(const Call& call, const char* name)
    : data_(call.out(name)), half_(call.out_dtype(name) == ECHO_FLOAT16), add_(call.adds(name)) {}

float* Output::place(int64_t offset, float* buffer) const {
  return data_ == nullptr || half_ || add_ ? buffer : static_cast<float*>(data_) + offset;
}

void Output::write(int64_t offset, int64_t n, const float* values) const {
  if (data_ == nullptr) return;
  if (half_) {
    Half* const at = static_cast<Half*>(data_) + offset;
    return add_ ? cloned<narrow_sum>(values, at, n) : cloned<narrow>(values, at, n);
  }
  float* const at = static_cast<float*>(data_) + offset;
  if (add_) return add_to(at, values, n);
  if (at != values && n > 0) std::memcpy(at, values, n * sizeof(float));
}

Lengths::Lengths(const Call& call, int64_t most)
    : data_(call.in("lengths")), dtype_(call.in_dtype("lengths")), most_(most) {}

int64_t Lengths::operator[](int64_t index) const {
  if (data_ == nullptr) return most_;
  if (dtype_ == ECHO_INT32) {
    return std::min<int64_t>(std::max<int64_t>(static_cast<const int32_t*>(data_)[index], 0), most_);
  }
  const float value = dtype_ == ECHO_FLOAT16 ? to_float(static_cast<const Half*>(data_)[index])
                                             : static_cast<const float*>(data_)[index];
  if (!(value > 0)) return 0;  // a NaN too
  return value >= static_cast<float>(most_) ? most_ : static_cast<int64_t>(value);
}

}  // namespace kernels
}  // namespace echo
