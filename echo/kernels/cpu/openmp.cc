// The functions of libgomp that GCC's OpenMP regions call, handed on to the libgomp of the machine; without one, each
// region runs in the thread that meets it.
//
// A wheel may link only what every machine has, and libgomp is not among that. A copy of libgomp inside of the wheel
// would be a second set of threads alongside MXNet's, which needs the machine's libgomp.so.1 itself: under that name it is
// found here, loaded by MXNet or before it, and the cores are shared out once. Regions that call anything else of libgomp
// (those of other releases of GCC) link with it as they did.
#if defined(_OPENMP) && defined(__GNUC__) && !defined(__clang__)
#include <dlfcn.h>

namespace {

// What libgomp calls in each thread.
using Region = void (*)(void*);

struct Libgomp {
  void (*parallel)(Region, void*, unsigned, unsigned) = nullptr;
  void (*barrier)() = nullptr;
  bool (*start)(long, long, long, long, long*, long*) = nullptr;
  bool (*next)(long*, long*) = nullptr;
  void (*end)() = nullptr;
  int (*thread)() = nullptr;
  int (*threads)() = nullptr;
  bool whole = false;  // all of them were found: one thread never sees functions of two kinds

  Libgomp() {
    void* const library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return;
    whole = find(library, "GOMP_parallel", &parallel) && find(library, "GOMP_barrier", &barrier) &&
            find(library, "GOMP_loop_nonmonotonic_dynamic_start", &start) &&
            find(library, "GOMP_loop_nonmonotonic_dynamic_next", &next) &&
            find(library, "GOMP_loop_end_nowait", &end) && find(library, "omp_get_thread_num", &thread) &&
            find(library, "omp_get_num_threads", &threads);
  }

  template <typename Pointer>
  static bool find(void* library, const char* name, Pointer* to) {
    *to = reinterpret_cast<Pointer>(dlsym(library, name));
    return *to != nullptr;
  }
};

// Found when this library is loaded, as if it were linked.
const Libgomp libgomp;

}  // namespace

#define ECHO_HIDDEN __attribute__((visibility("hidden")))

extern "C" {

ECHO_HIDDEN void GOMP_parallel(Region region, void* data, unsigned threads, unsigned flags) {
  if (libgomp.whole) return libgomp.parallel(region, data, threads, flags);
  region(data);
}

ECHO_HIDDEN void GOMP_barrier() {
  if (libgomp.whole) libgomp.barrier();
}

// One thread is given the whole loop at once.
ECHO_HIDDEN bool GOMP_loop_nonmonotonic_dynamic_start(long begin, long end, long step, long chunk, long* from,
                                                      long* to) {
  if (libgomp.whole) return libgomp.start(begin, end, step, chunk, from, to);
  *from = begin;
  *to = end;
  return step > 0 ? begin < end : begin > end;
}

ECHO_HIDDEN bool GOMP_loop_nonmonotonic_dynamic_next(long* from, long* to) {
  return libgomp.whole && libgomp.next(from, to);
}

ECHO_HIDDEN void GOMP_loop_end_nowait() {
  if (libgomp.whole) libgomp.end();
}

ECHO_HIDDEN int omp_get_thread_num() { return libgomp.whole ? libgomp.thread() : 0; }

ECHO_HIDDEN int omp_get_num_threads() { return libgomp.whole ? libgomp.threads() : 1; }

}  // extern "C"
#endif
