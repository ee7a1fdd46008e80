// Copies behind the gradients of echo's operators, where MXNet would have an operator add to what is there.
#pragma once
#include "layout.h"

namespace echo {

// MXNet never tells an operator of an extension library to add: it overwrites, and a gradient is silently wrong. That
// concerns the second term of a _grad_add, which MXNet may let add to the first, and gradients that go to the user, where
// the forward node has the attribute __echo_copies__ (grad_req is "add", or not known yet). A copy in between can add.
void copy_gradients(RawGraph* gradients);

}  // namespace echo
