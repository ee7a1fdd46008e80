// Gradients that nobody reads, and for which MXNet plans memory that it then never allocates.
#pragma once
#include <cstdint>
#include <vector>

#include "layout.h"

namespace echo {

// By entry of a planned graph: 1 for a gradient that nobody asked for (that of the data, of a frozen weight) of an operator
// that oneDNN computes, which leaves it out. MXNet allocates a chunk when an operator first touches it, so one that holds
// nothing else is never there; an operator that is not oneDNN's touches what it does not compute, too.
std::vector<std::uint8_t> untouched(const RawGraph& graph);

}  // namespace echo
