// The driver: modules of PTX, whose kernels a library of emulated ones runs (FAKE_CUDA_KERNELS), or none.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "core.h"

using namespace fake;
using std::size_t;

API int fake_cuInit(unsigned) { return devices() ? 0 : kNoDevice; }
API int fake_cuDriverGetVersion(int* to) { return *to = static_cast<int>(env("FAKE_CUDA_DRIVER", 12040)), 0; }
API int fake_cuDeviceGetCount(int* to) { return *to = devices(), 0; }
API int fake_cuDeviceGet(int* to, int number) { return *to = number, number < devices() ? 0 : kNoDevice; }
API int fake_cuDeviceGetName(char* to, int bytes, int) {
  return std::snprintf(to, static_cast<size_t>(bytes), "fake device"), 0;
}
API int fake_cuDeviceTotalMem_v2(size_t* to, int) { return *to = size_t{16} << 30, 0; }
API int fake_cuDeviceGetAttribute(int* to, int which, int) { return *to = attribute(which), devices() ? 0 : kNoDevice; }
API int fake_cuGetErrorName(int code, const char** to) {
  return *to = code == kNoDevice ? "CUDA_ERROR_NO_DEVICE" : "FAKE_ERROR", 0;
}
API int fake_cuGetErrorString(int code, const char** to) {
  return *to = code == kNoDevice ? "no CUDA-capable device is detected (fake)" : "fake error", 0;
}
// The runtime makes a device's primary context current in a thread that calls cudaSetDevice.
static thread_local long t_context = -1;
API int fake_cuCtxGetCurrent(void** to) {
  *to = reinterpret_cast<void*>(t_context >= 0 ? t_context : devices() ? device_of_thread() + 1 : 0);
  return 0;
}
API int fake_cuCtxSetCurrent(void* context) {
  t_context = reinterpret_cast<long>(context);
  if (t_context > 0) device_of_thread() = static_cast<int>(t_context - 1);
  return 0;
}
API int fake_cuCtxGetDevice(int* to) { return *to = device_of_thread(), 0; }
API int fake_cuDevicePrimaryCtxRetain(void** to, int number) {
  return *to = reinterpret_cast<void*>(long{number} + 1), devices() ? 0 : kNoDevice;
}
API int fake_cuPointerGetAttribute(void* to, int which, unsigned long long address) {
  std::lock_guard<std::mutex> lock(state().mutex);
  const Block* block = block_of(reinterpret_cast<void*>(address));
  if (!block) return kInvalid;
  *static_cast<int*>(to) = which == 2 ? 2 : block->device;
  return 0;
}
namespace {
void* emulated() {
  static void* library = [] {
    const char* path = std::getenv("FAKE_CUDA_KERNELS");
    void* opened = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (path && !opened) std::fprintf(stderr, "fake_cuda: %s\n", dlerror());
    return opened;
  }();
  return library;
}
struct Function {
  std::string name;
  size_t bytes = 0;   // of its one parameter; 0 where that is not known
  void* run = nullptr;
  size_t most_shared = 48 << 10;  // more is to be asked for
};
struct Module {
  std::string text;
};
std::atomic<bool> g_emulates{true};
size_t parameter_bytes(const std::string& text, const std::string& name) {
  const size_t at = text.find(name + "_param_0[");
  return at == std::string::npos ? 0 : std::strtoul(text.c_str() + at + name.size() + 9, nullptr, 10);
}
}  // namespace
// For tests, through ctypes: whether launches run emulated kernels. Large models would take minutes.
API void fake_emulate(int on) { g_emulates = on != 0; }

API int fake_cuModuleLoadDataEx(void** to, const void* image, unsigned, int*, void**) {
  count("cuModuleLoadData");
  if (const long code = env("FAKE_CUDA_JIT", 0))  // 222: the driver is too old for this PTX
    if (std::strstr(static_cast<const char*>(image), ".entry ")) return static_cast<int>(code);
  const std::string text(static_cast<const char*>(image)), entry = ".entry ";
  const size_t at = text.find(entry), name = at + entry.size();
  if (at != std::string::npos) count("module of " + text.substr(name, text.find('(', name) - name) + ";");
  *to = new Module{text};
  return 0;
}
API int fake_cuModuleLoadData(void** to, const void* image) {
  return fake_cuModuleLoadDataEx(to, image, 0, nullptr, nullptr);
}
API int fake_cuModuleUnload(void*) { return 0; }
API int fake_cuModuleGetFunction(void** to, Module* module, const char* name) {
  const bool is_ptx = module->text.find(".entry ") != std::string::npos;  // what the fake NVRTC makes has every kernel
  if (is_ptx && module->text.find(std::string(".entry ") + name + "(") == std::string::npos) return 500;
  auto* made = new Function{name, parameter_bytes(module->text, name)};
  if (emulated()) made->run = dlsym(emulated(), (std::string("emulate_") + name).c_str());
  *to = made;
  return 0;
}
API int fake_cuFuncSetAttribute(Function* function, int which, int bytes) {
  if (which != 8 || bytes > 99 << 10) return kInvalid;
  return function->most_shared = static_cast<size_t>(bytes), 0;
}
API int fake_cuFuncGetAttribute(int* to, int which, Function*) { return which == 1 ? *to = 0, 0 : kInvalid; }
API int fake_cuOccupancyMaxActiveBlocksPerMultiprocessor(int* to, void*, int, size_t) { return *to = 1, 0; }
static int launch(Function* function, const unsigned* grid, const unsigned* block, unsigned shared, void** arguments,
                  int at_once) {
  count("driver kernel " + function->name);
  if (const long code = env(at_once ? "FAKE_CUDA_COOPERATIVE" : "FAKE_CUDA_LAUNCH", 0)) return static_cast<int>(code);
  if (int code = check_launch(function->name, grid, block, shared, function->most_shared)) return code;
  // every word of the parameter that looks like an address has to lie in a block
  if (arguments && function->bytes) {
    const auto* words = static_cast<const unsigned long long*>(arguments[0]);
    for (size_t i = 0; i < function->bytes / 8; ++i)
      // (a number of 4 bytes at the end has padding above it, which may hold anything)
      if (words[i] >> 44 && words[i] >> 47 == 0 && (words[i] & 0xffffffffu) > 0xffff) {
        std::unique_lock<std::mutex> lock(state().mutex);
        const bool known = block_of(reinterpret_cast<void*>(words[i])) != nullptr;
        lock.unlock();
        if (!known) complain(function->name + ": word " + std::to_string(i) + " of its argument is no device address");
      }
  }
  if (!function->run || !g_emulates) return 0;
  using Runner = int (*)(void*, void* const*, const unsigned*, const unsigned*, size_t, int, unsigned);
  static const auto runner = reinterpret_cast<Runner>(dlsym(emulated(), "emulation_run"));
  static std::mutex alone;
  std::lock_guard<std::mutex> lock(alone);
  return runner(function->run, arguments, grid, block, shared, at_once, 1) ? 719 : 0;
}
API int fake_cuLaunchKernel(Function* f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, void*, void** arguments, void**) {
  const unsigned grid[] = {x, y, z}, block[] = {bx, by, bz};
  return launch(f, grid, block, shared, arguments, 0);
}
API int fake_cuLaunchCooperativeKernel(Function* f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                                       unsigned bz, unsigned shared, void*, void** arguments) {
  const unsigned grid[] = {x, y, z}, block[] = {bx, by, bz};
  return launch(f, grid, block, shared, arguments, 1);
}
API int fake_cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void*) {
  check_range("cuMemsetD8Async", reinterpret_cast<void*>(to), bytes, true);
  return std::memset(reinterpret_cast<void*>(to), value, bytes), 0;
}
API int fake_cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void*) {
  check_range("cuMemcpyDtoDAsync", reinterpret_cast<void*>(to), bytes, true);
  check_range("cuMemcpyDtoDAsync", reinterpret_cast<void*>(from), bytes, true);
  return std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), 0;
}
