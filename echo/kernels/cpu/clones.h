// One binary for every x86-64: a function marked ECHO_CLONES is compiled for AVX-512, AVX2 and the oldest machines, and
// the loader picks one. What it calls has to be inlined (ECHO_INLINE), or is compiled for the oldest machines alone. Put no
// OpenMP region into one: its body is moved into a function of its own.
//
// ECHO_AVX512 marks a function that has a variant of its own for AVX-512; has_avx512 says whether it may be called.
#ifndef ECHO_KERNELS_CPU_CLONES_H_
#define ECHO_KERNELS_CPU_CLONES_H_

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define ECHO_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define ECHO_AVX512 __attribute__((target("arch=x86-64-v4")))
inline bool has_avx512() { return __builtin_cpu_supports("x86-64-v4"); }
#else
#define ECHO_CLONES
#define ECHO_AVX512
inline bool has_avx512() { return false; }
#endif

#define ECHO_INLINE inline __attribute__((always_inline))

#endif  // ECHO_KERNELS_CPU_CLONES_H_
