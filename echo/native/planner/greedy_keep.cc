#include "greedy_keep.h"

#include <algorithm>

namespace echo {

static constexpr double kFree = 1e-3;  // of its size, what a value costs for which there is room anyway

// What a step costs with everything that is computed for it alone.
void GreedyKeep::save_up() {
  static constexpr std::int32_t kUnread = -1, kSeveral = -2;
  std::vector<std::int32_t> reader(s_.steps(), kUnread);
  for (std::int32_t step = 0; step < s_.steps(); ++step)
    for (const std::int32_t instance : s_.reads(step)) {
      std::int32_t& known = reader[s_.made_at(instance)];
      known = known == kUnread || known == step ? step : kSeveral;
    }
  saved_.assign(s_.steps(), 0);
  for (std::int32_t step = 0; step < s_.steps(); ++step) {
    if (!s_.is_copy(step)) continue;
    saved_[step] += s_.arrays.seconds[s_.node(step)];  // those that it reads ran before
    if (reader[step] >= 0) saved_[reader[step]] += saved_[step];
  }
}

std::int64_t GreedyKeep::size_of(std::int32_t node) const {
  std::int64_t size = 0;
  for (std::int32_t e = s_.arrays.entry_begin[node]; e < s_.arrays.entry_begin[node + 1]; ++e)
    if (s_.again(e)) size += s_.bytes(e);
  return size;
}

// The first of the copies that a node makes at a position, -1 where nothing reads one.
std::int32_t GreedyKeep::made_at(std::int32_t node, std::int32_t position) const {
  for (std::int32_t e = s_.arrays.entry_begin[node]; e < s_.arrays.entry_begin[node + 1]; ++e)
    if (s_.again(e)) {
      const std::int32_t made = s_.found_at(e, position);
      return made < 0 ? -1 : s_.made_at(made);
    }
  return -1;
}

// Forgets splits that change nothing.
void GreedyKeep::clean() {
  bool cleaned = false;
  for (std::int32_t node = 0; node < s_.arrays.nodes; ++node) {
    auto& own = s_.splits[node];
    std::vector<std::int32_t> made;  // all at once: they are asked for by their place
    for (const std::int32_t position : own)
      if (made_at(node, position) >= 0) made.push_back(position);
    cleaned = cleaned || made.size() < own.size();
    own = std::move(made);
  }
  if (cleaned) value_ = s_.simulate();
}

// The most worthwhile first, by the seconds saved for each byte above the headroom. Of equals the last
// of the forward pass, which are kept for the shortest time.
bool GreedyKeep::less(const Split& x, const Split& y) {
  return x.score < y.score || (x.score == y.score && std::pair(x.node, x.position) < std::pair(y.node, y.position));
}

// Negative if there is no headroom, nor will be.
double GreedyKeep::score(const Headroom& headroom, std::int32_t node, std::int32_t position) const {
  const std::int64_t price = headroom.price(node, position);
  if (price > headroom.slack()) return -1;
  return saved_[made_at(node, position)] /
         (static_cast<double>(price) + kFree * static_cast<double>(size_of(node)) + 1);
}

// Takes the best as long as there is headroom. What a split takes only grows, so that only the best is looked at again.
std::vector<GreedyKeep::Split> GreedyKeep::choose(Headroom& headroom) const {
  std::vector<Split> queue, taken;
  for (std::int32_t node = 0; node < s_.arrays.nodes; ++node)
    for (const std::int32_t position : s_.splits[node]) {
      const double now = score(headroom, node, position);
      if (now >= 0) queue.push_back({now, node, position});
    }
  std::make_heap(queue.begin(), queue.end(), less);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), less);
    Split best = queue.back();
    queue.pop_back();
    const double now = score(headroom, best.node, best.position);
    if (now < 0) continue;
    if (now < best.score && !queue.empty()) {
      best.score = now;
      if (less(best, queue.front())) {
        queue.push_back(best);
        std::push_heap(queue.begin(), queue.end(), less);
        continue;
      }
    }
    if (headroom.take_back(best.node, best.position)) taken.push_back(best);
  }
  return taken;
}

// One pass. False where nothing is kept.
bool GreedyKeep::take_back() {
  clean();
  save_up();
  std::vector<std::int64_t> limits(s_.levels(), budget_);
  if (s_.measure() == Measure::kChunks) limits = s_.all_most();
  Headroom headroom(s_, limits, s_.measure() == Measure::kChunks ? budget_ - value_.bytes : 0);
  const std::vector<Split> taken = choose(headroom);
  const Schedule::RecomputeSchedule before = s_.splits;
  for (std::size_t kept = taken.size(); kept > 0; kept /= 2) {  // what is in place can be estimated too well
    for (std::size_t i = 0; i < kept; ++i) {
      auto& own = s_.splits[taken[i].node];
      own.erase(std::find(own.begin(), own.end(), taken[i].position));
    }
    const Schedule::Value value = s_.simulate();
    if (value.bytes <= budget_ && value.seconds <= value_.seconds) {
      value_ = value;
      return true;
    }
    s_.splits = before;
  }
  s_.simulate();
  return false;
}

Schedule::Value GreedyKeep::run(std::int32_t passes) {
  value_ = s_.simulate();
  if (value_.bytes > budget_) return value_;
  while (passes > 0 && take_back()) --passes;  // kept values make room: what computed them is gone
  return value_;
}

}  // namespace echo
