// A cuBLAS whose device is the CPU: what echo's kernels ask of it, and a line for each product.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

struct half_t {
  unsigned short bits;
};
#include "cuda_shim.h"

namespace {

struct Fake {
  int fails_to_create = 0, fails_to_multiply = 0, lasts = 0;
  void *stream = nullptr, *workspace = nullptr;
  std::size_t workspace_bytes = 0;
  int handles = 0, math_mode = -1;
  std::string products;
};

Fake& fake() {
  static Fake& it = *new Fake;
  return it;
}

const int kFloat16 = 2, kNotSupported = 15;

float at(const void* array, int type, std::size_t i) {
  if (type == kFloat16) return emulation::half_bits_to_float(static_cast<const unsigned short*>(array)[i]);
  return static_cast<const float*>(array)[i];
}

}  // namespace

// For the tests: statuses to answer, to products after so many; of each product since this was asked: transpositions, sizes, type, math mode, whether it
// adds, and how many handles there are; of the last one its stream and workspace.
EXPORT void fake_blas_fails(int to_create, int to_multiply, int lasts) {
  fake().fails_to_create = to_create, fake().fails_to_multiply = to_multiply, fake().lasts = lasts;
}
EXPORT const char* fake_blas_products() {
  static std::string said;
  said.swap(fake().products);
  fake().products.clear();
  return said.c_str();
}
EXPORT void* fake_blas_stream() { return fake().stream; }
EXPORT void* fake_blas_workspace() { return fake().workspace; }
EXPORT std::size_t fake_blas_workspace_bytes() { return fake().workspace_bytes; }

EXPORT int cublasCreate_v2(void** to) {
  if (fake().fails_to_create) return fake().fails_to_create;
  ++fake().handles;
  return *to = &fake(), 0;
}
EXPORT int cublasSetStream_v2(void*, void* stream) {
  fake().workspace = nullptr, fake().workspace_bytes = 0;  // the handle's own
  return fake().stream = stream, 0;
}
EXPORT int cublasSetWorkspace_v2(void*, void* workspace, std::size_t bytes) {
  return fake().workspace = workspace, fake().workspace_bytes = bytes, 0;
}
EXPORT int cublasSetMathMode(void*, int mode) { return fake().math_mode = mode, 0; }
EXPORT int cublasSgemmEx(void*, int a_op, int b_op, int m, int n, int k, const float* alpha, const void* a, int a_type,
                         int lda, const void* b, int b_type, int ldb, const float* beta, void* c, int c_type, int ldc) {
  if (fake().fails_to_multiply && fake().lasts-- <= 0) return fake().fails_to_multiply;
  if (a_type != b_type || c_type != 0 || lda < (a_op ? k : m) || ldb < (b_op ? n : k) || ldc < m) return kNotSupported;
  for (int column = 0; column < n; ++column) {
    for (int row = 0; row < m; ++row) {
      double sum = 0;
      for (int d = 0; d < k; ++d) {
        const float x = at(a, a_type, a_op ? std::size_t(row) * lda + d : std::size_t(d) * lda + row);
        sum += double(x) * at(b, b_type, b_op ? std::size_t(d) * ldb + column : std::size_t(column) * ldb + d);
      }
      float& to = static_cast<float*>(c)[std::size_t(column) * ldc + row];
      to = static_cast<float>(*alpha * sum + (*beta != 0 ? *beta * to : 0));
    }
  }
  char line[128];
  std::snprintf(line, sizeof line, "%c%c %d %d %d type %d mode %d %s handles %d\n", "NT"[a_op], "NT"[b_op], m, n, k,
                a_type, fake().math_mode, *beta != 0 ? "adds" : "writes", fake().handles);
  fake().products += line;
  return 0;
}
