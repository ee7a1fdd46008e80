// Copies after gradients whose operators cannot add, where MXNet would have them add to what is there.
#pragma once
#include "layout.h"

namespace echo {

// MXNet never tells an operator of an extension library to add, and the gradient of _split_v2 does not listen: they
// overwrite, and a gradient is silently wrong. Forward nodes that echo put into the graph have the attribute
// __echo_copies__. "sums": the second term of a _grad_add, which MXNet may let add to the first, is copied; a copy can add.
// "all": gradients that go to the user are copied too (grad_req is "add", or not known yet).
void copy_gradients(RawGraph* gradients);

}  // namespace echo
