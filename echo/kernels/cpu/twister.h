// Many words of a std::mt19937 at once, as it would give them one by one: several lanes of its state are made again, and
// tempered, side by side (Matsumoto and Nishimura, ACM TOMACS 1998).
#ifndef ECHO_KERNELS_CPU_TWISTER_H_
#define ECHO_KERNELS_CPU_TWISTER_H_
#include <algorithm>
#include <cstdint>
#include <random>

#include "clones.h"

namespace echo {
namespace kernels {

#ifdef __GLIBCXX__
typedef std::mt19937::result_type Word;  // of 64 bits, of which it uses 32
const int64_t kWords = 624;

static_assert(sizeof(std::mt19937) == (kWords + 1) * sizeof(Word), "the state, and the position in it");

ECHO_INLINE Word twisted(Word word, Word next, Word other) {
  const Word mixed = (word & 0x80000000u) | (next & 0x7fffffffu);
  return other ^ (mixed >> 1) ^ ((mixed & 1u) * 0x9908b0dfu);
}

ECHO_INLINE void refill(Word* x) {
#pragma omp simd safelen(16)
  for (int64_t k = 0; k < kWords - 397; ++k) x[k] = twisted(x[k], x[k + 1], x[k + 397]);
#pragma omp simd safelen(16)
  for (int64_t k = kWords - 397; k < kWords - 1; ++k) x[k] = twisted(x[k], x[k + 1], x[k + 397 - kWords]);
  x[kWords - 1] = twisted(x[kWords - 1], x[0], x[396]);
}

ECHO_INLINE void temper(const Word* __restrict x, uint32_t* __restrict words, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t z = static_cast<uint32_t>(x[i]);
    z ^= z >> 11;
    z ^= (z << 7) & 0x9d2c5680u;
    z ^= (z << 15) & 0xefc60000u;
    words[i] = z ^ (z >> 18);
  }
}

// The next n words.
inline void take_words(std::mt19937* generator, uint32_t* words, int64_t n) {
  Word* const x = reinterpret_cast<Word*>(generator);
  Word& position = x[kWords];
  for (int64_t i = 0; i < n;) {
    if (position >= static_cast<Word>(kWords)) {
      cloned<refill>(x);
      position = 0;
    }
    const int64_t taken = std::min(n - i, kWords - static_cast<int64_t>(position));
    cloned<temper>(x + position, words + i, taken);
    position += static_cast<Word>(taken);
    i += taken;
  }
}
#else
inline void take_words(std::mt19937* generator, uint32_t* words, int64_t n) {
  for (int64_t i = 0; i < n; ++i) words[i] = static_cast<uint32_t>((*generator)());
}
#endif

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_TWISTER_H_
