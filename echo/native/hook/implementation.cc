#include "implementation.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "late.h"
#include "mxnet_api.h"
#include "walk.h"

namespace echo {

static const char kGradientAttribute[] = "__echo_gradient__";

static std::runtime_error malformed(const RawNode& node, const std::string& text) {
  return std::runtime_error("echo: node '" + node.attrs.name + "': expected OPERATOR>OPERATOR:INPUTS in " +
                            kGradientAttribute + ", got '" + text + "'");
}

static Implementation parse(const RawNode& node, const std::string& text) {
  const std::size_t arrow = text.find('>'), colon = text.find(':');
  if (arrow == std::string::npos || colon == std::string::npos || colon < arrow) throw malformed(node, text);
  Implementation found{text.substr(0, arrow), text.substr(arrow + 1, colon - arrow - 1), {}};
  for (std::size_t at = colon + 1; at <= text.size();) {
    const char kind = at < text.size() ? text[at] : '\0';
    const Implementation::Of of = kind == 'f'   ? Implementation::Of::kForward
                                  : kind == 's' ? Implementation::Of::kSum
                                                : Implementation::Of::kGradient;
    if (of != Implementation::Of::kGradient) ++at;
    std::size_t stop = at;
    unsigned long position = 0;
    if (of != Implementation::Of::kSum) {
      char* end = nullptr;
      position = std::strtoul(text.c_str() + at, &end, 10);
      stop = static_cast<std::size_t>(end - text.c_str());
      if (stop == at) throw malformed(node, text);
    }
    if (stop < text.size() && text[stop] != ',') throw malformed(node, text);
    found.inputs.push_back({of, position});
    at = stop + 1;
  }
  return found;
}

Implementations collect_implementations(const RawGraph& graph) {
  Implementations wanted;
  post_order(graph.outputs, [&](const NodePtr& node) {
    if (!node->attrs.op) return;
    const std::string* text = map_find<std::string>(node->attrs.dict, kGradientAttribute);
    if (!text) return;
    wanted.nodes.push_back(node);
    wanted.of.emplace(node.get(), parse(*node, *text));
  });
  return wanted;
}

bool Implementation::is_late() const {
  return std::any_of(inputs.begin(), inputs.end(), [](const Input& input) { return input.of == Of::kSum; });
}

std::vector<RawEntry> inputs_of(const Implementation& wanted, const NodePtr& forward, const RawNode& node,
                                const RawEntry& sum) {
  std::vector<RawEntry> inputs;
  for (const Implementation::Input& input : wanted.inputs) {
    if (input.of == Implementation::Of::kSum) {
      inputs.push_back(sum);
      continue;
    }
    const bool of_forward = input.of == Implementation::Of::kForward;
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

static void exchange(const Implementation& wanted, const NodePtr& forward, RawNode* node) {
  std::vector<RawEntry> inputs = inputs_of(wanted, forward, *node, {});
  node->attrs.op = api().op_get(wanted.after);
  node->inputs = std::move(inputs);
}

void apply_implementations(const Implementations& wanted, RawGraph* gradients) {
  if (wanted.nodes.empty()) return;
  std::vector<Parted> found;
  post_order(gradients->outputs, [&](const NodePtr& node) {
    if (!node->attrs.op) return;
    for (const NodePtr& dep : node->control_deps) {
      const auto of = wanted.of.find(dep.get());
      if (of != wanted.of.end() && node->attrs.op->name == of->second.before)
        found.push_back({node, dep, &of->second});
    }
  });
  std::vector<Parted> late;
  for (const Parted& each : found) {
    if (each.wanted->is_late())
      late.push_back(each);
    else
      exchange(*each.wanted, each.forward, each.node.get());
  }
  part_gradients(late, gradients);
}

}  // namespace echo
