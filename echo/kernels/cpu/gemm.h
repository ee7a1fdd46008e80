// Matrix products for layers over time: C = start + A B', where B is packed once and used for many products.
//
// The method is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 2008):
// both operands are copied into narrow panels that the inner loop reads from front to back. All sums are float32. A sum
// over the depth is never split between threads, so results do not depend on their number.
#ifndef ECHO_KERNELS_CPU_GEMM_H_
#define ECHO_KERNELS_CPU_GEMM_H_
#include <cstddef>
#include <cstdint>

namespace echo {
namespace kernels {
namespace gemm {

// A matrix [rows, depth] where it lies: element (r, d) is data[r * row_stride + d * depth_stride]. One of the two
// strides is 1, so that a matrix and its transpose can both be given.
struct Operand {
  const void* data;
  bool half;  // float16, otherwise float32
  int64_t rows, depth, row_stride, depth_stride;

  // The same matrix so many elements further on.
  Operand moved(int64_t elements) const {
    Operand other = *this;
    other.data = static_cast<const char*>(data) + elements * (half ? 2 : 4);
    return other;
  }
};

// Floats that the panels of B [columns, depth] take.
int64_t packed_floats(int64_t columns, int64_t depth);

// Copies B into panels.
void pack(const Operand& b, float* panels);

// Floats of scratch that `multiply` needs for an operand A of so many rows and such a depth, or of fewer.
int64_t scratch_floats(int64_t rows, int64_t depth);

// What the sums are added to: row r begins at data + r * stride. Stride 0 gives each row the same values, a bias; no
// data means zeros. It may be C itself.
struct Start {
  const float* data;
  int64_t stride;
};

// C[a.rows, columns] = start + A B', rows of C being c_stride floats apart.
void multiply(const Operand& a, const float* b_panels, int64_t columns, Start start, float* c, int64_t c_stride,
              float* scratch);

}  // namespace gemm
}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_GEMM_H_
