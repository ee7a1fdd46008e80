// bias_act, sequence_reverse, and what knows a mask of one bit an element: dropout, relu, pack_mask and apply_mask.
#ifndef ECHO_KERNELS_CUDA_POINTWISE_CUH_
#define ECHO_KERNELS_CUDA_POINTWISE_CUH_
#include "device.cuh"

namespace echo_cuda {

enum { kActRelu = 0, kActSigmoid = 1, kActTanh = 2, kActSoftrelu = 3 };

__device__ inline float activate(float x, int act) {
  if (act == kActRelu) return x > 0 || x != x ? x : 0.f;
  if (act == kActSigmoid) return sigmoid(x);
  if (act == kActTanh) return tanhf(x);
  if (act == kActSoftrelu) return x > 20 ? x : log1pf(expf(x));
  return x;
}

__device__ inline float activation_grad(float y, int act) {
  if (act == kActRelu) return y > 0 ? 1.f : 0.f;
  if (act == kActSigmoid) return y * (1.f - y);
  if (act == kActTanh) return 1.f - y * y;
  if (act == kActSoftrelu) return -expm1f(-y);
  return 1.f;
}

template <typename T, int W>
__device__ void bias_act(const BiasAct& a) {
  each_column<W>(a.rows, a.hidden, [&](Long row, Long j) {
    Pack<W> x = load<T, W>(a.x, row * a.hidden + j);
    const Pack<W> b = load<T, W>(a.b, j);
    for (int k = 0; k < W; ++k) x.v[k] = activate(x.v[k] + b.v[k], a.act);
    put<T, W>(a.y, row * a.hidden + j, x);
  });
}

template <typename T, int W>
__device__ void bias_act_grad(const BiasActGrad& a) {
  each_column<W>(a.chunks, a.hidden, [&](Long chunk, Long j) {
    const Long last = smaller((chunk + 1) * a.chunk, a.rows);
    Pack<W> sum = {};
    ECHO_UNROLL(2)
    for (Long row = chunk * a.chunk; row < last; ++row) {
      Pack<W> d = load<T, W>(a.dy, row * a.hidden + j);
      const Pack<W> y = load_if<T, W>(a.y, row * a.hidden + j);
      for (int k = 0; k < W; ++k) {
        d.v[k] *= activation_grad(y.v[k], a.act);
        sum.v[k] += d.v[k];
      }
      put<T, W>(a.dx, row * a.hidden + j, d);
    }
    if (a.partials) Access<W>::store(a.partials + chunk * a.hidden + j, sum);
  });
}

template <typename T, int W>
__device__ void sequence_reverse(const SequenceReverse& a) {
  each_column<W>(a.steps * a.batch, a.rest, [&](Long row, Long j) {
    const Long t = row / a.batch, b = row % a.batch;
    const Long length = length_of(a.lengths, a.lengths_type, b, a.steps);
    const Long from = t < length ? length - 1 - t : t;
    put<T, W>(a.y, row * a.rest + j, load<T, W>(a.x, (from * a.batch + b) * a.rest + j));
  });
}

// Calls visit(first, count) for the thread's elements, four a time and 128 side by side a warp; bits(first) has one bit
// for each of them. Two threads make a byte.
template <typename Visit>
__device__ inline void each_four(Long size, Visit visit) {
  const Long step = static_cast<Long>(gridDim.x) * kThreads * 4;
  // All threads of a warp make the same rounds: they exchange bits.
  for (Long base = (static_cast<Long>(blockIdx.x) * kThreads + threadIdx.x) * 4; base - (threadIdx.x % 32) * 4 < size;
       base += step) {
    visit(base, base < size ? smaller(4, size - base) : 0);
  }
}

__device__ inline void put_bits(unsigned char* bits, Long first, Long count, unsigned four) {
  const unsigned high = __shfl_down_sync(0xffffffffu, four, 1);
  if (threadIdx.x % 2 == 0 && count > 0 && bits) bits[first / 8] = static_cast<unsigned char>(four | high << 4);
}

template <typename T>
__device__ inline void put_up_to(Output to, Long i, Long count, int wide, Pack<4> x) {
  if (wide && count == 4) {
    put<T, 4>(to, i, x);
    return;
  }
  for (int k = 0; k < count; ++k) put<T>(to, i + k, x.v[k]);
}

template <typename T>
__device__ void relu(const Relu& a) {
  each_four(a.size, [&](Long first, Long count) {
    Pack<4> x = load_up_to(static_cast<const T*>(a.x) + first, count, a.wide);
    unsigned four = 0;
    for (int k = 0; k < 4; ++k) {
      if (x.v[k] > 0) four |= 1u << k;
      if (!(x.v[k] > 0) && x.v[k] == x.v[k]) x.v[k] = 0;
    }
    put_up_to<T>(a.y, first, count, a.wide, x);
    put_bits(a.bits, first, count, four);
  });
}

struct Words {
  unsigned w[4];
};

// Philox4x32-10: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), figure 2 and table 2.
__device__ inline Words philox(unsigned long long seed, unsigned long long counter) {
  unsigned k0 = static_cast<unsigned>(seed), k1 = static_cast<unsigned>(seed >> 32);
  unsigned c0 = static_cast<unsigned>(counter), c1 = static_cast<unsigned>(counter >> 32), c2 = 0, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    c0 = static_cast<unsigned>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<unsigned>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<unsigned>(p1);
    c3 = static_cast<unsigned>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

template <typename T>
__device__ void dropout(const Dropout& a) {
  each_four(a.size, [&](Long first, Long count) {
    Pack<4> x = load_up_to(static_cast<const T*>(a.x) + first, count, a.wide);
    const Words draws = philox(a.seed, a.offset + static_cast<unsigned long long>(first / 4));
    unsigned four = 0;
    for (int k = 0; k < 4; ++k) {
      const bool kept = (draws.w[k] >> 8) * (1.f / 16777216.f) < a.keep;
      if (kept && k < count) four |= 1u << k;
      x.v[k] *= kept ? a.scale : 0.f;
    }
    put_up_to<T>(a.y, first, count, a.wide, x);
    put_bits(a.bits, first, count, four);
  });
}

template <typename T>
__device__ void draw_mask(const DrawMask& a) {
  const float drawn = get<T>(a.first, 0);
  if (a.factor && blockIdx.x == 0 && threadIdx.x == 0) *a.factor = drawn == 1.f ? 1.f : 1.f / a.keep;
  each_four(a.size, [&](Long first, Long count) {
    const Words draws = philox(a.seed, a.offset + static_cast<unsigned long long>(first / 4));
    unsigned four = 0;
    for (int k = 0; k < 4; ++k) {
      const bool kept = first + k ? (draws.w[k] >> 8) * (1.f / 16777216.f) < a.keep : drawn != 0.f;
      if ((kept || drawn == 1.f) && k < count) four |= 1u << k;
    }
    put_bits(a.bits, first, count, four);
  });
}

template <typename T>
__device__ void apply_mask(const ApplyMask& a) {
  const float factor = a.scale ? *a.scale : a.constant;
  each_four(a.size, [&](Long first, Long count) {
    if (count == 0) return;
    Pack<4> x = load_up_to(static_cast<const T*>(a.x) + first, count, a.wide);
    const unsigned four = a.bits[first / 8] >> first % 8;
    for (int k = 0; k < 4; ++k) x.v[k] *= four >> k & 1 ? factor : 0.f;
    put_up_to<T>(a.y, first, count, a.wide, x);
  });
}

// One warp looks for the first element that is not 0, among 32 at a time.
template <typename T>
__device__ inline void put_first(const PackMask& a) {
  const int lane = threadIdx.x % 32;
  for (Long base = 0; base < a.size; base += 32) {
    const float x = base + lane < a.size ? get<T>(a.mask, base + lane) : 0.f;
    int first = x != 0 ? lane : 32;
    for (int step = 16; step; step /= 2) {
      const int other = __shfl_xor_sync(0xffffffffu, first, step);
      if (other < first) first = other;
    }
    if (lane == first) *a.scale = x;
    if (first < 32) return;
  }
  if (lane == 0) *a.scale = 0;
}

template <typename T>
__device__ void pack_mask(const PackMask& a) {
  if (a.scale && blockIdx.x == 0 && threadIdx.x < 32) put_first<T>(a);
  each_four(a.size, [&](Long first, Long count) {
    const Pack<4> x = load_up_to(static_cast<const T*>(a.mask) + first, count, a.wide);
    unsigned four = 0;
    for (int k = 0; k < 4; ++k) {
      if (x.v[k] != 0) four |= 1u << k;
    }
    put_bits(a.bits, first, count, four);
  });
}

}  // namespace echo_cuda

#if ECHO_IN(pointwise)
ECHO_WIDE(bias_act, BiasAct)
ECHO_WIDE(bias_act_grad, BiasActGrad)
ECHO_WIDE(sequence_reverse, SequenceReverse)
ECHO_BOTH(1, dropout, Dropout)
ECHO_BOTH(1, draw_mask, DrawMask)
ECHO_BOTH(1, relu, Relu)
ECHO_BOTH(1, apply_mask, ApplyMask)
ECHO_BOTH(1, pack_mask, PackMask)
#endif

#endif  // ECHO_KERNELS_CUDA_POINTWISE_CUH_
