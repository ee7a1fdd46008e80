#include "gradient_copies.h"

#include <map>
#include <utility>

#include "graph_walk.h"
#include "mxnet_api.h"

namespace echo {

static const char kCopyAttribute[] = "__echo_copies__";

// What the forward node of a gradient asks for, empty where that is nothing.
static std::string asks(const RawEntry& entry) {
  const RawAttrs& attrs = entry.node->attrs;
  const std::string* text = attrs.op && attrs.op->name != "_copy" ? map_find<std::string>(attrs.dict, kCopyAttribute)
                                                                  : nullptr;
  return text ? *text : std::string();
}

// A copy of an entry. A node of the gradient has the attributes of its forward node, which a copy has no use for.
static RawEntry copied(const RawEntry& entry) {
  NodePtr copy = node_like(*entry.node);
  copy->attrs.op = api().op_get("_copy");
  copy->inputs.push_back(entry);
  return RawEntry{std::move(copy), 0, 0};
}

void copy_gradients(RawGraph* gradients) {
  std::vector<NodePtr> sums;
  post_order(gradients->outputs, [&](const NodePtr& node) {
    if (node->attrs.op && node->attrs.op->name == "_grad_add" && !asks(node->inputs[1]).empty()) sums.push_back(node);
  });
  for (const NodePtr& sum : sums) sum->inputs[1] = copied(sum->inputs[1]);
  for (RawEntry& output : gradients->outputs)
    if (asks(output) == "all") output = copied(output);
}

}  // namespace echo
