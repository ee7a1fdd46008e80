// What the kernels stand on: numbers of two types as float32, four at a time where aligned; sums over a warp; a barrier
// for the whole grid. The tests compile the same kernels for the CPU: ECHO_EMULATED brings the machine's part along.
#ifndef ECHO_KERNELS_CUDA_DEVICE_CUH_
#define ECHO_KERNELS_CUDA_DEVICE_CUH_
#include "arguments.h"

struct half_t {
  unsigned short bits;
};

#ifdef ECHO_EMULATED
#include "cuda_shim.h"
#else
#define ECHO_SPIN()
#define ECHO_PRAGMA(text) _Pragma(#text)
#define ECHO_UNROLL(times) ECHO_PRAGMA(unroll times)
#define ECHO_DYNAMIC_SHARED(name) extern __shared__ __align__(16) float name[]

// PTX knows these conversions on every device; cuda_fp16.h is not there under NVRTC.
__device__ inline float half_to_float(half_t h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
  return f;
}

__device__ inline half_t float_to_half(float f) {
  half_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
  return h;
}

// Reads past the first cache, which does not see what other multiprocessors write; never before a barrier ("memory").
__device__ inline float fresh(const float* p) {
  float f;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(f) : "l"(p) : "memory");
  return f;
}

__device__ inline half_t fresh(const half_t* p) {
  half_t h;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(h.bits) : "l"(p) : "memory");
  return h;
}

__device__ inline float4 fresh4(const float* p) {
  float4 f;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(f.x), "=f"(f.y), "=f"(f.z), "=f"(f.w)
               : "l"(p)
               : "memory");
  return f;
}

__device__ inline ushort4 fresh4(const half_t* p) {
  ushort4 h;
  asm volatile("ld.global.cg.v4.u16 {%0, %1, %2, %3}, [%4];"
               : "=h"(h.x), "=h"(h.y), "=h"(h.z), "=h"(h.w)
               : "l"(p)
               : "memory");
  return h;
}

// The only read in a loop that waits for other blocks. "volatile" here is PTX's: ptxas may remove a loop of weak loads, of
// whatever cache, since a program without races could not tell; it did.
__device__ inline unsigned fresh(const unsigned* p) {
  unsigned u;
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(u) : "l"(p) : "memory");
  return u;
}
#endif

#include "formulas.h"

namespace echo_cuda {

using namespace echo_formulas;

#define ECHO_INFINITY __int_as_float(0x7f800000)

__device__ inline float number(float f) { return f; }
__device__ inline float number(half_t h) { return half_to_float(h); }
__device__ inline void assign(float* to, float f) { *to = f; }
__device__ inline void assign(half_t* to, float f) { *to = float_to_half(f); }

// W numbers side by side, as float32.
template <int W>
struct Pack {
  float v[W];
};

__device__ inline Pack<4> unpack(float4 f) { return {{f.x, f.y, f.z, f.w}}; }
__device__ inline Pack<4> unpack(ushort4 h) {
  return {{half_to_float({h.x}), half_to_float({h.y}), half_to_float({h.z}), half_to_float({h.w})}};
}

template <int W>
struct Access;

template <>
struct Access<1> {
  template <typename T>
  __device__ static Pack<1> load(const T* p) {
    return {{number(*p)}};
  }
  template <typename T>
  __device__ static void store(T* p, Pack<1> x) {
    assign(p, x.v[0]);
  }
};

template <>
struct Access<4> {
  __device__ static Pack<4> load(const float* p) { return unpack(*reinterpret_cast<const float4*>(p)); }
  __device__ static Pack<4> load(const half_t* p) { return unpack(*reinterpret_cast<const ushort4*>(p)); }
  __device__ static void store(float* p, Pack<4> x) {
    *reinterpret_cast<float4*>(p) = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
  }
  __device__ static void store(half_t* p, Pack<4> x) {
    *reinterpret_cast<ushort4*>(p) = make_ushort4(float_to_half(x.v[0]).bits, float_to_half(x.v[1]).bits,
                                                  float_to_half(x.v[2]).bits, float_to_half(x.v[3]).bits);
  }
};

template <typename T, int W>
__device__ inline Pack<W> load(const void* from, Long i) {
  return Access<W>::load(static_cast<const T*>(from) + i);
}

// Zeros where there is no array.
template <typename T, int W>
__device__ inline Pack<W> load_if(const void* from, Long i) {
  if (from) return load<T, W>(from, i);
  Pack<W> zero;
  for (int k = 0; k < W; ++k) zero.v[k] = 0;
  return zero;
}

template <typename T, int W>
__device__ inline void put(Output to, Long i, Pack<W> x) {
  if (!to.data) return;
  T* p = static_cast<T*>(to.data) + i;
  if (to.add) {
    const Pack<W> old = Access<W>::load(static_cast<const T*>(p));
    for (int k = 0; k < W; ++k) x.v[k] += old.v[k];
  }
  Access<W>::store(p, x);
}

template <typename T>
__device__ inline void put(Output to, Long i, float x) {
  put<T, 1>(to, i, Pack<1>{{x}});
}

template <typename T>
__device__ inline float get(const void* from, Long i) {
  return number(static_cast<const T*>(from)[i]);
}

// The first `count` of four numbers, zeros after them.
template <typename T>
__device__ inline Pack<4> load_up_to(const T* from, int count, int wide) {
  if (wide && count >= 4) return Access<4>::load(from);
  Pack<4> x;
  for (int k = 0; k < 4; ++k) x.v[k] = k < count ? number(from[k]) : 0.f;
  return x;
}

template <typename T>
__device__ inline Pack<4> fresh_up_to(const T* from, Long count, int wide) {
  if (wide && count >= 4) return unpack(fresh4(from));
  Pack<4> x;
  for (int k = 0; k < 4; ++k) x.v[k] = k < count ? number(fresh(from + k)) : 0.f;
  return x;
}

__device__ inline float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

__device__ inline Sigmoid sigmoid_gate(float x) {
  const float e = expf(-fabsf(x)), more = 1.f / (1.f + e), less = e * more;
  return {x < 0 ? less : more, less * more, x < 0 ? more : less};
}

// With e = exp(-2 |x|): the derivative is 4 e / (1 + e)^2.
__device__ inline Tanh tanh_gate(float x) {
  const float e = expf(-2.f * fabsf(x)), r = 1.f / (1.f + e);
  return {tanhf(x), 4.f * e * r * r, 2.f * e * r};
}

__device__ inline float warp_sum(float x) {
  for (int lane = 16; lane; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

__device__ inline Long smaller(Long a, Long b) { return a < b ? a : b; }

// lengths[i], no less than 0 and no more than `most`; all of `most` where there are no lengths.
__device__ inline Long length_of(const void* lengths, int type, Long i, Long most) {
  if (!lengths) return most;
  Long n;
  if (type == 4) {
    n = static_cast<const int*>(lengths)[i];
  } else {
    n = static_cast<Long>(type == 2 ? get<half_t>(lengths, i) : get<float>(lengths, i));
  }
  return n < 0 ? 0 : smaller(n, most);
}

// Calls visit(row, column) for the thread's share of a matrix, `W` columns a time.
template <int W, typename Visit>
__device__ inline void each_column(Long rows, Long columns, Visit visit) {
  const Long row_step = static_cast<Long>(gridDim.y) * blockDim.y;
  const Long column_step = static_cast<Long>(gridDim.x) * blockDim.x * W;
  for (Long row = static_cast<Long>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows; row += row_step) {
    Long column = (static_cast<Long>(blockIdx.x) * blockDim.x + threadIdx.x) * W;
    ECHO_UNROLL(1)  // most threads have one round
    for (; column < columns; column += column_step) visit(row, column);
  }
}

// Calls visit(row) with a whole warp for each row.
template <typename Visit>
__device__ inline void each_row(Long rows, Visit visit) {
  Long row = static_cast<Long>(blockIdx.x) * kWarps + threadIdx.x / 32;
  for (; row < rows; row += static_cast<Long>(gridDim.x) * kWarps) visit(row);
}

// Calls visit(column) for the lane's columns of a row. `times`: how often the loop is unrolled.
template <int W, int times = 2, typename Visit>
__device__ inline void each_lane_column(Long columns, Visit visit) {
  ECHO_UNROLL(times)
  for (Long j = (threadIdx.x % 32) * W; j < columns; j += 32 * W) visit(j);
}

// All blocks of the grid run at once; `goal` grows by the number of blocks from one barrier to the next.
__device__ inline void grid_barrier(unsigned* arrived, unsigned goal) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    while (fresh(arrived) < goal) ECHO_SPIN();
    __threadfence();
  }
  __syncthreads();
}

// The part of an array of gates that a gate is, by four bits for each.
__device__ inline Long place_of_gate(int places, int gate) { return places >> 4 * gate & 15; }

// The largest of some numbers, and the sum of exp(x - most) over them, in one pass (Milakov and Gimelshein, Online
// normalizer calculation for softmax, 2018, algorithm 3).
struct Exponentials {
  float most, sum;

  // Of infinities alone exponentials are 0 so far; they have no softmax, which is NaN in the end.
  __device__ static float base(float most) { return most == -ECHO_INFINITY ? 0.f : most; }

  template <int W>
  __device__ void add(const Pack<W>& x) {
    float now = most;
    for (int k = 0; k < W; ++k) now = fmaxf(now, x.v[k]);
    if (now > most) {
      sum *= expf(most - now);
      most = now;
    }
    for (int k = 0; k < W; ++k) sum += expf(x.v[k] - base(most));
  }
};

}  // namespace echo_cuda
// Whether the kernels of a family are compiled: NVRTC takes a family at a time, and other families include its functions.
#ifndef ECHO_IN
#define ECHO_IN(family) ECHO_FAMILY_##family
#endif

// A kernel under its name, for float32 (_f32) and float16 (_f16). `blocks` is how many ptxas has to fit onto a
// multiprocessor: as many as it can without spilling registers.
#ifndef ECHO_ENTRY
#define ECHO_ENTRY(name, Arguments)
#endif

#define ECHO_KERNEL(blocks, name, Arguments, ...)                                                                \
  extern "C" __global__ void __launch_bounds__(echo_cuda::kThreads, blocks) name(const echo_cuda::Arguments a) { \
    __VA_ARGS__;                                                                                                 \
  }                                                                                                              \
  ECHO_ENTRY(name, Arguments)

#define ECHO_BOTH(blocks, name, Arguments)                              \
  ECHO_KERNEL(blocks, name##_f32, Arguments, echo_cuda::name<float>(a)) \
  ECHO_KERNEL(blocks, name##_f16, Arguments, echo_cuda::name<half_t>(a))

// Those that read one number or four at a time.
#define ECHO_WIDE(name, Arguments)                                                                            \
  ECHO_KERNEL(1, name##_f32, Arguments, a.wide ? echo_cuda::name<float, 4>(a) : echo_cuda::name<float, 1>(a)) \
  ECHO_KERNEL(1, name##_f16, Arguments, a.wide ? echo_cuda::name<half_t, 4>(a) : echo_cuda::name<half_t, 1>(a))

#endif  // ECHO_KERNELS_CUDA_DEVICE_CUH_
