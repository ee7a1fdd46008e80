// NVIDIA's compiler for the sources of a family, opened when it is first needed.
#ifndef ECHO_KERNELS_CUDA_NVRTC_H_
#define ECHO_KERNELS_CUDA_NVRTC_H_
#include <string>

namespace echo_cuda {

// PTX of a family for devices since compute capability 5.0 and drivers since CUDA 9.0, without comments. Takes seconds.
// Throws DeviceError if there is no NVRTC 11, or it refuses the sources.
std::string compiled(const std::string& family);

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_NVRTC_H_
