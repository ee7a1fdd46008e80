#include "ruin_recreate.h"

#include <algorithm>
#include <cmath>

#include "greedy_keep.h"

namespace echo {

static constexpr std::size_t kTried = 6;        // of the drops that look best, how many are simulated
static constexpr std::size_t kMostTried = 64;   // where none of those helps
static constexpr std::int32_t kLarge = 1000;    // nodes, beyond which several drops are taken at once
static constexpr std::size_t kFew = 40;         // drops to choose from, up to which they are taken one by one
static constexpr double kAtOnce = 0.3;          // of what is above the budget
static constexpr double kLeastAtOnce = 0.01;
static constexpr int kLeftAlone = 4;            // rounds for which a level is not lowered that did not follow
static constexpr double kNearBest = 0.6;        // of the best score, below which a drop waits for the next round
static constexpr double kAsExpected = 0.3;      // of the estimated gain, below which fewer drops are taken at once
static constexpr double kLowered = 0.93;        // of the blocks on each level, where chunks are what counts
static constexpr double kFirstStep = 0.9, kLastStep = 0.99;  // from one budget to the next
static constexpr double kNoise = 1.5;           // in the logarithm of scores, where chance has a part
static constexpr std::int64_t kPatience = 2;  // times as long as it took to find the best
// Simulations without anything better, after which a search ends; half of its effort where that is less. On the models
// of the benchmarks no search found anything later, unless it had found something all the time.
static constexpr std::int64_t kSettled = 2000;
static constexpr std::int32_t kPasses = 4;  // where pruning is not exact
static constexpr std::int64_t kExactPrune = 4'000'000;  // visited nodes that exact pruning may take

void RuinRecreate::add(std::int32_t node, std::int32_t position) {
  auto& own = s_.splits[node];
  own.insert(std::upper_bound(own.begin(), own.end(), position), position);
}

void RuinRecreate::remove(std::int32_t node, std::int32_t position) {
  auto& own = s_.splits[node];
  own.erase(std::find(own.begin(), own.end(), position));
}

bool RuinRecreate::has(std::int32_t node, std::int32_t position) const {
  const auto& own = s_.splits[node];
  return std::binary_search(own.begin(), own.end(), position);
}

void RuinRecreate::rank(double noise) {
  const auto& found = drops_.find(limits_, price_, above_);
  order_.clear();
  for (std::size_t i = 0; i < found.size(); ++i)
    if (failed_.count(found[i].splits.front()) == 0)
      order_.emplace_back(found[i].score() * (noise > 0 ? std::exp(noise * (uniform() - 0.5)) : 1.0), i);
  std::sort(order_.begin(), order_.end(), [](const auto& x, const auto& y) {
    return x.first > y.first || (x.first == y.first && x.second < y.second);
  });
}

// Whether a drop has nothing to do with those taken in this round: neither does it drop what they read, nor the other
// way round. Notes it down if so.
bool RuinRecreate::is_apart(const Drop& drop) {
  const auto& a = s_.arrays;
  dropped_.resize(a.nodes, 0);
  read_.resize(a.nodes, 0);
  for (const auto& [node, position] : drop.splits) {
    if (has(node, position) || dropped_[node] == round_ || read_[node] == round_) return false;
    for (std::int32_t i = a.input_begin[node]; i < a.input_begin[node + 1]; ++i)
      if (!a.input_shape_only[i] && dropped_[s_.node_of[a.input_entry[i]]] == round_) return false;
  }
  for (const auto& [node, position] : drop.splits) {
    dropped_[node] = round_;
    for (std::int32_t i = a.input_begin[node]; i < a.input_begin[node + 1]; ++i)
      if (!a.input_shape_only[i]) read_[s_.node_of[a.input_entry[i]]] = round_;
  }
  return true;
}

// Takes many of the best drops at once. False, and nothing taken, where they do not do what was expected of them.
bool RuinRecreate::take_many(double share) {
  const auto& found = drops_.last();
  std::vector<std::pair<std::int32_t, std::int32_t>> taken;
  double expected = 0;
  ++round_;
  for (const auto& [score, index] : order_) {
    const Drop& drop = found[index];
    if (expected > share * value_.over || score < kNearBest * order_.front().first) break;
    if (!is_apart(drop)) continue;
    for (const auto& split : drop.splits) {
      add(split.first, split.second);
      taken.push_back(split);
    }
    expected += drop.gain;
  }
  const auto before = value_;
  value_ = simulate();
  const double gain = before.over - value_.over;
  if (gain > 0 && gain >= kAsExpected * std::min(expected, before.over)) {
    price_ = gain / (std::max(value_.seconds - before.seconds, 0.0) + 1e-9);
    return true;
  }
  for (const auto& [node, position] : taken) remove(node, position);
  value_ = before;
  return false;
}

// As many as go well together, from a good share of what is above the limits down to a few.
bool RuinRecreate::take_several() {
  if (s_.arrays.nodes <= kLarge || order_.size() <= kFew) return false;
  for (; share_ > kLeastAtOnce; share_ /= 4) {
    if (take_many(share_)) {
      share_ = std::min(kAtOnce, share_ * 2);
      return true;
    }
    simulate();
  }
  share_ = kAtOnce;
  return false;
}

bool RuinRecreate::take_best(double noise) {
  const auto& found = drops_.last();  // simulating leaves it alone
  double best_score = 0;
  const Drop* best = nullptr;
  std::size_t tried = 0;
  for (std::size_t i = 0; i < order_.size() && tried < kMostTried && (tried < kTried || !best) && left_ > 0; ++i) {
    const Drop& drop = found[order_[i].second];
    if (std::any_of(drop.splits.begin(), drop.splits.end(),
                    [&](const auto& split) { return has(split.first, split.second); }))
      continue;
    ++tried;
    for (const auto& [node, position] : drop.splits) add(node, position);
    const auto value = simulate();
    for (const auto& [node, position] : drop.splits) remove(node, position);
    const double gain = value_.over - value.over, cost = value.seconds - value_.seconds;
    double score = gain / (std::max(cost, 0.0) + 1e-9);
    if (noise > 0) score *= std::exp(noise * (uniform() - 0.5));
    if (gain <= 0) failed_.insert(drop.splits.front());
    if (gain > 0 && score > best_score) {
      best_score = score;
      best = &drop;
    }
  }
  if (!best) return false;
  for (const auto& [node, position] : best->splits) add(node, position);
  price_ = best_score;
  value_ = simulate();
  return true;
}

// What lies above the limits in the last simulation, summed over the steps, with what copies keep.
double RuinRecreate::over() const {
  double sum = above_ * static_cast<double>(s_.layout_copy_bytes());
  for (std::int32_t level = 0; level < s_.levels(); ++level) {
    const double weight = static_cast<double>(s_.weight(level));
    if (s_.most(level) <= limits_[level]) continue;
    for (std::int32_t step = 0; step < s_.steps(); ++step)
      sum += weight * static_cast<double>(std::max<std::int64_t>(0, s_.live(level, step) - limits_[level]));
  }
  return sum;
}

// Bytes have one limit. Chunks have one on each level, and it is not known how far down each can be brought: a little at a
// time, wherever that is cheapest.
void RuinRecreate::lower_limits() {
  limits_.assign(s_.levels(), budget_);
  if (s_.measure() == Measure::kLive) {
    limits_[0] = std::max<std::int64_t>(0, budget_ - s_.layout_copy_bytes());
    return count_above();
  }
  const double ratio = std::max(kLowered, static_cast<double>(budget_) / static_cast<double>(value_.bytes));
  for (std::int32_t level = 0; level < s_.levels(); ++level) {
    const auto lowered = static_cast<std::int64_t>(ratio * static_cast<double>(s_.most(level)));
    limits_[level] = stuck_[level] > 0 ? s_.most(level) : std::min(s_.most(level) - 1, lowered);
  }
  count_above();
}

// At how many steps of the last simulation the limits are exceeded, on the level where that is most often.
void RuinRecreate::count_above() {
  above_ = 0;
  for (std::int32_t level = 0; level < s_.levels(); ++level) {
    const auto& live = s_.live(level);
    const auto end = live.begin() + s_.steps();
    const auto above = std::count_if(live.begin(), end, [&](std::int64_t now) { return now > limits_[level]; });
    above_ = std::max(above_, static_cast<double>(above));
  }
}

bool RuinRecreate::repair(double most_seconds, double noise) {
  limits_.assign(s_.levels(), INT64_MAX);
  above_ = 0;
  stuck_.assign(s_.levels(), 0);
  failed_.clear();
  value_ = simulate();
  bool again = false;  // whether everything was tried again that did not help before
  while (value_.bytes > budget_) {
    lower_limits();
    value_.over = over();
    const std::vector<std::int64_t> before = s_.all_most();
    bool taken = false;
    while (value_.bytes > budget_ && value_.over > 0) {
      if (value_.seconds > most_seconds || left_ <= 0) return false;
      rank(noise);
      if (!take_several() && (taken || !take_best(noise))) break;
      taken = true;
    }
    if (taken) {
      s_.simulate();
      for (std::int32_t level = 0; level < s_.levels(); ++level)
        stuck_[level] = s_.most(level) < before[level] ? 0 : stuck_[level] > 0 ? stuck_[level] - 1 : kLeftAlone;
      again = false;
    } else {
      if (again) return false;
      again = true;
      failed_.clear();
      stuck_.assign(s_.levels(), 0);
    }
  }
  return true;
}

std::vector<RuinRecreate::Own> RuinRecreate::own_splits() const {
  std::vector<Own> own;
  for (std::int32_t node = 0; node < s_.arrays.nodes; ++node)
    for (const std::int32_t position : s_.splits[node]) own.push_back({s_.arrays.seconds[node], node, position});
  std::stable_sort(own.begin(), own.end(), [](const Own& x, const Own& y) { return x.seconds > y.seconds; });
  return own;
}

// Takes back what is not needed any more, the costliest first.
void RuinRecreate::prune() {
  std::int64_t count = 0;
  for (const auto& own : s_.splits) count += static_cast<std::int64_t>(own.size());
  if (count * s_.arrays.nodes > kExactPrune) return prune_by_headroom(budget_);
  for (bool again = true; again && left_ > 0;) {
    again = false;
    for (const auto& [seconds, node, position] : own_splits()) {
      remove(node, position);
      const auto value = simulate();
      if (value.bytes <= budget_ && value.seconds <= value_.seconds) {
        again = again || value.seconds < value_.seconds;
        value_ = value;
      } else {
        add(node, position);
      }
    }
  }
}

// The same by the headroom of each step: some passes instead of a simulation for each.
void RuinRecreate::prune_by_headroom(std::int64_t budget) {
  const Schedule::Value value = GreedyKeep(s_, budget).run(kPasses);
  left_ -= 2 * kPasses;
  value_ = {value.bytes, over(), value.seconds};
}

void RuinRecreate::ruin() {
  // forget what was decided for a stretch of nodes, or here and there
  std::vector<std::int32_t> chosen;
  for (std::int32_t node = 0; node < s_.arrays.nodes; ++node)
    if (!s_.splits[node].empty()) chosen.push_back(node);
  if (chosen.empty()) return;
  const std::size_t most = std::max<std::size_t>(2, chosen.size() / 4);
  const std::size_t count = 1 + random_() % most;
  if (random_() % 2) {
    const std::size_t start = random_() % chosen.size();
    for (std::size_t i = start; i < std::min(chosen.size(), start + count); ++i) s_.splits[chosen[i]].clear();
  } else {
    for (std::size_t i = 0; i < count; ++i) s_.splits[chosen[random_() % chosen.size()]].clear();
  }
}

// Lowers the budget step by step from what the schedule needs now. Where a step fails, parts of the best schedule are
// ruined and recreated until it succeeds or the effort is spent, or much of it without finding anything: the best
// schedules of Transformers come with a sixteenth of the effort, those of unrolled LSTMs with all of it.
// Of all schedules on this way down, the one is taken whose seconds are worth their bytes.
Schedule::Value RuinRecreate::run_down(double most_seconds, double price) {
  const std::int64_t total = left_;
  std::int64_t left_then = left_;  // when the best was found
  value_ = simulate();
  Schedule::RecomputeSchedule best = s_.splits, chosen = best;
  Value best_value = value_, chosen_value = value_;
  const auto cost = [price](const Value& value) { return static_cast<double>(value.bytes) + price * value.seconds; };
  double step = kFirstStep;
  const std::int64_t patience = std::min(total / 2, kSettled);
  const auto settled = [&] {
    const std::int64_t since = left_then - left_;
    return since > patience && since > kPatience * (total - left_then);
  };
  while (left_ > 0 && best_value.bytes > 0 && !settled()) {
    budget_ = std::min(best_value.bytes - 1, static_cast<std::int64_t>(step * static_cast<double>(best_value.bytes)));
    const bool done = repair(most_seconds, step == kFirstStep ? 0 : kNoise);
    if (done) prune_by_headroom(value_.bytes);
    if (done && value_.seconds > most_seconds) {  // the last drop was one too many, unless others can be taken back
      budget_ = value_.bytes;
      prune();
    }
    if (done && value_.seconds <= most_seconds) {
      best = s_.splits;
      best_value = value_;
      left_then = left_;
      if (cost(value_) < cost(chosen_value)) {
        chosen = best;
        chosen_value = value_;
      }
      continue;
    }
    s_.splits = best;
    if (step < kLastStep) {
      step = std::sqrt(step);
    } else {
      ruin();
    }
  }
  s_.splits = chosen;
  budget_ = chosen_value.bytes;
  left_ = s_.arrays.nodes > 0 ? kExactPrune / s_.arrays.nodes : 0;
  value_ = simulate();
  prune();
  return s_.simulate();
}

bool RuinRecreate::better(const Value& value, const Value& than) const {
  if (value.bytes <= budget_ && than.bytes <= budget_) return value.seconds < than.seconds;
  return value.bytes < than.bytes;
}

Schedule::Value RuinRecreate::run() {
  if (repair(1e300, 0)) prune();
  Schedule::RecomputeSchedule best = s_.splits, current = best;
  Value best_value = value_, current_value = value_;
  const std::int64_t total = left_;
  while (left_ > 0 && (best_value.bytes > budget_ || best_value.seconds > 0)) {  // until nothing is recomputed
    s_.splits = current;
    ruin();
    const bool fits = current_value.bytes <= budget_;
    const double warm = 0.03 * static_cast<double>(left_) / static_cast<double>(total) * (best_value.seconds + 1e-12);
    if (repair(fits ? current_value.seconds * 1.3 + warm : 1e300, kNoise)) prune();
    Value bar = current_value;
    bar.seconds += warm * uniform();
    if (better(value_, bar)) {
      current = s_.splits;
      current_value = value_;
    }
    if (better(value_, best_value)) {
      best = s_.splits;
      best_value = value_;
    }
  }
  s_.splits = best;
  return s_.simulate();
}

}  // namespace echo
