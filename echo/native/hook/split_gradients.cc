#include "split_gradients.h"

#include <unordered_map>

#include "graph_walk.h"
#include "mxnet_api.h"

namespace echo {

namespace {

static const char kSum[] = "add_n";

// When each node of a gradient runs, and who reads its first output.
struct Order {
  std::unordered_map<const RawNode*, std::size_t> position;
  std::unordered_map<const RawNode*, NodePtr> reader;
  std::unordered_map<const RawNode*, int> reads;

  explicit Order(const RawGraph& gradients) {
    for (const RawEntry& output : gradients.outputs) ++reads[output.index == 0 ? output.node.get() : nullptr];
    post_order(gradients.outputs, [&](const NodePtr& node) {
      position.emplace(node.get(), position.size());
      for (const RawEntry& entry : node->inputs) {
        if (entry.index != 0) continue;
        reader[entry.node.get()] = node;
        ++reads[entry.node.get()];
      }
    });
  }
  // The sum of which the first output of `node` is a term, and nothing else; nullptr where there is none.
  RawNode* sum_of(const RawNode* node) const {
    const auto found = reader.find(node);
    if (found == reader.end() || reads.at(node) != 1 || found->second->attrs.op->name != kSum) return nullptr;
    return found->second.get();
  }
};

// The term of a sum that is computed last, and later than `node`, by the same operator; nullptr where there is none.
const RawEntry* last_term(const RawNode& sum, const RawNode& node, const Order& order) {
  const RawEntry* last = nullptr;
  std::size_t latest = order.position.at(&node);
  for (const RawEntry& term : sum.inputs) {
    const auto position = order.position.find(term.node.get());  // not there: a node that was added here
    if (term.index != 0 || term.node->attrs.op != node.attrs.op || position == order.position.end()) continue;
    if (position->second <= latest) continue;
    latest = position->second;
    last = &term;
  }
  return last;
}

}  // namespace

void split_gradients(const std::vector<SplitGradient>& parted, RawGraph* gradients) {
  if (parted.empty()) return;
  const Order order(*gradients);
  for (const SplitGradient& each : parted) {
    RawNode* sum = order.sum_of(each.node.get());
    const RawEntry* term = sum ? last_term(*sum, *each.node, order) : nullptr;
    if (!term) continue;
    const RawEntry last = *term;
    NodePtr second = node_like(*each.node);
    second->inputs = inputs_of(*each.wanted, each.forward, *each.node, last);
    second->attrs.op = api().op_get(each.wanted->after);
    second->control_deps = each.node->control_deps;
    for (RawEntry& entry : sum->inputs)
      if (entry.node == each.node && entry.index == 0) entry.node = second;
    last.node->control_deps.push_back(each.node);
  }
}

}  // namespace echo
