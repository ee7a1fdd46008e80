// A workspace, cut into arrays.
#ifndef ECHO_KERNELS_CPU_ARENA_H_
#define ECHO_KERNELS_CPU_ARENA_H_
#include <cstddef>
#include <cstdint>

namespace echo {
namespace kernels {

// Cuts a workspace into arrays of floats. Without memory it only counts.
class Arena {
 public:
  explicit Arena(void* memory) : memory_(static_cast<char*>(memory)) {}

  float* floats(int64_t count) {
    float* const array = memory_ == nullptr ? nullptr : reinterpret_cast<float*>(memory_ + bytes_);
    bytes_ += (count * sizeof(float) + 63) / 64 * 64;
    return array;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* memory_;
  size_t bytes_ = 0;
};

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_ARENA_H_
