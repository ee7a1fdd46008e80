// cuDNN, NCCL and NVRTC: what is asked for is answered, nothing is computed.
#include <cstdio>
#include <cstring>

#include "core.h"

using namespace fake;
using std::size_t;

API size_t fake_cudnnGetVersion() { return static_cast<size_t>(env("FAKE_CUDNN_VERSION", 8100)); }
API size_t fake_cudnnGetCudartVersion() { return 11020; }
API const char* fake_cudnnGetErrorString(int) { return "fake cuDNN error"; }
API const char* fake_ncclGetErrorString(int) { return "fake NCCL error"; }
API const char* fake_nvrtcGetErrorString(int) { return "fake NVRTC error"; }
static size_t workspace() { return static_cast<size_t>(env("FAKE_CUDA_WORKSPACE", 1 << 20)); }
struct Algorithm {  // cudnnConvolution*AlgoPerf_t
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
};
static int algorithms(int* found, Algorithm* to) {
  *found = 1;
  *to = Algorithm{1, 0, 0.1f, workspace(), 1, 0, {}};
  return 0;
}
#define ALGORITHMS(NAME)                                                                                         \
  API int fake_cudnnFind##NAME##Algorithm(void*, void*, void*, void*, void*, int, int* found, Algorithm* to) {   \
    return algorithms(found, to);                                                                                \
  }                                                                                                              \
  API int fake_cudnnGet##NAME##Algorithm_v7(void*, void*, void*, void*, void*, int, int* found, Algorithm* to) { \
    return algorithms(found, to);                                                                                \
  }                                                                                                              \
  API int fake_cudnnGet##NAME##AlgorithmMaxCount(void*, int* to) { return *to = 8, 0; }                          \
  API int fake_cudnnGet##NAME##WorkspaceSize(void*, void*, void*, void*, void*, int, size_t* to) {               \
    return *to = workspace(), 0;                                                                                 \
  }
ALGORITHMS(ConvolutionForward)
ALGORITHMS(ConvolutionBackwardData)
ALGORITHMS(ConvolutionBackwardFilter)
// How much of a batch goes into the moving statistics: 1 - momentum.
API int fake_cudnnBatchNormalizationForwardTraining(void*, int mode, void*, void*, void*, void*, void*, void*, void*,
                                                    void*, void*, double factor) {
  char text[96];
  std::snprintf(text, sizeof text, "cudnnBatchNormalizationForwardTraining mode %d factor %.9g ", mode, factor);
  return count(text), 0;
}
API int fake_cudnnDropoutGetStatesSize(void*, size_t* to) { return *to = 1 << 20, 0; }
API int fake_cudnnDropoutGetReserveSpaceSize(void*, size_t* to) { return *to = 64, 0; }
API int fake_cudnnGetRNNParamsSize(void*, void*, void*, size_t* to, int) {
  return *to = static_cast<size_t>(env("FAKE_CUDNN_RNN_PARAMS", 4)), 0;
}
API int fake_cudnnGetRNNWorkspaceSize(void*, void*, int, void*, size_t* to) { return *to = workspace(), 0; }
API int fake_cudnnGetRNNTrainingReserveSize(void*, void*, int, void*, size_t* to) { return *to = workspace(), 0; }

// NVRTC, for MXNet's fusion of pointwise operators
API int fake_nvrtcGetLoweredName(void*, const char* name, const char** to) { return *to = name, 0; }
API int fake_nvrtcCreateProgram(void** to, const char*, const char*, int, const char* const*, const char* const*) {
  return *to = token(), 0;
}
API int fake_nvrtcCompileProgram(void*, int, const char* const*) { return count("nvrtcCompileProgram"), 0; }
API int fake_nvrtcGetPTXSize(void*, size_t* to) { return *to = 64, 0; }
API int fake_nvrtcGetPTX(void*, char* to) { return std::strcpy(to, "fake"), 0; }
API int fake_nvrtcGetProgramLogSize(void*, size_t* to) { return *to = 1, 0; }
API int fake_nvrtcGetProgramLog(void*, char* to) { return *to = 0, 0; }
API int fake_nvrtcVersion(int* major, int* minor) { return *major = 11, *minor = 2, 0; }
