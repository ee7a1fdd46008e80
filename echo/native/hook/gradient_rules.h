// Gradient rules: another operator computes a gradient, or from fewer inputs, as the planner chose.
// Specified by echo/frontend/derived_graphs.py; gradients in two nodes are made by echo/native/hook/split_gradients.cc.
#pragma once
#include <string>
#include <unordered_map>

#include "layout.h"

namespace echo {

// What a forward node asks for: "OLD>NEW:0,2,f0" has the node OLD of its gradient become NEW, which reads the first and
// the third input of OLD and the forward node's first output. A position may stand there twice: where an operator never
// reads an input, it is given another one. With an "s", as in "OLD>NEW:0,s,2", NEW is a second node alongside OLD, for the
// first output alone: see split_gradients.h.
struct GradientRule {
  enum class Of { kGradient, kForward, kSum };
  struct Input {
    Of of;
    unsigned long position;
  };
  std::string before, after;
  std::vector<Input> inputs;
  bool splits() const;
};

// The forward nodes that ask, held alive while the gradient is taken.
struct GradientRules {
  std::vector<std::shared_ptr<RawNode>> nodes;
  std::unordered_map<const RawNode*, GradientRule> of;
};

// Collects what the forward nodes of `graph` ask for.
// Throws std::runtime_error where that is malformed.
GradientRules collect_gradient_rules(const RawGraph& graph);

// Exchanges the gradient nodes that `gradients` reaches: those of the right operator that depend on a node that asks.
// Throws std::runtime_error where such a node has fewer inputs, or the forward node fewer outputs, than are wanted.
void apply_gradient_rules(const GradientRules& wanted, RawGraph* gradients);

// The inputs that a rule wants of a gradient node; `sum` is what stands for "s".
// Throws std::runtime_error as apply_gradient_rules.
std::vector<RawEntry> inputs_of(const GradientRule& wanted, const std::shared_ptr<RawNode>& forward,
                                const RawNode& node, const RawEntry& sum);

}  // namespace echo
