#include "gradient_rules.h"

#include <algorithm>
#include <stdexcept>

#include "check_marks.h"
#include "graph_walk.h"
#include "mxnet_api.h"
#include "split_gradients.h"

namespace echo {

static const char kGradientAttribute[] = "__echo_gradient__";

static std::runtime_error malformed(const RawNode& node, const std::string& text) {
  return std::runtime_error("echo: node '" + node.attrs.name + "': expected OPERATOR>OPERATOR:INPUTS in " +
                            kGradientAttribute + ", got '" + text + "'");
}

static GradientRule parse(const RawNode& node, const std::string& text) {
  const std::size_t arrow = text.find('>'), colon = text.find(':');
  if (arrow == std::string::npos || colon == std::string::npos || colon < arrow) throw malformed(node, text);
  GradientRule found{text.substr(0, arrow), text.substr(arrow + 1, colon - arrow - 1), {}};
  for (std::size_t at = colon + 1; at <= text.size();) {
    const std::size_t stop = std::min(text.find(',', at), text.size());
    GradientRule::Input input{GradientRule::Of::kGradient, 0};
    if (text.compare(at, stop - at, "s") == 0) {
      input.of = GradientRule::Of::kSum;
    } else {
      const bool of_forward = at < stop && text[at] == 'f';
      if (of_forward) input.of = GradientRule::Of::kForward;
      if (!parse_number(text, at + of_forward, stop, &input.position)) throw malformed(node, text);
    }
    found.inputs.push_back(input);
    at = stop + 1;
  }
  if (!may_exchange(found.before, found.after))
    throw std::runtime_error("echo: node '" + node.attrs.name + "': echo does not know that '" + found.after +
                             "' may compute what '" + found.before + "' does, as " + kGradientAttribute + " says");
  return found;
}

GradientRules collect_gradient_rules(const RawGraph& graph) {
  GradientRules wanted;
  post_order(graph.outputs, [&](const NodePtr& node) {
    if (!node->attrs.op) return;
    const std::string* text = map_find<std::string>(node->attrs.dict, kGradientAttribute);
    if (!text) return;
    wanted.nodes.push_back(node);
    wanted.of.emplace(node.get(), parse(*node, *text));
  });
  return wanted;
}

bool GradientRule::splits() const {
  return std::any_of(inputs.begin(), inputs.end(), [](const Input& input) { return input.of == Of::kSum; });
}

std::vector<RawEntry> inputs_of(const GradientRule& wanted, const NodePtr& forward, const RawNode& node,
                                const RawEntry& sum) {
  if (wanted.after == wanted.before && wanted.inputs.size() != node.inputs.size())
    throw std::runtime_error("echo: node '" + node.attrs.name + "' (" + wanted.before + ") reads " +
                             std::to_string(node.inputs.size()) + " arrays, expected as many in " + kGradientAttribute +
                             ", got " + std::to_string(wanted.inputs.size()));
  std::vector<RawEntry> inputs;
  for (const GradientRule::Input& input : wanted.inputs) {
    if (input.of == GradientRule::Of::kSum) {
      inputs.push_back(sum);
      continue;
    }
    const bool of_forward = input.of == GradientRule::Of::kForward;
    const std::size_t count = of_forward ? api().num_outputs(forward.get()) : node.inputs.size();
    if (input.position >= count)
      throw std::runtime_error("echo: node '" + node.attrs.name + "' (" + wanted.before + ") has " +
                               std::to_string(count) + " to read, expected one of number " +
                               std::to_string(input.position));
    if (of_forward)
      inputs.push_back(RawEntry{forward, static_cast<std::uint32_t>(input.position), 0});
    else
      inputs.push_back(node.inputs[input.position]);
  }
  return inputs;
}

static void exchange(const GradientRule& wanted, const NodePtr& forward, RawNode* node) {
  std::vector<RawEntry> inputs = inputs_of(wanted, forward, *node, {});
  node->attrs.op = api().op_get(wanted.after);
  node->inputs = std::move(inputs);
}

void apply_gradient_rules(const GradientRules& wanted, RawGraph* gradients) {
  if (wanted.nodes.empty()) return;
  std::vector<SplitGradient> found;
  post_order(gradients->outputs, [&](const NodePtr& node) {
    if (!node->attrs.op) return;
    for (const NodePtr& dep : node->control_deps) {
      const auto of = wanted.of.find(dep.get());
      if (of != wanted.of.end() && node->attrs.op->name == of->second.before) found.push_back({node, dep, &of->second});
    }
  });
  std::vector<SplitGradient> second;
  for (const SplitGradient& each : found) {
    if (each.wanted->splits())
      second.push_back(each);
    else
      exchange(*each.wanted, each.forward, each.node.get());
  }
  split_gradients(second, gradients);
}

}  // namespace echo
