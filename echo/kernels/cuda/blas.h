// Products by cuBLAS, where the process has one already, as every framework for CUDA does: nothing is shipped, linked or
// loaded for it. Where there is none, or it refuses, the tiles of gemm.cuh take its place.
#ifndef ECHO_KERNELS_CUDA_BLAS_H_
#define ECHO_KERNELS_CUDA_BLAS_H_
#include <mutex>

#include "arguments.h"
#include "driver.h"

namespace echo_cuda {

// Of a call's workspace. NVIDIA advises 4 MB, which may be faster, and asks for 16 KB; with none at all cuBLAS would allocate
// some for itself, which no plan knows of.
const Long kBlasBytes = 1 << 20;

// A kind of product as gemm.cuh has it: its kernels, and how they read their operands.
struct GemmKernel {
  const char* name;
  bool a_by_depth, b_by_depth;  // stored as [term][row], else as [row][term]
  bool mixed;  // float16 in b, and in the result, alone
};

const GemmKernel kGemmInputs = {"gemm_inputs", false, false, false};
const GemmKernel kGemmGates = {"gemm_gates", false, true, true};
const GemmKernel kGemmWeights = {"gemm_weights", true, true, true};
// Of float16 alone: float16 in a and b, float32 in the result.
const GemmKernel kGemmScoreInputs = {"gemm_score_inputs", false, true, false};
const GemmKernel kGemmScoreWeights = {"gemm_score_weights", true, true, false};

struct BlasLibrary;

// The cuBLAS of one device.
class Blas {
 public:
  // Whether cuBLAS has a product of this kind and size, there is one, and it did not fail before.
  bool takes(const GemmKernel& kernel, bool half, const Gemm& g);
  // Enqueues c = a b, or c += a b, without biases. False, and nothing was enqueued, where cuBLAS refuses: it is said once,
  // and from then on it takes nothing.
  bool multiply(const GemmKernel& kernel, bool half, const Gemm& g, bool add, Stream stream, void* workspace);

 private:
  int enqueue(const BlasLibrary& blas, const GemmKernel& kernel, bool half, const Gemm& g, bool add, Stream stream,
              void* workspace);

  std::mutex mutex_;  // of the handle, which has one stream at a time
  void* handle_ = nullptr;
  bool failed_ = false;
};

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_BLAS_H_
