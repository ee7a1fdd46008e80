// MXNet's BatchNorm with a ReLU, whose gradient is right for any order of its arrays where this attribute is set.
#pragma once

namespace echo {

constexpr char kSignsAttribute[] = "__echo_signs__";

void wrap_batch_norm();
void unwrap_batch_norm();

}  // namespace echo
