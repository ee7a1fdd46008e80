// The runtime: memory is host memory, kernels of MXNet are counted and checked, and not run.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "core.h"

using namespace fake;
using std::size_t;

API void** fake___cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
API void fake___cudaRegisterFatBinaryEnd(void**) {}
API void fake___cudaUnregisterFatBinary(void**) {}
API void fake___cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*,
                                     int*) {
  state().kernels[host] = name;
}
API void fake___cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
struct Call {
  unsigned grid[3], block[3];
  size_t shared;
  void* stream;
};
static thread_local std::vector<Call> t_calls;
API unsigned fake___cudaPushCallConfiguration(unsigned long long gxy, unsigned gz, unsigned long long bxy, unsigned bz,
                                              size_t shared, void* stream) {
  t_calls.push_back(
      {{unsigned(gxy), unsigned(gxy >> 32), gz}, {unsigned(bxy), unsigned(bxy >> 32), bz}, shared, stream});
  return 0;
}
API int fake___cudaPopCallConfiguration(unsigned* grid, unsigned* block, size_t* shared, void** stream) {
  const Call call = t_calls.back();
  t_calls.pop_back();
  std::memcpy(grid, call.grid, 12);
  std::memcpy(block, call.block, 12);
  *shared = call.shared;
  *stream = call.stream;
  return 0;
}
struct Dim3 {
  unsigned x, y, z;
};
API int fake_cudaLaunchKernel(const void* host, Dim3 grid, Dim3 block, void**, size_t shared, void*) {
  if (devices() == 0) return fail(kNoDevice);
  const auto found = state().kernels.find(host);
  const std::string name = found == state().kernels.end() ? "?" : found->second;
  count("kernel " + name);
  const unsigned g[] = {grid.x, grid.y, grid.z}, b[] = {block.x, block.y, block.z};
  return fail(check_launch(name, g, b, shared, 99 << 10));
}
API int fake_cudaGetDeviceCount(int* to) {
  *to = devices();
  return devices() ? 0 : fail(kNoDevice);
}
API int fake_cudaGetDevice(int* to) { return *to = device_of_thread(), devices() ? 0 : fail(kNoDevice); }
API int fake_cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return fail(devices() ? kNoSuchDevice : kNoDevice);
  return device_of_thread() = device, 0;
}
API int fake_cudaDeviceGetAttribute(int* to, int which, int) {
  return *to = attribute(which), devices() ? 0 : fail(kNoDevice);
}
struct Properties {  // the start of cudaDeviceProp, the same in 10.x and 11.x
  char name[256], uuid[16], luid[8];
  unsigned mask;
  size_t memory, shared;
  int registers, warp;
  size_t pitch;
  int threads, block[3], grid[3], clock;
  size_t constant;
  int major, minor;
  size_t texture, texture_pitch;
  int overlap, multiprocessors, timeout, integrated, maps, mode;
};
API int fake_cudaGetDeviceProperties(Properties* to, int) {
  if (devices() == 0) return fail(kNoDevice);
  std::memset(to, 0, sizeof *to);
  std::strcpy(to->name, "fake CUDA device");
  to->memory = static_cast<size_t>(env("FAKE_CUDA_BYTES", 16l << 30));
  to->shared = 48 << 10;
  to->registers = 65536;
  to->warp = 32;
  to->threads = 1024;
  to->block[0] = to->block[1] = 1024, to->block[2] = 64;
  to->grid[0] = 0x7fffffff, to->grid[1] = to->grid[2] = 65535;
  to->major = arch() / 10, to->minor = arch() % 10;
  to->multiprocessors = 40;
  return 0;
}
API int fake_cudaDriverGetVersion(int* to) { return *to = 12040, 0; }
API int fake_cudaRuntimeGetVersion(int* to) { return *to = 11020, 0; }
API const char* fake_cudaGetErrorString(int code) {
  return code == kNoDevice ? "no CUDA-capable device is detected (fake)" : code ? "fake error" : "no error";
}
API const char* fake_cudaGetErrorName(int code) {
  return code == kNoDevice ? "cudaErrorNoDevice" : code ? "fakeError" : "cudaSuccess";
}
API int fake_cudaGetLastError() {
  const int was = last_error();
  last_error() = 0;
  return was;
}
API int fake_cudaPeekAtLastError() { return last_error(); }
API int fake_cudaMemGetInfo(size_t* free, size_t* total) {
  if (devices() == 0) return fail(kNoDevice);
  *total = static_cast<size_t>(env("FAKE_CUDA_BYTES", 16l << 30));
  *free = *total - std::min(*total, state().used);
  return 0;
}
API int fake_cudaMalloc(void** to, size_t bytes) {
  if (devices() == 0) return fail(kNoDevice);
  if (bytes == 0) return *to = nullptr, 0;
  std::lock_guard<std::mutex> lock(state().mutex);
  if (state().used + bytes > static_cast<size_t>(env("FAKE_CUDA_BYTES", 16l << 30))) return fail(kNoMemory);
  const size_t rounded = (bytes + 511) / 512 * 512;
  char* memory = static_cast<char*>(std::aligned_alloc(512, rounded));
  if (!memory) return fail(kNoMemory);
  if (!getenv("FAKE_CUDA_LAZY")) std::memset(memory, 0, bytes);
  state().blocks[memory] = {bytes, device_of_thread()};
  state().used += bytes;
  state().peak = std::max(state().peak, state().used);
  ++state().counts["cudaMalloc"];
  *to = memory;
  return 0;
}
API int fake_cudaFree(void* memory) {
  if (!memory) return 0;
  std::lock_guard<std::mutex> lock(state().mutex);
  const auto found = state().blocks.find(static_cast<char*>(memory));
  if (found == state().blocks.end()) return fail(kInvalid);
  state().used -= found->second.bytes;
  state().blocks.erase(found);
  std::free(memory);
  return 0;
}
API int fake_cudaMallocPitch(void** to, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return fake_cudaMalloc(to, *pitch * height);
}
API int fake_cudaHostAlloc(void** to, size_t bytes, unsigned) {
  return *to = std::aligned_alloc(512, (bytes + 511) / 512 * 512), 0;
}
API int fake_cudaFreeHost(void* memory) { return std::free(memory), 0; }
static int transfer(const char* what, void* to, const void* from, size_t bytes, int kind) {
  if (devices() == 0) return fail(kNoDevice);
  if (bytes == 0) return 0;
  check_range(what, to, bytes, kind == 1 || kind == 3);
  check_range(what, from, bytes, kind == 2 || kind == 3);
  std::memmove(to, from, bytes);
  count(what);
  return 0;
}
API int fake_cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  return transfer("cudaMemcpy", to, from, bytes, kind);
}
API int fake_cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void*) {
  return transfer("cudaMemcpyAsync", to, from, bytes, kind);
}
API int fake_cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void*) {
  return transfer("cudaMemcpyPeerAsync", to, from, bytes, 3);
}
API int fake_cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                               size_t height, int kind, void*) {
  int code = 0;
  for (size_t row = 0; row < height && !code; ++row)
    code = transfer("cudaMemcpy2DAsync", static_cast<char*>(to) + row * to_pitch,
                    static_cast<const char*>(from) + row * from_pitch, width, kind);
  return code;
}
API int fake_cudaMemset(void* to, int value, size_t bytes) {
  if (devices() == 0) return fail(kNoDevice);
  if (bytes) check_range("cudaMemset", to, bytes, true);
  std::memset(to, value, bytes);
  return 0;
}
API int fake_cudaMemsetAsync(void* to, int value, size_t bytes, void*) {
  count("cudaMemsetAsync");
  return fake_cudaMemset(to, value, bytes);
}
API int fake_cudaStreamCreate(void** to) { return *to = token(), devices() ? 0 : fail(kNoDevice); }
API int fake_cudaEventCreateWithFlags(void** to, unsigned) { return *to = token(), devices() ? 0 : fail(kNoDevice); }
API int fake_cudaDeviceCanAccessPeer(int* to, int, int) { return *to = 0, 0; }
API int fake_cudaDeviceGetP2PAttribute(int* to, int, int, int) { return *to = 0, 0; }
API int fake_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* to, const void*, int, size_t, unsigned) {
  return *to = 2, 0;
}
struct FunctionAttributes {
  size_t shared, constant, local;
  int threads, registers, ptx, binary, ca, dynamic, carveout;
};
API int fake_cudaFuncGetAttributes(FunctionAttributes* to, const void*) {
  *to = {0, 0, 0, 1024, 32, arch(), arch(), 0, 48 << 10, -1};
  return 0;
}
