// cuBLAS: products are computed under FAKE_CUDA_GEMM=1, by the OpenBLAS that libmxnet.so has loaded.
#include <dlfcn.h>

#include <cmath>
#include <vector>

#include "core.h"

using namespace fake;

API int fake_cublasGetMathMode(void*, int* to) { return *to = 0, 0; }
namespace {
using Gemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                      const int*, const float*, const int*, const float*, float*, const int*);
void sgemm(int ta, int tb, int m, int n, int k, float alpha, const void* a, int lda, const void* b, int ldb, float beta,
           void* c, int ldc) {
  static const bool wanted = env("FAKE_CUDA_GEMM", 0) != 0;
  if (!wanted) return;
  static const Gemm gemm = [] {
    void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<Gemm>(library ? dlsym(library, "sgemm_") : dlsym(RTLD_DEFAULT, "sgemm_"));
  }();
  if (!gemm) return complain("there is no sgemm_");
  const char *x = ta ? "T" : "N", *y = tb ? "T" : "N";
  gemm(x, y, &m, &n, &k, &alpha, static_cast<const float*>(a), &lda, static_cast<const float*>(b), &ldb, &beta,
       static_cast<float*>(c), &ldc);
}
float half_to_float(unsigned short bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float size = exponent == 0    ? std::ldexp(static_cast<float>(fraction), -24)
                     : exponent == 31 ? (fraction ? NAN : INFINITY)
                                      : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return bits >> 15 ? -size : size;
}
// A matrix of float16, with as many columns of `stride` as it has.
std::vector<float> in_float(const void* matrix, int stride, int rows, int columns) {
  const auto* from = static_cast<const unsigned short*>(matrix);
  std::vector<float> made(rows && columns ? static_cast<std::size_t>(stride) * (columns - 1) + rows : 0);
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = half_to_float(from[i]);
  return made;
}
constexpr int kFloat32 = 0, kFloat16 = 2;
}  // namespace
// Echo's products use the workspace of their call; MXNet sets none.
API int fake_cublasSetWorkspace_v2(void*, void* workspace, std::size_t bytes) {
  count("cublasSetWorkspace_v2");
  return check_range("cublasSetWorkspace", workspace, bytes, true), 0;
}
API int fake_cublasSgemm_v2(void*, int ta, int tb, int m, int n, int k, const float* alpha, const void* a, int lda,
                            const void* b, int ldb, const float* beta, void* c, int ldc) {
  count("cublasSgemm_v2");
  sgemm(ta, tb, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);
  return 0;
}
API int fake_cublasSgemmEx(void*, int ta, int tb, int m, int n, int k, const float* alpha, const void* a, int at,
                           int lda, const void* b, int, int ldb, const float* beta, void* c, int ct, int ldc) {
  count("cublasSgemmEx");
  if (at == kFloat32) sgemm(ta, tb, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);
  if (at == kFloat16 && ct == kFloat32) {
    const std::vector<float> x = in_float(a, lda, ta ? k : m, ta ? m : k), y = in_float(b, ldb, tb ? n : k, tb ? k : n);
    sgemm(ta, tb, m, n, k, *alpha, x.data(), lda, y.data(), ldb, *beta, c, ldc);
  }
  return 0;
}
API int fake_cublasGemmEx(void*, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int at, int lda,
                          const void* b, int, int ldb, const void* beta, void* c, int, int ldc, int, int) {
  count("cublasGemmEx");
  if (at == 0)
    sgemm(ta, tb, m, n, k, *static_cast<const float*>(alpha), a, lda, b, ldb, *static_cast<const float*>(beta), c, ldc);
  return 0;
}
API int fake_cublasSgemmStridedBatched(void*, int ta, int tb, int m, int n, int k, const float* alpha, const float* a,
                                       int lda, long long sa, const float* b, int ldb, long long sb, const float* beta,
                                       float* c, int ldc, long long sc, int batch) {
  count("cublasSgemmStridedBatched");
  for (int i = 0; i < batch; ++i)
    sgemm(ta, tb, m, n, k, *alpha, a + i * sa, lda, b + i * sb, ldb, *beta, c + i * sc, ldc);
  return 0;
}
