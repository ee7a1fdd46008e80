// Gradients in two nodes: one for the weights, and one for the data, which runs as late as it can.
// Specified by echo/frontend/derived_graphs.py; called by echo/native/hook/gradient_rules.cc.
#pragma once
#include <memory>

#include "gradient_rules.h"
#include "layout.h"

namespace echo {

// A gradient node that gets a second node alongside it, for its first output.
struct SplitGradient {
  std::shared_ptr<RawNode> node, forward;
  const GradientRule* wanted;
};

// Where several operators read the same data, its gradient is a sum, and the data has to be there until the last of its
// terms is computed. For each node of `parted` whose first output nothing reads but such a sum: the node itself stays for
// the other outputs, and runs just before the last term that is computed like it; a new node computes the first output
// after that term, in front of which it finds the data gone. What it never reads it is given that last term for, which
// has the same shape. Each product is computed once, as before. Nodes of which this cannot be said are left alone.
void split_gradients(const std::vector<SplitGradient>& parted, RawGraph* gradients);

}  // namespace echo
