// A CUDA device that is host memory: what all parts of it share. `libraries.py` makes of it every library that a CUDA wheel
// of MXNet needs, with their names and version nodes; `__main__.py` runs tests on it.
//
//   FAKE_CUDA_DEVICES=n     0 (default): every call answers "no device"
//   FAKE_CUDA_ARCH=80       compute capability
//   FAKE_CUDA_BYTES=n       memory of a device (default 16 GiB); cudaMalloc fails beyond it
//   FAKE_CUDA_LAZY=1        memory is not cleared, so that unwritten pages cost nothing
//   FAKE_CUDA_WORKSPACE=n   bytes that cuDNN's convolutions ask for (default 1 MiB)
//   FAKE_CUDA_GEMM=1        products are computed
//   FAKE_CUDA_KERNELS=path  a library of emulated kernels (tests/kernels/cuda_emulation.py), which launches run
//   FAKE_CUDA_DRIVER=n      the version that the driver says (default 12040)
//   FAKE_CUDA_JIT=code      what the driver answers for PTX with kernels (222: it is too old)
//   FAKE_CUDA_LAUNCH=code   what it answers to a launch of such a kernel, FAKE_CUDA_COOPERATIVE=code to a cooperative one
#pragma once
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace fake {

constexpr int kInvalid = 1, kNoMemory = 2, kBadConfiguration = 9, kNoDevice = 100, kNoSuchDevice = 101;

struct Block {
  std::size_t bytes;
  int device;
};

struct State {
  std::mutex mutex;
  std::map<char*, Block> blocks;
  std::map<const void*, std::string> kernels;  // of MXNet's, by their host functions
  std::map<std::string, long> counts;
  std::size_t used = 0, peak = 0;
  std::vector<std::string> complaints;
};

State& state();
long env(const char* name, long otherwise);
int devices();
int arch();
int& device_of_thread();
int& last_error();
int fail(int code);
void count(const std::string& name);
void complain(const std::string& text);
const Block* block_of(const void* address);  // with the lock held
void check_range(const char* what, const void* address, std::size_t bytes, bool must_be_device);
void* token();  // a handle, never null
int attribute(int which);
int check_launch(const std::string& name, const unsigned* grid, const unsigned* block, std::size_t shared,
                 std::size_t most);

}  // namespace fake
