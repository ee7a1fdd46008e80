// Which elements a Dropout keeps.
//
// With MXNet's random states it draws what Dropout of MXNet 1.9.1 draws on the CPU (src/operator/nn/dropout-inl.h without
// MKL, src/operator/random/sampler.h): runs of `step` elements, each from a state of its own; an element is kept where a
// uniform number, rounded to float32, is at most `keep`. The uniform numbers are std::generate_canonical's of GCC 4.8: one
// word of the generator for float32, two for float16, which MXNet draws in double.
#ifndef ECHO_KERNELS_CPU_DRAWS_H_
#define ECHO_KERNELS_CPU_DRAWS_H_
#include <random>

#include "bits.h"
#include "clones.h"
#include "half.h"
#include "parallel.h"
#include "twister.h"
#include "view.h"

namespace echo {
namespace kernels {

const int64_t kStates = 1024, kLeastRun = 64;  // MXNet's kNumRandomStates and kMinNumRandomPerThread

// What kept elements are multiplied by, in the type of the tensors as in MXNet.
inline float factor_of(const Call& call) {
  const float factor = 1.0f / static_cast<float>(call.param("keep"));
  return call.half() ? to_float(to_half(factor)) : factor;
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

// The draws of a Dropout of `count` elements: as of MXNet, where its states are there, which deals elements to them in
// runs of `step`. So many elements from the first on have been drawn before.
class Draws {
 public:
  Draws(const Call& call, int64_t count, int64_t before = 0)
      : states_(static_cast<std::mt19937*>(call.raw().random)),
        keep_(static_cast<float>(call.param("keep"))),
        seed_(static_cast<uint64_t>(call.param("seed"))),
        offset_(static_cast<uint64_t>(call.param("offset"))),
        count_(count),
        before_(before),
        half_(call.half()) {
    const int64_t runs = std::max<int64_t>(std::min((count + kLeastRun - 1) / kLeastRun, kStates), 1);
    step_ = (count + runs - 1) / runs;
    as_mxnet_ = states_ != nullptr && keep_ < 1;  // at 1 MXNet draws nothing
  }

  // action(at, n, flags) for tiles of all elements, on several threads; offsets are multiples of eight.
  template <typename Action>
  void in_tile_chunks(const Action& action) const {
    if (count_ == 0) return;
    // Eight runs begin at a whole byte of bits, wherever one ends.
    const int64_t task = as_mxnet_ ? 8 * step_ : kTile;
    in_chunks((count_ + task - 1) / task, count_, [&](int64_t, int64_t begin, int64_t end) {
      uint8_t flags[kTile];
      const int64_t start = begin * task, size = std::min(end * task, count_) - start;
      in_tiles(size, kTile, [&](int64_t from, int64_t n) {
        draw(start + from, n, flags);
        action(start + from, n, flags);
      });
    });
  }

 private:
  // The flags of elements `at` to `at + n`; each state's elements have to be asked for in order.
  void draw(int64_t at, int64_t n, uint8_t* flags) const {
    if (!as_mxnet_) return cloned<draw_philox>(seed_, offset_, keep_, at, n, flags);
    uint32_t words[2 * kTile];
    const int64_t each = half_ ? 2 : 1, known = std::min(n, std::max<int64_t>(before_ - at, 0));
    std::fill_n(words, known * each, 0u);
    for (int64_t i = known; i < n;) {
      const int64_t run = (at + i) / step_, end = std::min(n, (run + 1) * step_ - at);
      take_words(states_ + run, words + i * each, (end - i) * each);
      i = end;
    }
    half_ ? cloned<compare_pairs>(words, keep_, flags, n) : cloned<compare_words>(words, keep_, flags, n);
  }

  std::mt19937* const states_;
  const float keep_;
  const uint64_t seed_, offset_;
  const int64_t count_, before_;
  const bool half_;
  int64_t step_;
  bool as_mxnet_;
};

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_DRAWS_H_
