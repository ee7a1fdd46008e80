// The PTX of kernels: a family comes from the installation, from the cache, or from NVRTC, which compiles it.
#ifndef ECHO_KERNELS_CUDA_TEXTS_H_
#define ECHO_KERNELS_CUDA_TEXTS_H_
#include <string>

namespace echo_cuda {

// PTX that has this kernel and no other, which the driver compiles. Takes seconds if NVRTC has to compile its family.
// Throws DeviceError if there is no PTX of it.
std::string text_of(const std::string& kernel);

// The name of the file with PTX of a family, which differs with the sources.
std::string file_of(const std::string& family);

// Writes PTX of a family into a folder, unless a file of the present sources is there. Throws DeviceError.
void put_ptx(const std::string& family, const std::string& folder);

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_TEXTS_H_
