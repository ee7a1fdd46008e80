#include "plans.h"

#include <algorithm>

namespace echo_cuda {

int places_of(const Call& call, int gates) {
  const echo::kernels::Places places = call.places(gates);
  int code = 0;
  for (int gate = 0; gate < gates; ++gate) code |= static_cast<int>(places[gate]) << 4 * gate;
  return code;
}

Output output(const Call& call, const char* name) {
  void* data = call.out(name);
  return {data, data != nullptr && call.adds(name) ? 1 : 0};
}

void put_zeros(const Call& call, Queue& queue, const char* name, Long count) {
  void* data = call.out(name);
  if (data == nullptr || call.adds(name)) return;
  queue.set_zero(data, count * echo::kernels::dtype_bytes(call.out_dtype(name)));
}

int wide(bool half, Long columns, std::initializer_list<const void*> arrays) {
  if (columns % 4 != 0) return 0;
  for (const void* array : arrays) {
    if (reinterpret_cast<uintptr_t>(array) % (half ? 8 : 16) != 0) return 0;
  }
  return 1;
}

Grid grid_of_columns(Long rows, Long columns, int wide) {
  const Long across = over(columns, wide ? 4 : 1);
  Grid grid;
  grid.block_x = 1;
  while (grid.block_x < kThreads && grid.block_x < across) grid.block_x *= 2;
  grid.block_y = kThreads / grid.block_x;
  grid.x = over(across, grid.block_x);
  grid.y = over(rows, grid.block_y);
  return grid;
}

Grid grid_of_rows(Long rows) {
  Grid grid;
  grid.x = over(rows, kWarps);
  return grid;
}

Grid grid_of_elements(Long size) {
  Grid grid;
  grid.x = over(size, 4 * kThreads);
  return grid;
}

Chunks chunks_of(Long rows, Long others, Long columns) {
  const Long enough = 262144;  // elements side by side: 65536 threads of four
  const Long least_rows = 8;   // of a chunk, so that its sums are few against what it reads
  const Long wanted = std::max<Long>(1, enough / std::max<Long>(1, others * columns));
  const Long size = std::max(least_rows, over(rows, wanted));
  return {size, over(rows, size)};
}

void multiply(Queue& queue, const GemmKernel& kernel, bool half, const Gemm& g, void* blas_room) {
  if (!queue.multiply(kernel, half, g, blas_room)) launch_tiles(queue, kernel.name, half, g.m, g.n, 1, g);
}

void sum_rows(Queue& queue, bool half, const SumRows& sum) {
  if (sum.out.data == nullptr) return;
  Grid grid;
  grid.x = over(sum.columns, 32);
  grid.y = sum.groups;
  queue.launch("sum_rows", half, grid, sum);
}

}  // namespace echo_cuda
