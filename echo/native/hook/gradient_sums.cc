#include "gradient_sums.h"

#include <cstdint>

namespace echo {

static constexpr int kDynamicStorage = -3;  // allocated when it is computed: sparse arrays

std::vector<GradientSum> gradient_sums(const RawIndexedGraph& graph, const std::vector<int>& storage) {
  const auto id = [&](const IndexedEntry& entry) { return graph.entry_offsets[entry.node] + entry.index; };
  const auto computed = [&](const IndexedEntry& entry) { return graph.nodes[entry.node].source->attrs.op != nullptr; };
  std::vector<std::uint32_t> count(storage.size(), 0);
  for (const IndexedEntry& output : graph.outputs) ++count[id(output)];
  for (const IndexedNode& node : graph.nodes)
    for (std::size_t i = 0; i < node.inputs.size; ++i) ++count[id(node.inputs.data[i])];
  std::vector<GradientSum> sums;
  for (std::size_t number = 0; number < graph.nodes.size(); ++number) {
    const IndexedNode& node = graph.nodes[number];
    if (!node.source->attrs.op || node.source->attrs.op->name != "_grad_add") continue;
    const IndexedEntry &sum = node.inputs.data[0], &term = node.inputs.data[1];
    const bool shares = storage[id(sum)] == storage[graph.entry_offsets[number]];
    sums.push_back({term, shares && computed(sum) && computed(term) && count[id(term)] == 1 && sum.node < term.node &&
                              storage[id(term)] != kDynamicStorage});
  }
  return sums;
}

}  // namespace echo
