#include "copies.h"

#include <map>
#include <utility>

#include "mxnet_api.h"
#include "walk.h"

namespace echo {

static const char kCopyAttribute[] = "__echo_copies__";
static const char kGradientPrefix[] = "_backward__echo_";

static bool overwrites(const RawEntry& entry) {
  const RawOp* op = entry.node->attrs.op;
  return op && op->name.compare(0, sizeof(kGradientPrefix) - 1, kGradientPrefix) == 0;
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
    if (node->attrs.op && node->attrs.op->name == "_grad_add" && overwrites(node->inputs[1])) sums.push_back(node);
  });
  for (const NodePtr& sum : sums) sum->inputs[1] = copied(sum->inputs[1]);
  for (RawEntry& output : gradients->outputs)
    if (overwrites(output) && map_find<std::string>(output.node->attrs.dict, kCopyAttribute)) output = copied(output);
}

}  // namespace echo
