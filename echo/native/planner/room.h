// The room below a budget at each step of a schedule, and what it allows to be kept after all.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "schedule.h"

namespace echo {

// The most of many numbers, under additions to ranges of them.
class RangeMax {
 public:
  explicit RangeMax(std::int32_t size) : size_(1) {
    while (size_ < size) size_ *= 2;
    most_.assign(2 * size_, 0);
    added_.assign(2 * size_, 0);
  }
  void add(std::int32_t first, std::int32_t last, std::int64_t value) { add(1, 0, size_, first, last + 1, value); }
  std::int64_t most(std::int32_t first, std::int32_t last) const { return most(1, 0, size_, first, last + 1); }

 private:
  void add(std::int32_t at, std::int32_t low, std::int32_t high, std::int32_t first, std::int32_t end, std::int64_t value) {
    if (first <= low && high <= end) {
      most_[at] += value;
      added_[at] += value;
      return;
    }
    const std::int32_t middle = (low + high) / 2;
    if (first < middle) add(2 * at, low, middle, first, end, value);
    if (end > middle) add(2 * at + 1, middle, high, first, end, value);
    most_[at] = std::max(most_[2 * at], most_[2 * at + 1]) + added_[at];
  }
  std::int64_t most(std::int32_t at, std::int32_t low, std::int32_t high, std::int32_t first, std::int32_t end) const {
    if (first <= low && high <= end) return most_[at];
    const std::int32_t middle = (low + high) / 2;
    std::int64_t found = INT64_MIN;
    if (first < middle) found = most(2 * at, low, middle, first, end);
    if (end > middle) found = std::max(found, most(2 * at + 1, middle, high, first, end));
    return found + added_[at];
  }
  std::int32_t size_;
  std::vector<std::int64_t> most_, added_;
};

class Room {
 public:
  // Limits by level of the schedule.
  Room(const Schedule& schedule, const std::vector<std::int64_t>& limits) : s_(schedule), limits_(limits) {
    for (std::int32_t level = 0; level < s_.levels(); ++level) {
      live_.emplace_back(s_.steps());
      for (std::int32_t step = 0; step < s_.steps(); ++step) live_[level].add(step, step, s_.live(level, step));
    }
  }

  // Whether the values that `node` computes again at `slot` may be kept till then instead; if so, they take their room.
  bool take_back(std::int32_t node, std::int32_t slot) {
    const auto& a = s_.arrays;
    for (int pass = 0; pass < 2; ++pass)
      for (std::int32_t e = a.entry_begin[node]; e < a.entry_begin[node + 1]; ++e) {
        const std::int32_t again = s_.found_at(e, slot), before = s_.found_at(e, slot - 1);
        if (!s_.again(e) || again < 0 || before < 0 || s_.amount(e) == 0 || s_.entry_of(again) != e) continue;
        const std::int32_t first = s_.last_use(before) + 1, last = s_.made_at(again) - 1;
        if (s_.last_use(again) == s_.made_at(again) || last < first) continue;
        for (std::int32_t level = 0; level <= s_.level_of(e); ++level) {
          if (pass == 0 && live_[level].most(first, last) + s_.amount(e) > limits_[level]) return false;
          if (pass == 1) live_[level].add(first, last, s_.amount(e));
        }
      }
    return true;
  }

 private:
  const Schedule& s_;
  const std::vector<std::int64_t> limits_;
  std::vector<RangeMax> live_;
};

}  // namespace echo
