// Which instructions the kernels use: the most that both the processor and `level` in ECHO_DEBUG allow.
#ifndef ECHO_KERNELS_CPU_LEVEL_H_
#define ECHO_KERNELS_CPU_LEVEL_H_

// Attributes of functions for a level; they may be called where level() is that one.
#if defined(__x86_64__) && defined(__GNUC__)
#define ECHO_HAS_LEVELS
#define ECHO_AVX512 __attribute__((target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi,bmi2")))
#define ECHO_AVX2 __attribute__((target("avx2,fma,bmi,bmi2")))
#endif

namespace echo {
namespace kernels {

enum class Level { kPortable, kAvx2, kAvx512 };

// The environment variable, "avx512", "avx2" or "portable", is read once. What the processor lacks is not used.
Level level();

// By the name that the variable has for it.
const char* level_name(Level level);

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_LEVEL_H_
