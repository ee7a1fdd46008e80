// A test mode: what was planned is written down, and chunks of memory are overwritten once nothing reads them any more.
#pragma once
#include "layout.h"
#include "storage.h"

namespace echo {

bool is_recording();

// Keeps what MXNet's memory pass, or echo's own assignment, planned for a graph, for `echo_recorded`.
void record(const Reads& reads, const RawGraph& graph);

}  // namespace echo
