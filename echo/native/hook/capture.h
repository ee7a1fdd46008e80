// Writing the planned training graph down as JSON.
#pragma once
#include <string>

#include "layout.h"

namespace echo {

// The graph after MXNet's memory pass: every node with inputs, control dependencies, shapes, dtypes, storage ids,
// in-place options and the inputs that are read for their shape only.
std::string graph_to_json(const RawGraph& graph);

}  // namespace echo
