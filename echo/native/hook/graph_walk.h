// Walking NNVM's graphs, and making nodes like those that are there.
#pragma once
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "layout.h"

namespace echo {

using NodePtr = std::shared_ptr<RawNode>;

// Depth-first post-order over inputs, then control dependencies: NNVM's own order. `visited` may hold nodes to stop at.
template <typename Visit>
void post_order(const std::vector<RawEntry>& heads, std::unordered_set<const RawNode*>* visited, Visit visit) {
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

template <typename Visit>
void post_order(const std::vector<RawEntry>& heads, Visit visit) {
  std::unordered_set<const RawNode*> visited;
  post_order(heads, &visited, visit);
}

// A node with the attributes of another, and nothing else of it.
NodePtr node_like(const RawNode& node);

// The same, but for one attribute, which the operator parses again.
NodePtr node_like(const RawNode& node, const std::string& key, const std::string& value);

}  // namespace echo
