// Sums of gradients that MXNet computes in place.
#pragma once
#include <vector>

#include "layout.h"

namespace echo {

// A _grad_add: after the memory pass, MXNet's DetectInplaceAddTo has the operator that computes the second term of some
// of them add it to the first (`in_place`), and skips the _grad_add.
struct GradientSum {
  IndexedEntry term;
  bool in_place;
};

// All of a graph, in execution order. `storage` says where entries are, as MXNet's memory pass or echo's assignment does.
std::vector<GradientSum> gradient_sums(const RawIndexedGraph& graph, const std::vector<int>& storage);

}  // namespace echo
