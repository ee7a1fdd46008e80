// kernels.ptx, kernel by kernel: each becomes a module of its own, which the driver compiles when it is first asked for.
#ifndef ECHO_KERNELS_CUDA_TEXTS_H_
#define ECHO_KERNELS_CUDA_TEXTS_H_
#include <string>

namespace echo_cuda {

// PTX that has this kernel and no other. Throws DeviceError where `make ptx` has not seen it.
std::string text_of(const std::string& kernel);

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_TEXTS_H_
