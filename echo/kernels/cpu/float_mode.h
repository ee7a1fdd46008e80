// Subnormal numbers taken for zero: processors of Intel need some 150 cycles for an instruction that meets one. Where
// gradients vanish over the steps of a recurrent layer, most of them are subnormal on their way to zero.
#ifndef ECHO_KERNELS_CPU_FLOAT_MODE_H_
#define ECHO_KERNELS_CPU_FLOAT_MODE_H_
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace echo {
namespace kernels {

using FloatMode = unsigned;

constexpr FloatMode kSubnormalsAreZero = 0x8040;  // in results and in operands

// How the calling thread computes.
inline FloatMode float_mode() {
#if defined(__SSE__)
  return _mm_getcsr();
#else
  return 0;
#endif
}

inline void set_float_mode([[maybe_unused]] FloatMode mode) {
#if defined(__SSE__)
  _mm_setcsr(mode);
#endif
}

// The calling thread computes in this mode while the object is there.
class FloatModeScope {
 public:
  explicit FloatModeScope(FloatMode mode) : before_(float_mode()) { set_float_mode(mode); }
  ~FloatModeScope() { set_float_mode(before_); }
  FloatModeScope(const FloatModeScope&) = delete;
  FloatModeScope& operator=(const FloatModeScope&) = delete;

 private:
  const FloatMode before_;
};

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_FLOAT_MODE_H_
