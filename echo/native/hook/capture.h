// Writing the planned training graph down as JSON.
#pragma once
#include <string>

#include "layout.h"

namespace echo {

// The graph after MXNet's memory pass: its bytes, those of each chunk, and which sums of gradients are computed in place;
// with `nodes` also every node with inputs, control dependencies, shapes, dtypes, storage ids, in-place options and the
// inputs that are read for their shape only.
std::string graph_to_json(const RawGraph& graph, bool nodes);

}  // namespace echo
