#include "gradient.h"

#include <algorithm>
#include <functional>
#include <map>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "check_marks.h"
#include "graph_walk.h"
#include "mxnet_api.h"

namespace echo {

// The recomputed outputs, as "0" or "0,2"; where the node is recomputed more than once, or not for all backward nodes,
// then the backward nodes at which that begins, as "0@17,230".
static const char kPlanAttribute[] = "__echo_recompute__";
static const char kRangeAttribute[] = "__echo_match_range__";

static const std::string* plan_of(const RawNode& node) {
  return node.attrs.op ? map_find<std::string>(node.attrs.dict, kPlanAttribute) : nullptr;
}

Forward collect_forward(const RawGraph& graph) {
  Forward forward;
  bool planned = false;
  post_order(graph.outputs, [&](const NodePtr& node) {
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
    if (!range) continue;
    unsigned long number = 0;
    if (*range != "-1" && *range != "-1s" && !parse_number(*range, 0, range->size(), &number))
      throw std::runtime_error("echo: node '" + node.source->attrs.name + "': expected a number, -1 or -1s in " +
                               kRangeAttribute + ", got '" + *range + "'");
    return range;
  }
  return nullptr;
}

// What a forward node's plan says: which outputs are read from clones, and at which backward nodes, counted from 0, the
// readers of another clone begin.
struct Recomputed {
  std::vector<bool> outputs;
  std::vector<unsigned long> splits;
  std::vector<NodePtr> clones;  // one for each split, made when first read

  // The clone for a reader at this backward node; nullptr: the node itself.
  NodePtr* clone_at(unsigned long position) {
    const auto after = std::upper_bound(splits.begin(), splits.end(), position);
    return after == splits.begin() ? nullptr : &clones[after - splits.begin() - 1];
  }
};
using Plans = std::unordered_map<const RawNode*, Recomputed>;

static bool ascend(const std::vector<unsigned long>& numbers) {
  return std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) == numbers.end();
}

static Recomputed parse_plan(const std::string& text, const RawNode& node) {
  const std::string reason = why_not_again(node);
  if (!reason.empty())
    throw std::runtime_error("echo: node '" + node.attrs.name + "' (" + node.attrs.op->name +
                             ") cannot be recomputed: it " + reason);
  Recomputed plan;
  plan.outputs.assign(api().num_outputs(&node), false);
  const std::uint32_t count = outputs_of_clone(node);
  const std::size_t mark = text.find('@');
  const std::vector<unsigned long> outputs = parse_numbers(text.substr(0, mark));
  plan.splits = mark == std::string::npos ? std::vector<unsigned long>{0} : parse_numbers(text.substr(mark + 1));
  if (outputs.empty() || !ascend(outputs) || outputs.back() >= count || plan.splits.empty() || !ascend(plan.splits))
    throw std::runtime_error("echo: node '" + node.attrs.name + "': expected ascending output numbers below " +
                             std::to_string(count) + ", and perhaps @ and ascending positions, in " + kPlanAttribute +
                             ", got '" + text + "'");
  for (const unsigned long index : outputs) plan.outputs[index] = true;
  plan.clones.resize(plan.splits.size());
  return plan;
}

// cuDNN writes BatchNorm's moving statistics in the forward pass. With a momentum of 1 the clone leaves finite ones as
// they are: statistics * 1 + new ones * 0. (On CPUs the gradient writes them, which has the momentum of the original.)
static NodePtr copy_node(const RawNode& node) {
  NodePtr copy = node.attrs.op->name == "BatchNorm" ? node_like(node, "momentum", "1") : node_like(node);
  copy->inputs = node.inputs;
  copy->control_deps = node.control_deps;
  return copy;
}

// Where the clone of an entry's node is kept that a reader at this position reads; nullptr: it reads the node itself.
static NodePtr* clone_of(const RawEntry& entry, Plans* plans, unsigned long position) {
  const auto found = plans->find(entry.node.get());
  if (found == plans->end() || !found->second.outputs[entry.index]) return nullptr;
  return found->second.clone_at(position);
}

static void redirect(RawEntry* entry, Plans* plans, unsigned long position) {
  if (const NodePtr* clone = clone_of(*entry, plans, position)) entry->node = *clone;
}

// A clone of `node` whose inputs are what its producers are at this position. Dropout's clone multiplies by the stashed
// mask, as its forward pass did. (Its gradient operator would do so too, but may run only once a step: it resets a flag
// in the state that it shares with the forward node.)
static NodePtr clone_node(const NodePtr& node, Plans* plans, unsigned long position) {
  NodePtr clone = copy_node(*node);
  for (RawEntry& entry : clone->inputs) redirect(&entry, plans, position);
  if (node->attrs.op->name == "Dropout") {
    clone->attrs.op = api().op_get("elemwise_mul");
    clone->inputs.push_back(RawEntry{node, 1, 0});
    return clone;
  }
  return clone;
}

// Makes the clones that a backward node is about to read, and those that they read themselves. Each runs after the one
// before it in the forward pass: depth-first, from input to input, more would be alive at once.
static void make_clones(const std::vector<RawEntry>& read, Plans* plans, unsigned long position,
                        const std::unordered_map<const RawNode*, std::size_t>& order) {
  std::map<std::size_t, NodePtr> wanted;
  std::vector<NodePtr> below;
  auto want = [&](const RawEntry& entry) {
    const NodePtr* clone = clone_of(entry, plans, position);
    if (clone && !*clone && wanted.emplace(order.at(entry.node.get()), entry.node).second) below.push_back(entry.node);
  };
  for (const RawEntry& entry : read) want(entry);
  while (!below.empty()) {
    const NodePtr node = std::move(below.back());
    below.pop_back();
    for (const RawEntry& entry : node->inputs) want(entry);
  }
  NodePtr before;
  for (const auto& [number, node] : wanted) {
    NodePtr clone = clone_node(node, plans, position);
    if (before) clone->control_deps.push_back(before);
    before = clone;
    *plans->at(node.get()).clone_at(position) = std::move(clone);
  }
}

static std::vector<bool> is_shape_only(const RawNode& node) {
  std::vector<bool> shape_only(node.inputs.size(), false);
  for (const std::uint32_t index : shape_only_inputs(node.attrs))
    if (index < shape_only.size()) shape_only[index] = true;
  return shape_only;
}

static void check_splits(const Plans& plans, std::size_t backward) {
  for (const auto& [node, plan] : plans)
    if (plan.splits.back() >= backward)
      throw std::runtime_error("echo: node '" + node->attrs.name + "': expected positions below " +
                               std::to_string(backward) + ", or none, in " + kPlanAttribute + ", got " +
                               std::to_string(plan.splits.back()));
}

void apply_plan(const Forward& forward, RawGraph* gradients) {
  Plans plans;
  std::unordered_map<const RawNode*, std::size_t> order;
  std::unordered_set<const RawNode*> visited;
  for (const NodePtr& node : forward.nodes) {
    order.emplace(node.get(), order.size());
    visited.insert(node.get());
    if (const std::string* plan = plan_of(*node)) plans.emplace(node.get(), parse_plan(*plan, *node));
  }
  std::vector<NodePtr> backward;
  post_order(gradients->outputs, &visited, [&](const NodePtr& node) {
    if (node->attrs.op) backward.push_back(node);
  });
  check_splits(plans, backward.size());
  for (std::size_t position = 0; position < backward.size(); ++position) {
    RawNode& node = *backward[position];
    const std::vector<bool> shape_only = is_shape_only(node);
    std::vector<RawEntry> read;
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      if (!shape_only[i]) read.push_back(node.inputs[i]);
    make_clones(read, &plans, position, order);
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      if (!shape_only[i]) redirect(&node.inputs[i], &plans, position);
  }
}

}  // namespace echo
