#include "graph.h"

#include <algorithm>

namespace echo {

// Where the clone is noted that readers at `position` find, nullptr if they find the original.
std::int32_t* GraphWithClones::copy_at(std::int32_t node, std::int32_t position) {
  const std::int32_t first = split_begin_.empty() ? 0 : split_begin_[node];
  const std::int32_t last = split_begin_.empty() ? 0 : split_begin_[node + 1];
  if (first == last) return &clone_of_[splits_.count + node];
  const auto after = std::upper_bound(splits_.position + first, splits_.position + last, position) - splits_.position;
  return after == first ? nullptr : &clone_of_[after - 1];
}

std::int32_t GraphWithClones::redirected(std::int32_t entry, std::int32_t position) {
  if (!recompute_[entry]) return entry;
  const std::int32_t node = entry_node_[entry], *copy = copy_at(node, position);
  return copy ? entry_begin_[*copy] + entry - entry_begin_[node] : entry;
}

void GraphWithClones::want(std::int32_t entry, std::int32_t position) {
  const std::int32_t node = entry_node_[entry];
  if (!recompute_[entry] || wanted_at_[node] == position) return;
  const std::int32_t* copy = copy_at(node, position);
  if (!copy || *copy >= 0) return;
  wanted_at_[node] = position;
  wanted_.push_back(node);
}

// `before` is the clone that runs before this one, -1 where that does not matter.
void GraphWithClones::add_clone(std::int32_t node, std::int32_t position, std::int32_t before) {
  const std::int32_t clone = nodes();
  clone_origin_.push_back(node);
  const std::int32_t* inputs = arrays.input_entry + arrays.input_begin[node];
  const std::int32_t count = arrays.input_begin[node + 1] - arrays.input_begin[node];
  for (std::int32_t i = 0; i < count; ++i) input_entry_.push_back(redirected(inputs[i], position));
  if (arrays.masked[node]) input_entry_.push_back(entry_begin_[node] + 1);
  for (std::int32_t i = arrays.dep_begin[node]; i < arrays.dep_begin[node + 1]; ++i)
    dep_node_.push_back(arrays.dep_node[i]);
  if (before >= 0) dep_node_.push_back(before);
  input_begin_.push_back(static_cast<std::int32_t>(input_entry_.size()));
  dep_begin_.push_back(static_cast<std::int32_t>(dep_node_.size()));
  const std::int32_t outputs = arrays.masked[node] ? 1 : entry_begin_[node + 1] - entry_begin_[node];
  for (std::int32_t i = 0; i < outputs; ++i) {
    entry_node_.push_back(clone);
    clone_entry_origin_.push_back(entry_begin_[node] + i);
  }
  entry_begin_.push_back(static_cast<std::int32_t>(entry_node_.size()));
  *copy_at(node, position) = clone;
}

// The backward node `position` reads clones, which are made for it if nothing read them before. They run in the order
// of the forward pass: depth-first, from input to input, more would be alive at once.
void GraphWithClones::redirect(std::int32_t position) {
  const auto& a = arrays;
  const std::int32_t first = a.input_begin[position], last = a.input_begin[position + 1];
  wanted_.clear();
  for (std::int32_t i = first; i < last; ++i)
    if (!a.input_shape_only[i]) want(a.input_entry[i], position);
  for (std::size_t next = 0; next < wanted_.size(); ++next) {
    const std::int32_t node = wanted_[next];
    for (std::int32_t i = a.input_begin[node]; i < a.input_begin[node + 1]; ++i) want(a.input_entry[i], position);
  }
  std::sort(wanted_.begin(), wanted_.end());
  for (std::size_t i = 0; i < wanted_.size(); ++i) add_clone(wanted_[i], position, i > 0 ? nodes() - 1 : -1);
  for (std::int32_t i = first; i < last; ++i) {
    if (a.input_shape_only[i] || !recompute_[a.input_entry[i]]) continue;
    input_entry_[i] = redirected(a.input_entry[i], position);
    redirected_.push_back(i);
  }
}

void GraphWithClones::sort() {
  order.clear();
  visited_.assign(nodes(), 0);
  for (std::int32_t i = 0; i < arrays.outputs; ++i) {
    const std::int32_t head = entry_node_[arrays.output_entry[i]];
    if (visited_[head]) continue;
    visited_[head] = 1;
    stack_.emplace_back(head, 0);
    while (!stack_.empty()) {
      auto& [node, next] = stack_.back();
      const Span in = inputs(node), dep = deps(node);
      std::int32_t child;
      if (next < in.size()) {
        child = entry_node_[in.first[next++]];
      } else if (next < in.size() + dep.size()) {
        child = dep.first[next++ - in.size()];
      } else {
        order.push_back(node);
        stack_.pop_back();
        continue;
      }
      if (!visited_[child]) {
        visited_[child] = 1;
        stack_.emplace_back(child, 0);
      }
    }
  }
}

GraphWithClones::GraphWithClones(const TrainingArrays& given) : arrays(given) {
  const auto& a = arrays;
  entry_begin_.assign(a.entry_begin, a.entry_begin + a.nodes + 1);
  input_begin_.assign(a.input_begin, a.input_begin + a.nodes + 1);
  input_entry_.assign(a.input_entry, a.input_entry + a.input_begin[a.nodes]);
  dep_begin_.assign(a.dep_begin, a.dep_begin + a.nodes + 1);
  dep_node_.assign(a.dep_node, a.dep_node + a.dep_begin[a.nodes]);
  entry_node_.resize(a.entries);
  for (std::int32_t node = 0; node < a.nodes; ++node)
    for (std::int32_t e = a.entry_begin[node]; e < a.entry_begin[node + 1]; ++e) entry_node_[e] = node;
}

void GraphWithClones::forget_clones() {
  const auto& a = arrays;
  entry_begin_.resize(a.nodes + 1);
  entry_node_.resize(a.entries);
  input_begin_.resize(a.nodes + 1);
  input_entry_.resize(a.input_begin[a.nodes]);
  dep_begin_.resize(a.nodes + 1);
  dep_node_.resize(a.dep_begin[a.nodes]);
  for (const std::int32_t at : redirected_) input_entry_[at] = a.input_entry[at];
  redirected_.clear();
  clone_origin_.clear();
  clone_entry_origin_.clear();
}

void GraphWithClones::apply(const std::uint8_t* recompute, const SplitArrays& splits) {
  const auto& a = arrays;
  forget_clones();
  recompute_ = recompute;
  splits_ = splits;
  split_begin_.clear();
  if (splits.count > 0) {
    split_begin_.assign(a.nodes + 1, 0);
    for (std::int32_t i = 0; i < splits.count; ++i) ++split_begin_[splits.node[i] + 1];
    for (std::int32_t node = 0; node < a.nodes; ++node) split_begin_[node + 1] += split_begin_[node];
  }
  clone_of_.assign(splits.count + a.nodes, -1);
  wanted_at_.assign(a.nodes, -1);
  for (std::int32_t node = 0; node < a.nodes; ++node)
    if (!a.forward[node] && !a.variable[node]) redirect(node);
  sort();
}

}  // namespace echo
