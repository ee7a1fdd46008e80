// The state of MXNet's random numbers on the CPU, which its interface can set from a seed but not read: std::mt19937, one
// for operators that draw in order and 1024 for those that draw in parallel. Nothing may draw meanwhile.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <random>

#define ECHO_EXPORT extern "C" __attribute__((visibility("default")))

namespace echo {

struct RawContext {  // mxnet::Context
  std::int32_t device_type, device_id;
};

struct RawResource {  // mxnet::Resource
  int type;
  void* var;
  std::int32_t id;
  void* pointer;
};
static_assert(sizeof(RawResource) == 32 && sizeof(std::mt19937) == 5000, "MXNet's random numbers");

struct RawManager {  // mxnet::ResourceManager; in a namespace with a name, or it could have no other classes below
  virtual RawResource Request(RawContext context, const int& type) = 0;
};

}  // namespace echo

using namespace echo;

namespace {

constexpr int kRandom = 0, kParallelRandom = 2, kParallelStates = 1024;
RawManager* (*g_manager)() = nullptr;

std::mt19937* in_order() {  // mshadow::Random begins with it
  return static_cast<std::mt19937*>(g_manager()->Request(RawContext{1, 0}, kRandom).pointer);
}

std::mt19937* parallel() {
  return *static_cast<std::mt19937**>(g_manager()->Request(RawContext{1, 0}, kParallelRandom).pointer);
}

}  // namespace

// Finds what it needs in the loaded libmxnet.so at `path`: the bytes of a state, 0 where that fails.
ECHO_EXPORT std::size_t echo_random_install(const char* path) {
  void* lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (!lib) return 0;
  g_manager = reinterpret_cast<RawManager* (*)()>(dlsym(lib, "_ZN5mxnet15ResourceManager3GetEv"));
  const auto* states = static_cast<const int*>(
      dlsym(lib, "_ZN5mxnet6common6random13RandGeneratorIN7mshadow3cpuEfE16kNumRandomStatesE"));
  if (!g_manager || (states && *states != kParallelStates)) return 0;
  return sizeof(std::mt19937) * (1 + kParallelStates);
}

ECHO_EXPORT void echo_random_save(unsigned char* state) {
  std::memcpy(state, in_order(), sizeof(std::mt19937));
  std::memcpy(state + sizeof(std::mt19937), parallel(), sizeof(std::mt19937) * kParallelStates);
}

ECHO_EXPORT void echo_random_load(const unsigned char* state) {
  std::memcpy(static_cast<void*>(in_order()), state, sizeof(std::mt19937));
  std::memcpy(static_cast<void*>(parallel()), state + sizeof(std::mt19937), sizeof(std::mt19937) * kParallelStates);
}
