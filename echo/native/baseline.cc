// What headers of newer releases refer to and older libraries lack, for each library by itself (baseline.h says why).
#include <new>

// glibc 2.32 tells shared_ptr whether there is one thread, so that it may count without atomic instructions. There
// always may be others here: MXNet's.
// NOLINTBEGIN(bugprone-reserved-identifier): the name that glibc gives it
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;
// NOLINTEND(bugprone-reserved-identifier)

// GCC 11 throws this where the number of elements is too large for memory (GLIBCXX_3.4.29).
extern "C" [[noreturn]] __attribute__((visibility("hidden"))) void echo_throw_bad_array_new_length() __asm__(
    "_ZSt28__throw_bad_array_new_lengthv");
void echo_throw_bad_array_new_length() { throw std::bad_array_new_length(); }
