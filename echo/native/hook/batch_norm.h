// MXNet's BatchNorm with a ReLU, whose gradient is made safe for any order of its arrays.
#pragma once

namespace echo {

void wrap_batch_norm();
void unwrap_batch_norm();

}  // namespace echo
