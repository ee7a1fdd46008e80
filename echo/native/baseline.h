// Before every source file: which versions of glibc's and libstdc++'s functions the libraries ask for.
//
// A library built here runs on glibc 2.28 and the libstdc++ of GCC 8 (manylinux_2_28), whatever the machine that builds
// it has. Functions that later releases gave a second version are asked for by their first one, which is still there.
// glibc 2.34 moved libdl and libpthread into libc and gave their functions new versions of the same code; exp since 2.29
// and condition_variable::wait since GCC 12 differ in errno and in noexcept alone, which nothing here looks at.
//
// Why not -static-libstdc++: the hook hands shared_ptr, std::function, dmlc::any and strings to libmxnet, whose libstdc++
// is the machine's, and MXNet's exceptions pass through the hook. With one libstdc++ in the process there is one
// allocator, one set of type_info and one unwinder for both; with two, each of these would have to agree by luck.
#ifndef ECHO_NATIVE_BASELINE_H_
#define ECHO_NATIVE_BASELINE_H_

#define ECHO_ASK_FOR(symbol, version) __asm__(".symver " symbol "," symbol "@" version)

ECHO_ASK_FOR("dladdr", "GLIBC_2.2.5");
ECHO_ASK_FOR("dlclose", "GLIBC_2.2.5");
ECHO_ASK_FOR("dlerror", "GLIBC_2.2.5");
ECHO_ASK_FOR("dlinfo", "GLIBC_2.3.3");
ECHO_ASK_FOR("dlopen", "GLIBC_2.2.5");
ECHO_ASK_FOR("dlsym", "GLIBC_2.2.5");
ECHO_ASK_FOR("exp", "GLIBC_2.2.5");
ECHO_ASK_FOR("pthread_rwlock_rdlock", "GLIBC_2.2.5");
ECHO_ASK_FOR("pthread_rwlock_unlock", "GLIBC_2.2.5");
ECHO_ASK_FOR("pthread_rwlock_wrlock", "GLIBC_2.2.5");
ECHO_ASK_FOR("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE", "GLIBCXX_3.4.11");

#undef ECHO_ASK_FOR

#endif  // ECHO_NATIVE_BASELINE_H_
