// Other implementations of gradients: another operator, or fewer of the inputs, chosen by the planner.
#pragma once
#include <string>
#include <unordered_map>

#include "layout.h"

namespace echo {

// What a forward node asks for: "OLD>NEW:0,2,f0" has the node OLD of its gradient become NEW, which reads the first and
// the third input of OLD and the forward node's first output. A position may stand there twice: where an operator never
// reads an input, it is given another one.
struct Implementation {
  struct Input {
    bool of_forward;
    std::size_t position;
  };
  std::string before, after;
  std::vector<Input> inputs;
};

// The forward nodes that ask, held alive while the gradient is taken.
struct Implementations {
  std::vector<std::shared_ptr<RawNode>> nodes;
  std::unordered_map<const RawNode*, Implementation> of;
};

// Collects what the forward nodes of `graph` ask for.
// Throws std::runtime_error where that is malformed.
Implementations collect_implementations(const RawGraph& graph);

// Exchanges the gradient nodes that `gradients` reaches: those of the right operator that depend on a node that asks.
// Throws std::runtime_error where such a node has fewer inputs, or the forward node fewer outputs, than are wanted.
void apply_implementations(const Implementations& wanted, RawGraph* gradients);

}  // namespace echo
