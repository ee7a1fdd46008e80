// One binary for every x86-64, by every compiler: cloned<f>(arguments...) calls f as it was compiled for AVX-512, for AVX2
// with FMA or for the oldest machines, whichever level() says. f and all that it calls have to be ECHO_INLINE, so that
// they are compiled again into each. Put no OpenMP region into one: its body is moved into a function of its own.
//
// Instructions go by features, not by names of processors: those match the models of one vendor.
#ifndef ECHO_KERNELS_CPU_CLONES_H_
#define ECHO_KERNELS_CPU_CLONES_H_
#include "level.h"

#define ECHO_INLINE inline __attribute__((always_inline))

namespace echo {
namespace kernels {

template <auto function>
struct Clones;

template <typename Result, typename... Arguments, Result (*function)(Arguments...)>
struct Clones<function> {
#ifdef ECHO_HAS_LEVELS
  ECHO_AVX512 static Result avx512(Arguments... arguments) { return function(arguments...); }
  ECHO_AVX2 static Result avx2(Arguments... arguments) { return function(arguments...); }
#endif
  static Result portable(Arguments... arguments) { return function(arguments...); }

  static Result call(Arguments... arguments) {
#ifdef ECHO_HAS_LEVELS
    if (level() == Level::kAvx512) return avx512(arguments...);
    if (level() == Level::kAvx2) return avx2(arguments...);
#endif
    return portable(arguments...);
  }
};

template <auto function>
constexpr auto cloned = Clones<function>::call;

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_CLONES_H_
