// The C interface of the fused kernels: one call for every kernel, on the CPU and on CUDA devices.
//
// Arrays are dense and row-major. A tensor without data is absent: an optional input that is not there, or a gradient that
// that is not wanted. Kernels work on float32 and float16 (which they accumulate in float32); all floating tensors of a call have
// one type. NAME_grad takes the gradients of NAME's outputs, then NAME's inputs, then NAME's outputs, and gives the
// gradients of the inputs; of its inputs it reads those that the table names, the others may be absent. A gradient of an
// output that is absent counts as zeros. table.cc lists the kernels: their tensors, parameters, and what they compute.
#ifndef ECHO_KERNELS_H_
#define ECHO_KERNELS_H_
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ECHO_FLOAT32 = 0, ECHO_FLOAT16 = 2, ECHO_UINT8 = 3, ECHO_INT32 = 4 };  // MXNet's numbers
enum { ECHO_SKIP = 0, ECHO_WRITE = 1, ECHO_ADD = 3 };  // what happens to an output, MXNet's numbers
enum { ECHO_MOST_AXES = 5 };

typedef struct {
  void* data;
  int32_t dtype, ndim;
  int64_t shape[ECHO_MOST_AXES];
} EchoTensor;

typedef struct {
  const char* kernel;  // a NAME, or NAME_grad
  const EchoTensor* in;
  const EchoTensor* out;
  const int32_t* req;  // of each output; only gradients may be added to
  const double* params;  // in the table's order
  int32_t num_in, num_out, num_params;
  void* workspace;  // of echo_KIND_workspace bytes, aligned to 64; its content does not matter
  size_t workspace_bytes;
  void* stream;  // CUDA: a CUstream, or NULL
  void* random;  // CPU: 1024 states of std::mt19937, or NULL
} EchoCall;

// Runs a kernel; on CUDA it is enqueued. 0, or 1 with nothing done: echo_kernels_error says which tensor has which shape
// and type, and what was expected.
__attribute__((visibility("default"))) int echo_cpu_call(const EchoCall* call);
__attribute__((visibility("default"))) int echo_cuda_call(const EchoCall* call);

// Whether a CUDA device, by the driver's number, runs kernels: loads the smallest one there, and launches it. 0, or 1: then
// echo_kernels_error says why not. The others are loaded when a call first needs them.
__attribute__((visibility("default"))) int echo_cuda_ready(int device);

// The CUDA kernels come in families, each compiled by NVRTC to a file of PTX. The names of these files, FAMILY-DIGEST.ptx with
// a digest of the sources, with spaces between them; and writes the file of a family into a folder, unless it is there: 0, or
// 1, then echo_kernels_error says why not.
__attribute__((visibility("default"))) const char* echo_cuda_ptx_files(void);
// Folders of such files, separated by colons, of which the last is written to; and the file of NVRTC that is opened if the
// process has no other.
__attribute__((visibility("default"))) void echo_cuda_places(const char* ptx, const char* nvrtc);
__attribute__((visibility("default"))) int echo_cuda_put_ptx(const char* family, const char* folder);

// Bytes that a call needs as workspace (its tensors need no data for this); SIZE_MAX where the call is wrong.
__attribute__((visibility("default"))) size_t echo_cpu_workspace(const EchoCall* call);
__attribute__((visibility("default"))) size_t echo_cuda_workspace(const EchoCall* call);

// Which instructions the CPU kernels use: "avx512", "avx2" or "portable", the most that the processor has. The
// `level` in the environment variable ECHO_DEBUG, read once, asks for less.
__attribute__((visibility("default"))) const char* echo_kernels_level(void);

// The last error of this thread.
__attribute__((visibility("default"))) const char* echo_kernels_error(void);

#ifdef __cplusplus
}
#endif
#endif  // ECHO_KERNELS_H_
