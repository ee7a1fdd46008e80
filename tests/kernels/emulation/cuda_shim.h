// What CUDA C++ adds to C++, for running the kernels' source on the CPU. A thread of a block is a fiber (fibers.cc),
// which runs until it waits for others; which warp goes on then is drawn at random.
#ifndef ECHO_TESTS_CUDA_SHIM_H_
#define ECHO_TESTS_CUDA_SHIM_H_
#include <cmath>
#include <cstring>

#define __global__
#define __device__
#define __shared__ static  // blocks run one after the other; those after a grid barrier have dynamic shared memory
#define __launch_bounds__(...)
#define ECHO_UNROLL(times)
#define ECHO_DYNAMIC_SHARED(name) float* name = emulation::here->shared

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) ushort4 {
  unsigned short x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) {
  return {x, y, z, w};
}

namespace emulation {

struct Index {
  unsigned x, y, z;
};

// The fiber that runs, and what it sees of its launch.
struct Here {
  Index thread, block, block_size, grid_size;
  float* shared;    // dynamic shared memory of its block
  unsigned* lanes;  // 32 words through which its warp exchanges values
};
extern thread_local Here* here;

void wait_for_warp();
void wait_for_block();
void let_others_run();

inline unsigned exchange(unsigned value, unsigned lane, unsigned from) {
  here->lanes[lane] = value;
  wait_for_warp();
  const unsigned got = here->lanes[from];
  wait_for_warp();
  return got;
}

inline unsigned lane() { return (here->thread.y * here->block_size.x + here->thread.x) % 32; }

template <typename T>
T shuffle(T value, unsigned from) {
  static_assert(sizeof(T) == 4, "a register has 32 bits");
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  bits = exchange(bits, lane(), from);
  std::memcpy(&value, &bits, 4);
  return value;
}

float half_bits_to_float(unsigned short bits);
unsigned short float_to_half_bits(float value);

}  // namespace emulation

#define threadIdx (emulation::here->thread)
#define blockIdx (emulation::here->block)
#define blockDim (emulation::here->block_size)
#define gridDim (emulation::here->grid_size)
#define ECHO_SPIN() emulation::let_others_run()

inline void __syncthreads() { emulation::wait_for_block(); }
inline void __syncwarp() { emulation::wait_for_warp(); }
inline void __threadfence() {}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulation::shuffle(value, emulation::lane() ^ static_cast<unsigned>(mask));
}

template <typename T>
T __shfl_down_sync(unsigned, T value, int delta) {
  const unsigned from = emulation::lane() + static_cast<unsigned>(delta);
  return emulation::shuffle(value, from < 32 ? from : emulation::lane());
}

inline unsigned atomicAdd(unsigned* at, unsigned value) {
  const unsigned old = *at;
  *at += value;
  return old;
}

inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float half_to_float(half_t h) { return emulation::half_bits_to_float(h.bits); }
inline half_t float_to_half(float f) { return {emulation::float_to_half_bits(f)}; }

inline float fresh(const float* p) { return *p; }
inline half_t fresh(const half_t* p) { return *p; }
inline unsigned fresh(const unsigned* p) { return *p; }
inline float4 fresh4(const float* p) { return *reinterpret_cast<const float4*>(p); }
inline ushort4 fresh4(const half_t* p) { return *reinterpret_cast<const ushort4*>(p); }

// The driver finds a kernel by this name.
#define ECHO_ENTRY(name, Arguments)                                                               \
  extern "C" __attribute__((visibility("default"))) void emulate_##name(void* const* arguments) { \
    name(*static_cast<const echo_cuda::Arguments*>(arguments[0]));                                \
  }

#endif  // ECHO_TESTS_CUDA_SHIM_H_
