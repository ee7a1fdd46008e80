// Products of small row-major blocks, for attention. Blocks are small enough for the first two caches.
#ifndef ECHO_KERNELS_CPU_BLOCKS_H_
#define ECHO_KERNELS_CPU_BLOCKS_H_
#include <cstdint>

namespace echo {
namespace kernels {

const int64_t kQueries = 32, kKeysAtOnce = 64;  // rows and columns of a block of scores

// scores[i][j] = a[i] . b[j] for a [rows,width] and b [columns,width]; a row of scores has kKeysAtOnce floats.
void dots(const float* a, const float* b, int64_t rows, int64_t columns, int64_t width, float* scores);

// out[i] += sum over j of weight(i, j) b[j], for out [rows,width] and b [columns,width]; weight(i, j) is
// weights[i * row_step + j * column_step].
void add_product(const float* weights, int64_t row_step, int64_t column_step, const float* b, int64_t rows,
                 int64_t columns, int64_t width, float* out);

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_BLOCKS_H_
