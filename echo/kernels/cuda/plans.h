// How each kernel of the C interface becomes launches: a plan takes a checked call and a queue. All of a plan but the
// pointers follows from shapes, types and reqs, so a queue that only measures sees the same workspace.
#ifndef ECHO_KERNELS_CUDA_PLANS_H_
#define ECHO_KERNELS_CUDA_PLANS_H_
#include <initializer_list>
#include <string>

#include "check.h"
#include "queue.h"

namespace echo_cuda {

using echo::kernels::Call;

// A kernel of the C interface, or its gradient: a constant of this type after its plan makes it known.
struct CudaKernel {
  using Plan = void (*)(const Call&, Queue&);

  CudaKernel(const char* name, Plan plan) noexcept;

  const char* const name;
  const Plan plan;
  const CudaKernel* const next;
};

// What the plans share.

inline Long over(Long a, Long b) { return (a + b - 1) / b; }

Output output(const Call& call, const char* name);
// The places of a cell's gates.
int places_of(const Call& call, int gates);
// Zeros into an output for which there is no gradient.
void put_zeros(const Call& call, Queue& queue, const char* name, Long count);

// 1 where rows of so many numbers of a type can be read four at a time in all these arrays; null ones do not count.
int wide(bool half, Long columns, std::initializer_list<const void*> arrays);

Grid grid_of_columns(Long rows, Long columns, int wide);
Grid grid_of_rows(Long rows);
Grid grid_of_elements(Long size);

// Rows that one thread sums over, so that `others` times the number of chunks keeps a large device busy; and that
// number.
struct Chunks {
  Long rows, count;
};
Chunks chunks_of(Long rows, Long others, Long columns);

// A product of m by n in big tiles where those keep the device busy, else in small ones; `parts` are sums of their own.
template <typename Arguments>
void launch_tiles(Queue& queue, const std::string& kernel, bool half, Long m, Long n, Long parts, const Arguments& a) {
  const Long big = over(m, kBigTile) * over(n, kBigTile);
  const bool fills = big * parts >= queue.multiprocessors();
  Grid grid;
  grid.x = fills ? big : over(m, kTile) * over(n, kTile);
  grid.y = parts;
  queue.launch(kernel + (fills ? "_big" : "_small"), half, grid, a);
}

// A product of a call that has room for cuBLAS: by it, or in tiles.
void multiply(Queue& queue, const GemmKernel& kernel, bool half, const Gemm& g, void* blas_room);

// out[g, j] = sum over r of in[g * group_stride + r * row_stride + j].
void sum_rows(Queue& queue, bool half, const SumRows& sum);

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_PLANS_H_
