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
    clone_entry_origin_.push_back(entry_begin_[node] + i);
  }
  entry_begin_.push_back(static_cast<std::int32_t>(entry_node_.size()));
}

void PlannedGraph::redirect_backward(const std::uint8_t* recompute) {
  for (std::int32_t entry = 0; entry < arrays.entries; ++entry) {
    if (!recompute[entry]) continue;
    for (std::int32_t i = read_begin_[entry]; i < read_begin_[entry + 1]; ++i) {
      input_entry_[read_at_[i]] = redirected(entry, recompute);
      redirected_.push_back(read_at_[i]);
    }
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

PlannedGraph::PlannedGraph(const TrainingArrays& given) : arrays(given) {
  const auto& a = arrays;
  entry_begin_.assign(a.entry_begin, a.entry_begin + a.nodes + 1);
  input_begin_.assign(a.input_begin, a.input_begin + a.nodes + 1);
  input_entry_.assign(a.input_entry, a.input_entry + a.input_begin[a.nodes]);
  dep_begin_.assign(a.dep_begin, a.dep_begin + a.nodes + 1);
  dep_node_.assign(a.dep_node, a.dep_node + a.dep_begin[a.nodes]);
  entry_node_.resize(a.entries);
  for (std::int32_t node = 0; node < a.nodes; ++node)
    for (std::int32_t e = a.entry_begin[node]; e < a.entry_begin[node + 1]; ++e) entry_node_[e] = node;
  clone_of_.assign(a.nodes, -1);
  find_backward_reads();
}

void PlannedGraph::find_backward_reads() {
  const auto& a = arrays;
  read_begin_.assign(a.entries + 1, 0);
  const auto for_each_read = [&](auto visit) {
    for (std::int32_t node = 0; node < a.nodes; ++node) {
      if (a.forward[node] || a.variable[node]) continue;
      for (std::int32_t i = a.input_begin[node]; i < a.input_begin[node + 1]; ++i)
        if (!a.input_ignored[i]) visit(a.input_entry[i], i);
    }
  };
  for_each_read([&](std::int32_t entry, std::int32_t) { ++read_begin_[entry + 1]; });
  for (std::int32_t entry = 0; entry < a.entries; ++entry) read_begin_[entry + 1] += read_begin_[entry];
  read_at_.resize(read_begin_[a.entries]);
  std::vector<std::int32_t> next(read_begin_.begin(), read_begin_.end() - 1);
  for_each_read([&](std::int32_t entry, std::int32_t at) { read_at_[next[entry]++] = at; });
}

void PlannedGraph::forget_clones() {
  const auto& a = arrays;
  entry_begin_.resize(a.nodes + 1);
  entry_node_.resize(a.entries);
  input_begin_.resize(a.nodes + 1);
  input_entry_.resize(a.input_begin[a.nodes]);
  dep_begin_.resize(a.nodes + 1);
  dep_node_.resize(a.dep_begin[a.nodes]);
  for (const std::int32_t at : redirected_) input_entry_[at] = a.input_entry[at];
  redirected_.clear();
  for (const std::int32_t node : clone_origin_) clone_of_[node] = -1;
  clone_origin_.clear();
  clone_entry_origin_.clear();
}

void PlannedGraph::apply(const std::uint8_t* recompute) {
  forget_clones();
  for (std::int32_t entry = 0; entry < arrays.entries; ++entry) {
    const std::int32_t node = entry_node_[entry];
    if (recompute[entry] && clone_of_[node] < 0 && arrays.forward[node] && !arrays.variable[node]) add_clone(node, recompute);
  }
  redirect_backward(recompute);
  sort();
}

}  // namespace echo
