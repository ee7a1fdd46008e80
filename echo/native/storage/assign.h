// Storage assignment: blocks of memory with lifetimes share chunks. Used by the hook and by the planner alike.
// Specified by echo/estimators/mxnet_storage.py.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace echo {

struct Span {
  std::int32_t first, last;  // nodes, both included
};

struct Block {
  std::int64_t bytes;
  std::int32_t first, last;  // alive from node `first` to node `last`, both included
};

// When one chunk is busy: the lifetimes of its blocks, none of which overlap. Those that touch are joined.
class Timeline {
 public:
  bool is_free(const Block& block) const {
    const auto after = not_before(block.first);
    return after == spans_.end() || after->first > block.last;
  }
  // Adds the lifetime of a block for which the chunk is free, and returns the busy span that it is now part of.
  Span add(const Block& block) {
    const auto after = spans_.begin() + (not_before(block.first) - spans_.cbegin());
    const bool touches_after = after != spans_.end() && after->first == block.last + 1;
    const bool touches_before = after != spans_.begin() && std::prev(after)->last == block.first - 1;
    if (touches_before && touches_after) {
      const auto joined = std::prev(after);
      joined->last = after->last;
      const Span busy = *joined;
      spans_.erase(after);
      return busy;
    }
    if (touches_before) {
      std::prev(after)->last = block.last;
      return *std::prev(after);
    }
    if (touches_after) {
      after->first = block.first;
      return *after;
    }
    return *spans_.insert(after, Span{block.first, block.last});
  }

 private:
  std::vector<Span>::const_iterator not_before(std::int32_t node) const {
    return std::lower_bound(spans_.begin(), spans_.end(), node,
                            [](const Span& span, std::int32_t first) { return span.last < first; });
  }
  std::vector<Span> spans_;
};

// Some of the times at which all of a group of chunks are busy, a few long spans in order.
class BusyTogether {
 public:
  bool overlaps(const Block& block) const {
    for (std::int32_t i = 0; i < count_; ++i)
      if (spans_[i].first <= block.last && spans_[i].last >= block.first) return true;
    return false;
  }
  // Takes in a busy span of a single chunk; spans known before that are part of it go. Gives whether that changed anything.
  bool add(const Span& busy) {
    std::array<Span, kMost + 1> all;
    std::int32_t count = 0;
    bool placed = false;
    for (std::int32_t i = 0; i < count_; ++i) {
      if (spans_[i].last >= busy.first && spans_[i].first <= busy.last) continue;
      if (!placed && spans_[i].first > busy.last) {
        all[count++] = busy;
        placed = true;
      }
      all[count++] = spans_[i];
    }
    if (!placed) all[count++] = busy;
    return keep_longest(all.data(), count);
  }
  // Takes on what two groups have in common. Gives whether that changed anything.
  bool intersect(const BusyTogether& x, const BusyTogether& y) {
    std::array<Span, 2 * kMost> all;
    std::int32_t count = 0;
    for (std::int32_t i = 0, j = 0; i < x.count_ && j < y.count_;) {
      const Span both{std::max(x.spans_[i].first, y.spans_[j].first), std::min(x.spans_[i].last, y.spans_[j].last)};
      if (both.first <= both.last) all[count++] = both;
      x.spans_[i].last < y.spans_[j].last ? ++i : ++j;
    }
    return keep_longest(all.data(), count);
  }
  static BusyTogether always() {
    BusyTogether busy;
    busy.spans_[0] = {INT32_MIN, INT32_MAX};
    busy.count_ = 1;
    return busy;
  }

 private:
  static constexpr std::int32_t kMost = 4;
  bool keep_longest(Span* all, std::int32_t count) {
    while (count > kMost) {
      std::int32_t shortest = 0;
      for (std::int32_t i = 1; i < count; ++i)
        if (all[i].last - all[i].first < all[shortest].last - all[shortest].first) shortest = i;
      std::copy(all + shortest + 1, all + count, all + shortest);
      --count;
    }
    const auto equal = [](const Span& x, const Span& y) { return x.first == y.first && x.last == y.last; };
    if (count == count_ && std::equal(all, all + count, spans_.begin(), equal)) return false;
    std::copy(all, all + count, spans_.begin());
    count_ = count;
    return true;
  }
  std::array<Span, kMost> spans_{};
  std::int32_t count_ = 0;
};

// Chunks from large to small, and a binary tree over them that finds a free one without asking each: whole
// groups of chunks are busy together while what is stashed in them waits for its gradient.
class Chunks {
 public:
  static constexpr std::int32_t kNone = -1;

  // With `largest` the chunk that `find` gives is the largest one that is free for a block, else the smallest.
  explicit Chunks(bool largest) : largest_(largest) {}
  std::int32_t find(const Block& block) const { return leaves_ ? search(1, block) : kNone; }
  std::int32_t append() {
    if (static_cast<std::int32_t>(chunks_.size()) == leaves_) grow();
    chunks_.emplace_back();
    std::int32_t node = leaves_ + static_cast<std::int32_t>(chunks_.size()) - 1;
    tree_[node] = BusyTogether();
    while (node /= 2) tree_[node] = BusyTogether();  // the new chunk is free at all times
    return static_cast<std::int32_t>(chunks_.size()) - 1;
  }
  void put(std::int32_t chunk, const Block& block) {
    std::int32_t node = leaves_ + chunk;
    bool changed = tree_[node].add(chunks_[chunk].add(block));
    while (changed && (node /= 2)) changed = tree_[node].intersect(tree_[2 * node], tree_[2 * node + 1]);
  }

 private:
  std::int32_t search(std::int32_t node, const Block& block) const {
    if (tree_[node].overlaps(block)) return kNone;
    if (node >= leaves_) return chunks_[node - leaves_].is_free(block) ? node - leaves_ : kNone;
    const std::int32_t first = 2 * node + (largest_ ? 0 : 1);
    const std::int32_t found = search(first, block);
    return found == kNone ? search(first ^ 1, block) : found;
  }
  void grow() {
    const std::int32_t before = leaves_;
    leaves_ = before ? 2 * before : 8;
    std::vector<BusyTogether> tree(2 * leaves_, BusyTogether::always());  // chunks that are not there are never free
    std::copy(tree_.begin() + before, tree_.begin() + 2 * before, tree.begin() + leaves_);
    for (std::int32_t node = leaves_ - 1; node; --node) tree[node].intersect(tree[2 * node], tree[2 * node + 1]);
    tree_.swap(tree);
  }

  const bool largest_;
  std::int32_t leaves_ = 0;  // a power of two
  std::vector<Timeline> chunks_;
  std::vector<BusyTogether> tree_;  // 1 is the root; the children of i are 2 i and 2 i + 1
};

using NumberedBlocks = std::vector<std::pair<Block, std::int32_t>>;

// Gives every block, the largest first, the largest or the smallest chunk that is free for its lifetime, or a new one of
// its own size, and returns the bytes of all chunks. Gives up as soon as they exceed `limit`.
inline std::int64_t assign_in_order(const NumberedBlocks& order, bool largest, std::int64_t limit,
                                    std::vector<std::int32_t>* chunk_of) {
  chunk_of->assign(order.size(), -1);
  Chunks chunks(largest);
  std::int64_t total = 0;
  for (const auto& [block, index] : order) {
    std::int32_t chunk = chunks.find(block);
    if (chunk == Chunks::kNone) {
      chunk = chunks.append();
      total += block.bytes;
      if (total > limit) return total;
    }
    chunks.put(chunk, block);
    (*chunk_of)[index] = chunk;
  }
  return total;
}

// Gives every block a chunk and returns the bytes of all chunks, the fewer of two ways: into the largest chunks, which
// leaves small ones free for long and is better by up to 4 % on convolutional networks; and into the smallest, which is
// better by some thousandths now and then. Gives up as soon as the bytes of both exceed `limit`.
inline std::int64_t assign_chunks(const std::vector<Block>& blocks, std::int64_t limit,
                                  std::vector<std::int32_t>* chunk_of) {
  NumberedBlocks order;
  order.reserve(blocks.size());
  for (const Block& block : blocks) order.emplace_back(block, static_cast<std::int32_t>(order.size()));
  std::sort(order.begin(), order.end(), [](const auto& x, const auto& y) {
    const auto& [a, a_index] = x;
    const auto& [b, b_index] = y;
    if (a.bytes != b.bytes) return a.bytes > b.bytes;
    if (a.first != b.first) return a.first < b.first;
    if (a.last != b.last) return a.last < b.last;
    return a_index < b_index;
  });
  const std::int64_t total = assign_in_order(order, true, limit, chunk_of);
  std::vector<std::int32_t> other;
  const std::int64_t another = assign_in_order(order, false, std::min(limit, total - 1), &other);
  if (another >= total) return total;
  chunk_of->swap(other);
  return another;
}

}  // namespace echo
