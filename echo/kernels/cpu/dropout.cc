// Inverted dropout, which leaves a bit for each element instead of a number.
//
// With MXNet's random states it draws what Dropout of MXNet 1.9.1 draws on the CPU (src/operator/nn/dropout-inl.h without
// MKL, src/operator/random/sampler.h): runs of `step` elements, each from a state of its own; an element is kept where a
// uniform number, rounded to float32, is at most `keep`. The uniform numbers are std::generate_canonical's of GCC 4.8: one
// word of the generator for float32, two for float16, which MXNet draws in double.
#include <random>

#include "bits.h"
#include "clones.h"
#include "half.h"
#include "kernels.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

const int64_t kStates = 1024, kLeastRun = 64;  // MXNet's kNumRandomStates and kMinNumRandomPerThread

// What kept elements are multiplied by, in the type of the tensors as in MXNet.
float factor_of(const Call& call, bool half) {
  const float factor = 1.0f / static_cast<float>(call.param("keep"));
  return half ? to_float(to_half(factor)) : factor;
}

// Philox4x32-10 (Salmon et al., SC 2011): the flags of elements `at` to `at + n`; `at` is a multiple of four.
ECHO_INLINE void draw_philox(uint64_t seed, uint64_t offset, float keep, int64_t at, int64_t n, uint8_t* flags) {
  for (int64_t block = 0; block < (n + 3) / 4; ++block) {
    const uint64_t counter = offset + static_cast<uint64_t>(at / 4 + block);
    uint32_t c[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
    uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (int round = 0; round < 10; ++round) {
      const uint64_t first = uint64_t{0xD2511F53} * c[0], second = uint64_t{0xCD9E8D57} * c[2];
      c[0] = static_cast<uint32_t>(second >> 32) ^ c[1] ^ key[0];
      c[1] = static_cast<uint32_t>(second);
      c[2] = static_cast<uint32_t>(first >> 32) ^ c[3] ^ key[1];
      c[3] = static_cast<uint32_t>(first);
      key[0] += 0x9E3779B9u;
      key[1] += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; ++i) flags[4 * block + i] = static_cast<float>(c[i] >> 8) * 0x1p-24f < keep;
  }
}

// Whether uniform numbers, each of one word or (for float16) of two, are at most `keep`.
ECHO_INLINE void compare_words(const uint32_t* __restrict words, float keep, uint8_t* __restrict flags, int64_t n) {
  for (int64_t i = 0; i < n; ++i) flags[i] = static_cast<float>(words[i]) * 0x1p-32f <= keep;
}

ECHO_INLINE void compare_pairs(const uint32_t* __restrict words, float keep, uint8_t* __restrict flags, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double low = words[2 * i], high = words[2 * i + 1];
    flags[i] = static_cast<float>((low + high * 0x1p32) * 0x1p-64) <= keep;
  }
}

// The draws of MXNet: how its elements are dealt to its states.
struct MxnetDraws {
  std::mt19937* states;
  float keep;
  bool half;
  int64_t step;

  // The flags of elements `at` to `at + n`; each state's elements have to be asked for in order.
  void draw(int64_t at, int64_t n, uint8_t* flags) const {
    uint32_t words[2 * kTile];
    const int64_t each = half ? 2 : 1;
    for (int64_t i = 0; i < n;) {
      const int64_t run = (at + i) / step, end = std::min(n, (run + 1) * step - at);
      for (int64_t word = i * each; word < end * each; ++word) words[word] = static_cast<uint32_t>(states[run]());
      i = end;
    }
    half ? cloned<compare_pairs>(words, keep, flags, n) : cloned<compare_words>(words, keep, flags, n);
  }
};

void dropout(const Call& call) {
  const int64_t count = call["n"];
  if (count == 0) return;
  const float keep = static_cast<float>(call.param("keep"));
  const float factor = factor_of(call, call.half());
  const uint64_t seed = static_cast<uint64_t>(call.param("seed"));
  const uint64_t offset = static_cast<uint64_t>(call.param("offset"));
  const Input x(call, "x");
  const Output y(call, "y");
  uint8_t* const bits = static_cast<uint8_t*>(call.out("bits"));
  const int64_t runs = std::min((count + kLeastRun - 1) / kLeastRun, kStates);
  const MxnetDraws mxnet{static_cast<std::mt19937*>(call.raw().random), keep, call.half(), (count + runs - 1) / runs};
  const bool as_mxnet = mxnet.states != nullptr && keep < 1;  // at 1 MXNet draws nothing
  // Eight runs begin at a whole byte of bits, wherever one ends.
  const int64_t task = as_mxnet ? 8 * mxnet.step : kTile;
  in_chunks((count + task - 1) / task, count, [&](int64_t, int64_t begin, int64_t end) {
    float x_buffer[kTile], result[kTile];
    uint8_t flags[kTile];
    const int64_t start = begin * task, size = std::min(end * task, count) - start;
    in_tiles(size, kTile, [&](int64_t from, int64_t n) {
      const int64_t at = start + from;
      if (as_mxnet) {
        mxnet.draw(at, n, flags);
      } else {
        cloned<draw_philox>(seed, offset, keep, at, n, flags);
      }
      float* const place = y.place(at, result);
      multiply_by_flags(x.read(at, n, x_buffer), flags, factor, place, n);
      y.write(at, n, place);
      if (bits != nullptr) pack_bits(flags, bits + at / 8, n);
    });
  });
}

void dropout_grad(const Call& call) { multiply_by_bits(call, factor_of(call, call.half())); }

const CpuKernel kDropout("dropout", dropout);
const CpuKernel kDropoutGrad("dropout_grad", dropout_grad);

}  // namespace
}  // namespace kernels
}  // namespace echo
