#include "digest.h"

#include <cstring>

namespace echo {

static const std::uint64_t kFactor = 0x9E3779B97F4A7C15u;

// Odd factors are invertible: one word that changes always changes a sum.
static void take(std::uint64_t* sum, std::uint64_t word) { *sum = (*sum ^ word) * kFactor; }

// 0 for 0: oneDNN fills up its blocks with zeros.
static std::uint64_t mixed(std::uint32_t word) {
  const std::uint64_t wide = word * kFactor;
  return wide * (wide >> 32);
}

Digest digest_of(const void* data, std::size_t bytes) {
  constexpr int kLanes = 4;  // sums that do not wait for each other
  std::uint64_t lanes[kLanes] = {1, 2, 3, 4}, any_order[kLanes] = {};
  const auto* at = static_cast<const unsigned char*>(data);
  std::size_t left = bytes;
  for (; left >= 8 * kLanes; left -= 8 * kLanes, at += 8 * kLanes) {
    std::uint64_t words[kLanes];
    std::memcpy(words, at, sizeof words);
    for (int lane = 0; lane < kLanes; ++lane) {
      take(&lanes[lane], words[lane]);
      any_order[lane] += mixed(static_cast<std::uint32_t>(words[lane])) + mixed(words[lane] >> 32);
    }
  }
  for (; left; left -= left < 4 ? left : 4, at += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, at, left < 4 ? left : 4);
    take(&lanes[0], word);
    any_order[0] += mixed(word);
  }
  Digest found;
  for (int lane = 0; lane < kLanes; ++lane) {
    take(&found.in_order, lanes[lane]);
    found.any_order += any_order[lane];
  }
  return found;
}

}  // namespace echo
