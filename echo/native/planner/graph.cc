#include "graph.h"

namespace echo {

std::int32_t PlannedGraph::redirected(std::int32_t entry, const std::uint8_t* recompute) const {
  if (!recompute[entry]) return entry;
  const std::int32_t node = entry_node_[entry];
  return entry_begin_[clone_of_[node]] + entry - entry_begin_[node];
}

void PlannedGraph::add_clone(std::int32_t node, const std::uint8_t* recompute) {
  clone_of_[node] = nodes();
  clone_origin_.push_back(node);
  const std::int32_t* inputs = arrays.input_entry + arrays.input_begin[node];
  const std::int32_t count = arrays.input_begin[node + 1] - arrays.input_begin[node];
  for (std::int32_t i = 0; i < count; ++i) input_entry_.push_back(redirected(inputs[i], recompute));
  if (arrays.masked[node]) input_entry_.push_back(entry_begin_[node] + 1);
  for (std::int32_t i = arrays.dep_begin[node]; i < arrays.dep_begin[node + 1]; ++i) dep_node_.push_back(arrays.dep_node[i]);
  input_begin_.push_back(static_cast<std::int32_t>(input_entry_.size()));
  dep_begin_.push_back(static_cast<std::int32_t>(dep_node_.size()));
  const std::int32_t outputs = arrays.masked[node] ? 1 : entry_begin_[node + 1] - entry_begin_[node];
  for (std::int32_t i = 0; i < outputs; ++i) {
    entry_node_.push_back(clone_of_[node]);
    entry_origin_.push_back(entry_begin_[node] + i);
  }
  entry_begin_.push_back(static_cast<std::int32_t>(entry_node_.size()));
}

void PlannedGraph::redirect_backward(const std::uint8_t* recompute) {
  for (std::int32_t node = 0; node < arrays.nodes; ++node) {
    if (arrays.forward[node] || arrays.variable[node]) continue;
    for (std::int32_t i = arrays.input_begin[node]; i < arrays.input_begin[node + 1]; ++i)
      if (!arrays.input_ignored[i]) input_entry_[i] = redirected(input_entry_[i], recompute);
  }
}

void PlannedGraph::sort() {
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

void PlannedGraph::apply(const std::uint8_t* recompute) {
  const auto& a = arrays;
  entry_begin_.assign(a.entry_begin, a.entry_begin + a.nodes + 1);
  input_begin_.assign(a.input_begin, a.input_begin + a.nodes + 1);
  input_entry_.assign(a.input_entry, a.input_entry + a.input_begin[a.nodes]);
  dep_begin_.assign(a.dep_begin, a.dep_begin + a.nodes + 1);
  dep_node_.assign(a.dep_node, a.dep_node + a.dep_begin[a.nodes]);
  entry_node_.resize(a.entries);
  entry_origin_.resize(a.entries);
  for (std::int32_t node = 0; node < a.nodes; ++node)
    for (std::int32_t e = a.entry_begin[node]; e < a.entry_begin[node + 1]; ++e) {
      entry_node_[e] = node;
      entry_origin_[e] = e;
    }
  clone_origin_.clear();
  clone_of_.assign(a.nodes, -1);
  for (std::int32_t node = 0; node < a.nodes; ++node) {
    if (!a.forward[node] || a.variable[node]) continue;
    bool any = false;
    for (std::int32_t e = a.entry_begin[node]; e < a.entry_begin[node + 1]; ++e) any = any || recompute[e];
    if (any) add_clone(node, recompute);
  }
  redirect_backward(recompute);
  sort();
}

}  // namespace echo
