#include "drop_finder.h"

#include <algorithm>

namespace echo {

static constexpr int kDeepest = 40;  // nodes in a chain that is dropped at once
static constexpr double kGreaterPart = 0.3;
static constexpr std::size_t kMostBundled = 16;

void DropFinder::index_uses() {
  use_begin_.assign(s_.instances() + 1, 0);
  for (std::int32_t step = 0; step < s_.steps(); ++step)
    for (const std::int32_t instance : s_.reads(step)) ++use_begin_[instance + 1];
  for (std::int32_t i = 0; i < s_.instances(); ++i) use_begin_[i + 1] += use_begin_[i];
  uses_.resize(use_begin_.back());
  std::vector<std::int32_t> at(use_begin_.begin(), use_begin_.end() - 1);
  for (std::int32_t step = 0; step < s_.steps(); ++step)
    for (const std::int32_t instance : s_.reads(step)) uses_[at[instance]++] = step;
}

// Bytes times steps above the limits that end when a block of each level ends, up to each step.
void DropFinder::sum_over(const std::vector<std::int64_t>& limits) {
  over_.resize(s_.levels());
  for (std::int32_t level = 0; level < s_.levels(); ++level) {
    auto& sum = over_[level];
    sum.assign(s_.steps() + 1, 0);
    const double weight = static_cast<double>(s_.weight(level));
    double own = 0;
    for (std::int32_t step = 0; step < s_.steps(); ++step) {
      if (s_.live(level, step) > limits[level]) own += weight;
      sum[step + 1] = own + (level > 0 ? over_[level - 1][step + 1] : 0);
    }
  }
}

// Bytes times steps above the budget between the last use of each output before `step` and its next.
double DropFinder::freed(std::int32_t node, std::int32_t first_instance, std::int32_t step) const {
  double gain = 0;
  const auto& a = s_.arrays;
  for (std::int32_t out = 0; out < a.entry_begin[node + 1] - a.entry_begin[node]; ++out) {
    const std::int32_t instance = first_instance + out;
    if (!s_.again(a.entry_begin[node] + out)) continue;
    if (instance >= s_.instances() || s_.entry_of(instance) != a.entry_begin[node] + out)
      break;  // a masked copy has one
    const auto first = uses_.begin() + use_begin_[instance], last = uses_.begin() + use_begin_[instance + 1];
    const auto next = std::lower_bound(first, last, step);
    if (next == last) continue;
    const std::int32_t before = next == first ? s_.made_at(instance) : *(next - 1);
    gain += over(a.entry_begin[node] + out, before + 1, step);
  }
  return gain;
}

// What it costs to have an input at `position`, in bytes times steps: nothing where it is alive, else to keep it or to
// compute it again, whichever is cheaper.
double DropFinder::plan_input(std::int32_t entry, std::int32_t position, std::int32_t step, double price, int depth) {
  const auto& a = s_.arrays;
  const std::int32_t node = s_.node_of[entry];
  if (a.variable[node]) return 0;
  const std::int32_t instance = s_.found_at(entry, position);
  double keep;
  if (instance < 0) {
    keep = 0;  // a copy that nothing needed so far: it will be made
  } else if (s_.made_at(instance) >= step) {
    keep = over(entry, step, s_.made_at(instance));  // made earlier than it is now
  } else if (s_.last_use(instance) >= step) {
    return 0;
  } else {
    keep = over(entry, s_.last_use(instance) + 1, step);
  }
  if (!candidate_[node] || !s_.again(entry) || keep == 0 || depth == 0 ||
      (instance >= 0 && s_.made_at(instance) >= step))
    return keep;
  if (seen_[node] == stamp_) return input_price_[node];
  seen_[node] = stamp_;
  input_price_[node] = 0;
  double again = cost(node, price);
  for (std::int32_t i = a.input_begin[node]; i < a.input_begin[node + 1] && again < keep; ++i)
    if (!a.input_shape_only[i]) again += plan_input(a.input_entry[i], position, step, price, depth - 1);
  input_price_[node] = std::min(keep, again);
  return input_price_[node];
}

void DropFinder::add_inputs(std::int32_t position, std::int32_t step, double price, Drop* drop) {
  const auto& a = s_.arrays;
  for (std::size_t done = drop->splits.size() - 1; done < drop->splits.size(); ++done) {
    const std::int32_t reader = drop->splits[done].first;
    for (std::int32_t i = a.input_begin[reader]; i < a.input_begin[reader + 1]; ++i) {
      if (a.input_shape_only[i]) continue;
      const std::int32_t entry = a.input_entry[i], input = s_.node_of[entry];
      if (a.variable[input]) continue;
      const std::int32_t instance = s_.found_at(entry, position);
      if (instance < 0 || s_.made_at(instance) >= step || s_.last_use(instance) >= step) continue;
      const double keep = over(entry, s_.last_use(instance) + 1, step);
      if (keep == 0) continue;
      const auto known = std::find(drop->splits.begin(), drop->splits.end(),
                                   std::pair<std::int32_t, std::int32_t>{input, position});
      if (known != drop->splits.end()) continue;
      double again = keep;
      if (candidate_[input] && s_.again(entry) && static_cast<int>(drop->splits.size()) < kDeepest) {
        ++stamp_;
        again = cost(input, price);
        for (std::int32_t j = a.input_begin[input]; j < a.input_begin[input + 1] && again < keep; ++j)
          if (!a.input_shape_only[j]) again += plan_input(a.input_entry[j], position, step, price, kDeepest);
      }
      if (again < keep) {
        drop->splits.emplace_back(input, position);
        drop->seconds += a.seconds[input];
        drop->gain -= layout_copy_cost(input);
      } else {
        drop->gain -= keep;
      }
    }
  }
}

bool DropFinder::expand(std::int32_t node, std::int32_t position, std::int32_t step, double price, Drop* drop) {
  drop->splits.assign(1, {node, position});
  drop->seconds = s_.arrays.seconds[node];
  drop->gain -= layout_copy_cost(node);
  add_inputs(position, step, price, drop);
  return drop->gain > 0;
}

// The costliest node that a drop recomputes, -1 where it is not the greater part of what it costs.
std::int32_t DropFinder::costliest(const Drop& drop) const {
  std::int32_t found = -1;
  for (const auto& [node, position] : drop.splits)
    if (found < 0 || s_.arrays.seconds[node] > s_.arrays.seconds[found]) found = node;
  return drop.splits.size() > 1 && s_.arrays.seconds[found] > kGreaterPart * drop.seconds ? found : -1;
}

// Drops that need the same costly node are worth more together: the gates of a cell, of which none alone would be worth
// the products that they come from.
void DropFinder::bundle() {
  std::vector<std::pair<std::int32_t, std::size_t>> by_node;
  for (std::size_t i = 0; i < found_.size(); ++i) {
    const std::int32_t node = costliest(found_[i]);
    if (node >= 0) by_node.emplace_back(node, i);
  }
  std::sort(by_node.begin(), by_node.end());
  for (std::size_t first = 0, last = 0; first < by_node.size(); first = last) {
    while (last < by_node.size() && by_node[last].first == by_node[first].first) ++last;
    if (last - first < 2 || last - first > kMostBundled) continue;
    Drop all;
    all.gain = all.seconds = 0;
    std::vector<std::pair<std::int32_t, std::int32_t>> splits;  // by position: what comes first serves the others
    for (std::size_t i = first; i < last; ++i) {
      all.gain += found_[by_node[i].second].gain;
      for (const auto& [node, position] : found_[by_node[i].second].splits) splits.emplace_back(position, node);
    }
    std::sort(splits.begin(), splits.end());
    ++stamp_;
    for (const auto& [position, node] : splits) {
      if (seen_[node] == stamp_) continue;
      seen_[node] = stamp_;
      all.splits.emplace_back(node, position);
      all.seconds += s_.arrays.seconds[node];
    }
    found_.push_back(std::move(all));
  }
}

const std::vector<Drop>& DropFinder::find(const std::vector<std::int64_t>& limits, double price, double above) {
  const auto& a = s_.arrays;
  above_ = above;
  found_.clear();
  index_uses();
  seen_.resize(a.nodes, -1);
  input_price_.resize(a.nodes);
  sum_over(limits);
  for (std::int32_t instance = 0; instance < s_.instances(); ++instance) {
    const std::int32_t entry = s_.entry_of(instance), node = s_.node_of[entry];
    if (!candidate_[node] || !s_.again(entry) || s_.amount(entry) == 0) continue;
    const std::int32_t first = instance - (entry - a.entry_begin[node]);
    std::int32_t before = s_.made_at(instance);
    for (std::int32_t u = use_begin_[instance]; u < use_begin_[instance + 1]; before = uses_[u++]) {
      const std::int32_t step = uses_[u], position = s_.position(step);
      if (over(entry, before + 1, step) == 0 || !s_.may_read_copies(step) || position == s_.position(before)) continue;
      const auto& own = s_.splits[node];
      if (std::find(own.begin(), own.end(), position) != own.end()) continue;
      Drop drop;
      drop.gain = freed(node, first, step);
      const double gain = drop.gain;
      for (const double p : {price, 1e-30, 1e300}) {
        drop.gain = gain;
        if (!expand(node, position, step, p, &drop)) continue;
        if (!found_.empty() && found_.back().splits.front() == drop.splits.front()) {
          if (drop.score() > found_.back().score()) found_.back() = drop;
        } else {
          found_.push_back(drop);
        }
      }
    }
  }
  bundle();
  return found_;
}

}  // namespace echo
