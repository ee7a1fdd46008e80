// Applying a plan to the training graph that MXNet's gradient pass returns.
// Specified by echo/ir/schedule.py; echo/native/planner/graph.cc makes the same clones for the planner.
#pragma once
#include "layout.h"

namespace echo {

// The forward part of a graph, held alive while its gradient is taken.
struct Forward {
  std::vector<std::shared_ptr<RawNode>> nodes;  // topological order; empty where no node carries a plan attribute
};

// Collects the forward nodes of `graph` when at least one carries the plan attribute.
Forward collect_forward(const RawGraph& graph);

// The match range that a plan asks MXNet's memory planner to use, null where there is none; "-1" asks for echo's own
// assignment.
const std::string* match_range_of(const RawGraph& graph);

// Clones every planned forward node and lets the backward nodes that `gradients` reaches read the clones.
// Throws std::runtime_error for a plan on an operator that must not run twice.
void apply_plan(const Forward& forward, RawGraph* gradients);

}  // namespace echo
