// The workspace of kernels that go over rows: vectors of H floats for each chunk of rows (parallel.h). They hold a row in
// float32, or a chunk's part of a sum over rows; the parts are added up in a fixed order.
#ifndef ECHO_KERNELS_CPU_CHUNK_VECTORS_H_
#define ECHO_KERNELS_CPU_CHUNK_VECTORS_H_
#include <cstddef>
#include <cstdint>

#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {

// Floats rounded up to whole cache lines: parts of a workspace begin at one.
inline int64_t whole_lines(int64_t floats) { return (floats + 15) / 16 * 16; }

class ChunkVectors {
 public:
  // For `vectors` vectors a chunk, where `rows` rows are cut into chunks.
  static size_t bytes(int64_t rows, int64_t vectors, int64_t H) {
    return chunk_count(rows) * vectors * whole_lines(H) * sizeof(float);
  }

  ChunkVectors(void* workspace, int64_t rows, int64_t vectors, int64_t H)
      : floats_(static_cast<float*>(workspace)), chunks_(chunk_count(rows)), vectors_(vectors), H_(H) {}

  float* at(int64_t chunk, int64_t vector) const { return floats_ + (chunk * vectors_ + vector) * whole_lines(H_); }

  float* zeros(int64_t chunk, int64_t vector) const {
    float* const found = at(chunk, vector);
    std::fill_n(found, H_, 0.0f);
    return found;
  }

  // The sum of a vector over all chunks goes to an output of H elements.
  void write_sum(int64_t vector, const Output& output) const {
    if (output.skipped()) return;
    in_tiles(H_, kTile, [&](int64_t offset, int64_t n) {
      float total[kTile] = {};
      for (int64_t chunk = 0; chunk < chunks_; ++chunk) add_to(total, at(chunk, vector) + offset, n);
      output.write(offset, n, total);
    });
  }

 private:
  float* floats_;
  int64_t chunks_, vectors_, H_;
};

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_CHUNK_VECTORS_H_
