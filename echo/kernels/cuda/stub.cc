#include "echo_kernels.h"
extern "C" { int echo_cuda_call(const EchoCall*) { return 1; } size_t echo_cuda_workspace(const EchoCall*) { return (size_t)-1; } }
