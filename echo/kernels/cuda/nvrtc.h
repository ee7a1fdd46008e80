// NVIDIA's compiler for the sources of a family, opened when it is first needed.
#ifndef ECHO_KERNELS_CUDA_NVRTC_H_
#define ECHO_KERNELS_CUDA_NVRTC_H_
#include <string>

namespace echo_cuda {

// Folders of PTX files, separated by colons, of which the last is the user's cache; and NVRTC's file, which is opened if the
// process has no other. As set, else by the variables _ECHO_PTX_PATH and _ECHO_NVRTC of a process that only measures.
struct Places {
  std::string ptx, nvrtc;
};
Places places();
void set_places(const Places& places);

// PTX of a family for devices since compute capability 5.0 and drivers since CUDA 9.0, without comments. Takes seconds.
// Throws DeviceError if there is no NVRTC 11, or it refuses the sources.
std::string compiled(const std::string& family);

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_NVRTC_H_
