#include "gradient.h"

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "mxnet_api.h"

namespace echo {

static const char kPlanAttribute[] = "__echo_recompute__";  // value: the recomputed outputs, as "0" or "0,2"
static const char kRangeAttribute[] = "__echo_match_range__";

using NodePtr = std::shared_ptr<RawNode>;

// Depth-first post-order over inputs, then control dependencies: NNVM's own order. `visited` may hold nodes to stop at.
template <typename Visit>
static void post_order(const std::vector<RawEntry>& heads, std::unordered_set<const RawNode*>* visited, Visit visit) {
  std::vector<std::pair<NodePtr, std::size_t>> stack;
  auto push = [&](const NodePtr& node) {
    if (node && visited->insert(node.get()).second) stack.emplace_back(node, 0);
  };
  for (const RawEntry& head : heads) {
    push(head.node);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      const std::size_t inputs = node->inputs.size();
      if (next < inputs) {
        push(NodePtr(node->inputs[next++].node));
      } else if (next < inputs + node->control_deps.size()) {
        push(NodePtr(node->control_deps[next++ - inputs]));
      } else {
        NodePtr done = std::move(node);
        stack.pop_back();
        visit(done);
      }
    }
  }
}

static const std::string* plan_of(const RawNode& node) {
  return node.attrs.op ? map_find<std::string>(node.attrs.dict, kPlanAttribute) : nullptr;
}

Forward collect_forward(const RawGraph& graph) {
  Forward forward;
  bool planned = false;
  std::unordered_set<const RawNode*> visited;
  post_order(graph.outputs, &visited, [&](const NodePtr& node) {
    planned = planned || plan_of(*node) != nullptr;
    forward.nodes.push_back(node);
  });
  if (!planned) forward.nodes.clear();
  return forward;
}

const std::string* match_range_of(const RawGraph& graph) {
  for (const IndexedNode& node : api().indexed_graph(&graph)->nodes) {
    if (!node.source->attrs.op) continue;
    const std::string* range = map_find<std::string>(node.source->attrs.dict, kRangeAttribute);
    if (range) return range;
  }
  return nullptr;
}

static std::vector<bool> parse_outputs(const std::string& text, const RawNode& node) {
  std::vector<bool> outputs(api().num_outputs(&node), false);
  for (std::size_t at = 0; at < text.size();) {
    char* end = nullptr;
    const unsigned long index = std::strtoul(text.c_str() + at, &end, 10);
    const std::size_t stop = static_cast<std::size_t>(end - text.c_str());
    if (stop == at || index >= outputs.size() || (stop < text.size() && text[stop] != ','))
      throw std::runtime_error("echo: node '" + node.attrs.name + "': expected output numbers below " +
                               std::to_string(outputs.size()) + " in " + kPlanAttribute + ", got '" + text + "'");
    outputs[index] = true;
    at = stop + 1;
  }
  return outputs;
}

static NodePtr copy_node(const RawNode& node) {
  void* memory = ::operator new(sizeof(RawNode));
  auto* copy = static_cast<RawNode*>(memory);
  api().copy_attrs(&copy->attrs, node.attrs);
  new (&copy->inputs) std::vector<RawEntry>(node.inputs);
  new (&copy->control_deps) std::vector<NodePtr>(node.control_deps);
  copy->info = RawAny{};
  copy->attrs.name += "_echo";
  return NodePtr(copy, [](RawNode* raw) {
    api().destroy_node(raw);
    ::operator delete(raw);
  });
}

struct Clone {
  NodePtr node;
  std::vector<bool> outputs;  // which outputs are read from the clone
};
using Clones = std::unordered_map<const RawNode*, Clone>;

static void redirect(RawEntry* entry, const Clones& clones) {
  const auto found = clones.find(entry->node.get());
  if (found == clones.end() || !found->second.outputs[entry->index]) return;
  entry->node = found->second.node;
}

// A clone of `node` whose inputs are the clones of its planned producers. Dropout's clone multiplies by the stashed
// mask, as its forward pass did. (Its gradient operator would do so too, but may run only once a step: it resets a flag
// in the state that it shares with the forward node.)
static NodePtr clone_node(const NodePtr& node, const Clones& clones) {
  NodePtr clone = copy_node(*node);
  for (RawEntry& entry : clone->inputs) redirect(&entry, clones);
  if (node->attrs.op->name == "Dropout") {
    clone->attrs.op = api().op_get("elemwise_mul");
    clone->inputs.push_back(RawEntry{node, 1, 0});
    return clone;
  }
  if (is_random(node->attrs) || (mutates(node->attrs) && node->attrs.op->name != "BatchNorm"))
    throw std::runtime_error("echo: node '" + node->attrs.name + "' (" + node->attrs.op->name +
                             ") draws random numbers or changes its inputs and cannot be recomputed");
  return clone;
}

void apply_plan(const Forward& forward, RawGraph* gradients) {
  Clones clones;
  for (const NodePtr& node : forward.nodes) {
    const std::string* plan = plan_of(*node);
    if (!plan) continue;
    Clone clone{nullptr, parse_outputs(*plan, *node)};
    clone.node = clone_node(node, clones);
    clones.emplace(node.get(), std::move(clone));
  }
  std::unordered_set<const RawNode*> visited;
  for (const NodePtr& node : forward.nodes) visited.insert(node.get());
  std::vector<NodePtr> backward;
  post_order(gradients->outputs, &visited, [&](const NodePtr& node) { backward.push_back(node); });
  for (const NodePtr& node : backward) {
    if (!node->attrs.op) continue;
    const auto ignored = ignored_inputs(node->attrs);
    std::vector<bool> skip(node->inputs.size(), false);
    for (std::uint32_t index : ignored)
      if (index < skip.size()) skip[index] = true;
    for (std::size_t i = 0; i < node->inputs.size(); ++i)
      if (!skip[i]) redirect(&node->inputs[i], clones);
  }
}

}  // namespace echo
