// Storage assignment: blocks of memory with lifetimes share chunks. Used by the hook and by the planner alike.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace echo {

struct Block {
  std::int64_t bytes;
  std::int32_t first, last;  // alive from node `first` to node `last`, both included
};

// The lifetimes of the blocks in one chunk, none of which overlap.
class Timeline {
 public:
  bool is_free(const Block& block) const {
    const auto after = std::lower_bound(spans_.begin(), spans_.end(), block.first,
                                        [](const Span& span, std::int32_t first) { return span.last < first; });
    return after == spans_.end() || after->first > block.last;
  }
  void add(const Block& block) {
    const auto after = std::lower_bound(spans_.begin(), spans_.end(), block.first,
                                        [](const Span& span, std::int32_t first) { return span.last < first; });
    spans_.insert(after, Span{block.first, block.last});
  }

 private:
  struct Span {
    std::int32_t first, last;
  };
  std::vector<Span> spans_;
};

// Gives every block a chunk and returns the bytes of all chunks: the largest block first, each into the smallest chunk
// that is free for its lifetime, or into a new one of its own size. Gives up as soon as the bytes exceed `limit`.
inline std::int64_t assign_chunks(const std::vector<Block>& blocks, std::int64_t limit,
                                  std::vector<std::int32_t>* chunk_of) {
  std::vector<std::int32_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) {
    const Block &a = blocks[x], &b = blocks[y];
    if (a.bytes != b.bytes) return a.bytes > b.bytes;
    if (a.first != b.first) return a.first < b.first;
    if (a.last != b.last) return a.last < b.last;
    return x < y;
  });
  chunk_of->assign(blocks.size(), -1);
  std::vector<Timeline> chunks;  // from large to small
  std::int64_t total = 0;
  for (const std::int32_t index : order) {
    const Block& block = blocks[index];
    std::int32_t chunk = static_cast<std::int32_t>(chunks.size()) - 1;
    while (chunk >= 0 && !chunks[chunk].is_free(block)) --chunk;
    if (chunk < 0) {
      chunk = static_cast<std::int32_t>(chunks.size());
      chunks.emplace_back();
      total += block.bytes;
      if (total > limit) return total;
    }
    chunks[chunk].add(block);
    (*chunk_of)[index] = chunk;
  }
  return total;
}

}  // namespace echo
