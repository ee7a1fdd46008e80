// The sources of the CUDA kernels, which stand in this library as text. A family is a file and its kernels.
#ifndef ECHO_KERNELS_CUDA_SOURCES_H_
#define ECHO_KERNELS_CUDA_SOURCES_H_
#include <string>
#include <vector>

namespace echo_cuda {

// A source file under the name by which others include it.
struct Source {
  const char* name;
  const char* text;
};
const std::vector<Source>& sources();

// The names of the families: files that have kernels, without ".cuh".
const std::vector<std::string>& families();

// The family whose file names a kernel: the one with the longest name or beginning of a name, as "gemm_gates_" of
// "gemm_gates_big_f16". Empty if there is none.
const std::string& family_of(const std::string& kernel);

// A digest of all sources, in hexadecimal digits.
const std::string& sources_digest();

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_SOURCES_H_
