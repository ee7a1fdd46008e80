// The bytes below a budget at each step of a schedule, and the values that fit into them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "schedule.h"

namespace echo {

// The most of many numbers, under additions to ranges of them.
class RangeMax {
 public:
  explicit RangeMax(const std::vector<std::int64_t>& values) : size_(1) {
    while (size_ < static_cast<std::int32_t>(values.size())) size_ *= 2;
    most_.assign(2 * size_, 0);
    added_.assign(2 * size_, 0);
    std::copy(values.begin(), values.end(), most_.begin() + size_);
    for (std::int32_t at = size_ - 1; at > 0; --at) most_[at] = std::max(most_[2 * at], most_[2 * at + 1]);
  }
  void add(std::int32_t first, std::int32_t last, std::int64_t value) {
    std::int32_t left = first + size_, right = last + 1 + size_;
    for (; left < right; left /= 2, right /= 2) {
      if (left % 2) add_to(left++, value);
      if (right % 2) add_to(--right, value);
    }
    for (std::int32_t end : {first + size_, last + size_})
      while (end /= 2) most_[end] = std::max(most_[2 * end], most_[2 * end + 1]) + added_[end];
  }
  std::int64_t most(std::int32_t first, std::int32_t last) const {
    std::int64_t from_left = INT64_MIN / 2, from_right = INT64_MIN / 2;
    std::int32_t left = first + size_, right = last + 1 + size_;
    while (left < right) {
      if (left % 2) from_left = std::max(from_left, most_[left++]);
      if (right % 2) from_right = std::max(from_right, most_[--right]);
      left /= 2;
      right /= 2;
      from_left += added_[left - 1];  // what was found lies below these two
      from_right += added_[right];
    }
    for (--left; left /= 2;) from_left += added_[left];
    while (right /= 2) from_right += added_[right];
    return std::max(from_left, from_right);
  }

 private:
  void add_to(std::int32_t at, std::int64_t value) {
    most_[at] += value;
    added_[at] += value;
  }
  std::int32_t size_;
  std::vector<std::int64_t> most_, added_;
};

class Headroom {
 public:
  // Limits by level of the schedule; `slack` are bytes by which they may be raised, all in all.
  Headroom(const Schedule& schedule, const std::vector<std::int64_t>& limits, std::int64_t slack = 0)
      : s_(schedule), limits_(limits), slack_(slack) {
    while (s_.steps() >> shift_ > kMostTold) ++shift_;
    for (std::int32_t level = 0; level < s_.levels(); ++level) {
      std::vector<std::int64_t> most((s_.steps() >> shift_) + 1, 0);
      for (std::int32_t step = 0; step < s_.steps(); ++step)
        most[step >> shift_] = std::max(most[step >> shift_], s_.live(level, step));
      live_.emplace_back(most);
    }
  }

  std::int64_t slack() const { return slack_; }

  // What `take_back` would take out of the slack, or more where outputs of a node live at different times.
  std::int64_t price(std::int32_t node, std::int32_t position) const {
    const auto& a = s_.arrays;
    std::int32_t first = INT32_MAX, last = -1, level = -1;
    std::int64_t amount = 0, price = 0;
    for (std::int32_t e = a.entry_begin[node]; e < a.entry_begin[node + 1]; ++e) {
      const Span span = span_of(e, position);
      if (span.last < span.first) continue;
      first = std::min(first, span.first);
      last = std::max(last, span.last);
      level = std::max(level, s_.level_of(e));
      amount += s_.amount(e);
    }
    for (; level >= 0 && last >= first; --level)
      price += s_.weight(level) * std::max<std::int64_t>(0, live_[level].most(first, last) + amount - limits_[level]);
    return price;
  }

  // Whether the values that `node` recomputes at `position` may be kept till then instead; if so, they take their bytes,
  // and of the slack what the limits do not allow.
  bool take_back(std::int32_t node, std::int32_t position) {
    const auto& a = s_.arrays;
    const std::int64_t before = slack_;
    taken_.clear();
    for (std::int32_t e = a.entry_begin[node]; e < a.entry_begin[node + 1]; ++e) {
      const Span span = span_of(e, position);
      if (span.last < span.first) continue;
      for (std::int32_t level = s_.level_of(e); level >= 0; --level)
        take({level, span.first, span.last, s_.amount(e), limits_[level]});
      if (slack_ < 0) {
        for (; !taken_.empty(); taken_.pop_back()) give(taken_.back());
        slack_ = before;
        return false;
      }
    }
    return true;
  }

 private:
  struct Span {
    std::int32_t first = 0, last = -1;
  };
  // At which steps, or rows of steps, an entry is not there now, but would be if it were kept.
  Span span_of(std::int32_t e, std::int32_t position) const {
    const std::int32_t again = s_.found_at(e, position), kept = s_.found_at(e, position - 1);
    if (!s_.again(e) || again < 0 || kept < 0 || s_.amount(e) == 0 || s_.entry_of(again) != e) return {};
    if (s_.last_use(again) == s_.made_at(again)) return {};  // nothing reads it
    const std::int32_t first = s_.last_use(kept) + 1, last = s_.made_at(again) - 1;
    if (last < first) return {};
    return {first >> shift_, last >> shift_};
  }
  struct Taken {
    std::int32_t level, first, last;
    std::int64_t amount, limit;  // the limit before
  };
  void take(const Taken& taken) {
    live_[taken.level].add(taken.first, taken.last, taken.amount);
    const std::int64_t beyond = live_[taken.level].most(taken.first, taken.last) - limits_[taken.level];
    if (beyond > 0) {
      limits_[taken.level] += beyond;
      slack_ -= beyond * s_.weight(taken.level);
    }
    taken_.push_back(taken);
  }
  void give(const Taken& taken) {
    live_[taken.level].add(taken.first, taken.last, -taken.amount);
    limits_[taken.level] = taken.limit;
  }

  // Steps that are told apart: of longer schedules several in a row count as one, which keeps the trees in the caches.
  static constexpr std::int32_t kMostTold = 8192;

  const Schedule& s_;
  std::int32_t shift_ = 0;
  std::vector<std::int64_t> limits_;
  std::int64_t slack_;
  std::vector<RangeMax> live_;
  std::vector<Taken> taken_;
};

}  // namespace echo
