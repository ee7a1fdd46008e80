// The free chunks of MXNet's storage planner: a multimap from size to chunk in which equal sizes keep their order.
#pragma once
#include <cstdint>
#include <vector>

namespace echo {

// Sizes are numbers of an ascending list that is known beforehand, so each has a queue, and a bit that says whether
// anything is in it. No memory is allocated once the queues have grown.
class FreeChunks {
 public:
  static constexpr std::int32_t kNone = -1;

  void set_sizes(std::int32_t count) {
    queues_.resize(count);
    filled_.assign(count / 64 + 1, 0);
  }
  void clear() {
    for (std::int32_t size = at_least(0); size != kNone; size = at_least(size + 1)) empty(size);
  }
  void add(std::int32_t size, std::int32_t chunk) {
    queues_[size].chunks.push_back(chunk);
    filled_[size / 64] |= std::uint64_t{1} << size % 64;
  }
  // The smallest size from this one upwards of which a chunk is free, or kNone.
  std::int32_t at_least(std::int32_t size) const {
    std::size_t word = size / 64;
    if (word >= filled_.size()) return kNone;
    std::uint64_t bits = filled_[word] & ~std::uint64_t{0} << size % 64;
    while (!bits)
      if (++word == filled_.size())
        return kNone;
      else
        bits = filled_[word];
    return static_cast<std::int32_t>(64 * word) + __builtin_ctzll(bits);
  }
  // The largest size below this one of which a chunk is free, or kNone.
  std::int32_t below(std::int32_t size) const {
    std::size_t word = size / 64;
    std::uint64_t bits = filled_[word] & ((std::uint64_t{1} << size % 64) - 1);
    while (!bits)
      if (word-- == 0)
        return kNone;
      else
        bits = filled_[word];
    return static_cast<std::int32_t>(64 * word) + 63 - __builtin_clzll(bits);
  }
  std::int32_t take_first(std::int32_t size) {
    Queue& queue = queues_[size];
    const std::int32_t chunk = queue.chunks[queue.first++];
    if (queue.first == queue.chunks.size()) empty(size);
    return chunk;
  }
  std::int32_t take_last(std::int32_t size) {
    Queue& queue = queues_[size];
    const std::int32_t chunk = queue.chunks.back();
    queue.chunks.pop_back();
    if (queue.first == queue.chunks.size()) empty(size);
    return chunk;
  }

 private:
  struct Queue {
    std::vector<std::int32_t> chunks;
    std::size_t first = 0;
  };
  void empty(std::int32_t size) {
    queues_[size].chunks.clear();
    queues_[size].first = 0;
    filled_[size / 64] &= ~(std::uint64_t{1} << size % 64);
  }
  std::vector<Queue> queues_;
  std::vector<std::uint64_t> filled_;
};

}  // namespace echo
