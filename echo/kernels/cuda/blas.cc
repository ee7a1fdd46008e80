#include "blas.h"

#include <dlfcn.h>
#include <strings.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "debug.h"

namespace echo_cuda {

// The part of cublas_v2.h that is needed; the numbers are its binary interface.
typedef void* Handle;
enum { kFloat32 = 0, kFloat16 = 2 };             // cudaDataType_t
enum { kNotTransposed = 0, kTransposed = 1 };    // cublasOperation_t
enum { kDefaultMath = 0, kTensorMath = 1, kTf32Math = 3 };  // cublasMath_t

struct BlasLibrary {
  int version;  // of its name: 10 for CUDA 10, ...
  int (*create)(Handle*);
  int (*set_stream)(Handle, Stream);
  int (*set_workspace)(Handle, void*, size_t);  // null before CUDA 11: then the handle has its own
  int (*set_math_mode)(Handle, int);
  int (*multiply)(Handle, int, int, int, int, int, const float*, const void*, int, int, const void*, int, int,
                  const float*, void*, int, int);
};

namespace {

// As MXNet reads its flags.
bool flag(const char* name, bool otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  return std::string(text) == "1" || strcasecmp(text, "true") == 0;
}

template <typename Function>
bool find(void* library, const char* name, Function* to) {
  *to = reinterpret_cast<Function>(dlsym(library, name));
  return *to != nullptr;
}

const BlasLibrary* open() {
  for (const int version : {11, 10, 12, 13}) {  // those of MXNet's wheels first
    const std::string name = "libcublas.so." + std::to_string(version);
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    BlasLibrary found = {};
    if (library == nullptr) continue;
    found.version = version;
    find(library, "cublasSetWorkspace_v2", &found.set_workspace);
    if (find(library, "cublasCreate_v2", &found.create) && find(library, "cublasSetStream_v2", &found.set_stream) &&
        find(library, "cublasSetMathMode", &found.set_math_mode) && find(library, "cublasSgemmEx", &found.multiply)) {
      return new BlasLibrary(found);
    }
  }
  return nullptr;
}

// What the process has loaded, looked for until there is one; null where the user wants none.
const BlasLibrary* library() {
  static std::atomic<const BlasLibrary*> found{nullptr};
  if (echo::kernels::debug_value("cublas") == "0") return nullptr;
  if (found == nullptr) found = open();
  return found;
}

// The accuracy that MXNet 1.9.1 gives its own products (linalg_impl.h): float32 as TF32 from CUDA 11 on. What only other
// frameworks load multiplies in full float32. MXNet's variables ask for less, or more.
int math_mode(int version, bool half) {
  if (!flag("MXNET_CUDA_ALLOW_TENSOR_CORE", true)) return kDefaultMath;
  if (half || flag("MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", false)) return kTensorMath;
  return version == 11 ? kTf32Math : kDefaultMath;
}

}  // namespace

bool Blas::takes(const GemmKernel& kernel, bool half, const Gemm& g) {
  const Long largest = std::max({g.m, g.n, g.k, g.a_stride, g.b_stride, g.c_stride});
  if ((half && kernel.mixed) || std::min({g.m, g.n, g.k}) == 0 || largest > INT_MAX) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  return !failed_ && library() != nullptr;
}

bool Blas::multiply(const GemmKernel& kernel, bool half, const Gemm& g, bool add, Stream stream, void* workspace) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const BlasLibrary* const blas = library();
  if (failed_ || blas == nullptr) return false;
  const int result = enqueue(*blas, kernel, half, g, add, stream, workspace);
  failed_ = result != 0;
  if (failed_) {
    std::fprintf(stderr, "echo: cuBLAS refuses products (status %d): echo's own kernels compute them\n", result);
  }
  return !failed_;
}

// Arrays are row-major and cuBLAS's are column-major: it computes the transposed result, from right to left.
int Blas::enqueue(const BlasLibrary& blas, const GemmKernel& kernel, bool half, const Gemm& g, bool add, Stream stream,
                  void* workspace) {
  const int type = half ? kFloat16 : kFloat32;
  const float alpha = 1, beta = add ? 1 : 0;
  int result = handle_ == nullptr ? blas.create(&handle_) : 0;
  if (result == 0) result = blas.set_stream(handle_, stream);
  // after the stream, which brings the handle's own workspace back: two streams would share it, and mix their sums
  if (result == 0 && blas.set_workspace != nullptr) result = blas.set_workspace(handle_, workspace, kBlasBytes);
  if (result == 0) result = blas.set_math_mode(handle_, math_mode(blas.version, half));
  if (result != 0) return result;
  return blas.multiply(handle_, kernel.b_by_depth ? kNotTransposed : kTransposed,
                       kernel.a_by_depth ? kTransposed : kNotTransposed, static_cast<int>(g.n), static_cast<int>(g.m),
                       static_cast<int>(g.k), &alpha, g.b, type, static_cast<int>(g.b_stride), g.a, type,
                       static_cast<int>(g.a_stride), &beta, g.c.data, kFloat32, static_cast<int>(g.c_stride));
}

}  // namespace echo_cuda
