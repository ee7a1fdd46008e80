// MXNet's gradient of a Deconvolution by oneDNN, which ends the process where nothing has allocated its output yet.
#pragma once

namespace echo {

void wrap_deconvolution();
void unwrap_deconvolution();

}  // namespace echo
