// Products of small row-major blocks, for attention. Blocks are small enough for the first two caches.
#ifndef ECHO_KERNELS_CPU_BLOCKS_H_
#define ECHO_KERNELS_CPU_BLOCKS_H_
#include <cstdint>

namespace echo {
namespace kernels {

const int64_t kQueries = 128, kKeysAtOnce = 64;  // rows and columns of a block of scores

// out[i] += sum over j of weight(i, j) b[j], for out [rows,width] and b [inner,width]; weight(i, j) is
// weights[i * row_step + j * inner_step].
void add_product(const float* weights, int64_t row_step, int64_t inner_step, const float* b, int64_t rows,
                 int64_t inner, int64_t width, float* out);

// Keys (or values) [columns,width] that rows are multiplied with. Few rows go to them directly; for many they are
// transposed first, into `room` of kKeysAtOnce * width floats.
class Columns {
 public:
  Columns(const float* keys, int64_t columns, int64_t width, int64_t rows, float* room);

  // scores[i][j] = a[i] . keys[j] for a [rows,width]; a row of scores has kKeysAtOnce floats, those from `columns` on hold
  // anything.
  void dots(const float* a, int64_t rows, float* scores) const;

 private:
  const float *keys_, *transposed_;  // the latter is NULL where nothing was transposed
  int64_t columns_, width_;
};

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_BLOCKS_H_
