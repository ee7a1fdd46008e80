// MXNet's fusion of pointwise operators, which its CUDA builds do between the gradient and the memory pass.
#pragma once

namespace echo {

// Has libmxnet.so, opened as `lib`, ask this library for environment variables. Where that cannot be done, MXNet fuses as
// it would by itself, and `echo_keep_unfused` says so.
void wrap_getenv(void* lib);
void unwrap_getenv();

}  // namespace echo
