// cuBLAS: products are computed under FAKE_CUDA_GEMM=1, by the OpenBLAS that libmxnet.so has loaded.
#include <dlfcn.h>

#include "core.h"

using namespace fake;

API int fake_cublasGetMathMode(void*, int* to) { return *to = 0, 0; }
namespace {
using Gemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*, const float*,
                      const int*, const float*, float*, const int*);
void sgemm(int ta, int tb, int m, int n, int k, float alpha, const void* a, int lda, const void* b, int ldb, float beta, void* c, int ldc) {
  static const bool wanted = env("FAKE_CUDA_GEMM", 0) != 0;
  if (!wanted) return;
  static const Gemm gemm = [] {
    void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<Gemm>(library ? dlsym(library, "sgemm_") : dlsym(RTLD_DEFAULT, "sgemm_"));
  }();
  if (!gemm) return complain("there is no sgemm_");
  const char *x = ta ? "T" : "N", *y = tb ? "T" : "N";
  gemm(x, y, &m, &n, &k, &alpha, static_cast<const float*>(a), &lda, static_cast<const float*>(b), &ldb, &beta, static_cast<float*>(c), &ldc);
}
}  // namespace
API int fake_cublasSgemm_v2(void*, int ta, int tb, int m, int n, int k, const float* alpha, const void* a, int lda, const void* b, int ldb,
                            const float* beta, void* c, int ldc) {
  count("cublasSgemm_v2");
  sgemm(ta, tb, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);
  return 0;
}
API int fake_cublasSgemmEx(void*, int ta, int tb, int m, int n, int k, const float* alpha, const void* a, int at, int lda, const void* b, int,
                           int ldb, const float* beta, void* c, int, int ldc) {
  count("cublasSgemmEx");
  if (at == 0) sgemm(ta, tb, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);
  return 0;
}
API int fake_cublasGemmEx(void*, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int at, int lda, const void* b, int,
                          int ldb, const void* beta, void* c, int, int ldc, int, int) {
  count("cublasGemmEx");
  if (at == 0) sgemm(ta, tb, m, n, k, *static_cast<const float*>(alpha), a, lda, b, ldb, *static_cast<const float*>(beta), c, ldc);
  return 0;
}
API int fake_cublasSgemmStridedBatched(void*, int ta, int tb, int m, int n, int k, const float* alpha, const float* a, int lda, long long sa,
                                       const float* b, int ldb, long long sb, const float* beta, float* c, int ldc, long long sc, int batch) {
  count("cublasSgemmStridedBatched");
  for (int i = 0; i < batch; ++i) sgemm(ta, tb, m, n, k, *alpha, a + i * sa, lda, b + i * sb, ldb, *beta, c + i * sc, ldc);
  return 0;
}

