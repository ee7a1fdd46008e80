// A tensor of a call as float32, whatever its type is: kernels read and write short runs of elements (tiles) and compute on
// float arrays. Where the tensor is float32 already nothing is copied.
#ifndef ECHO_KERNELS_CPU_VIEW_H_
#define ECHO_KERNELS_CPU_VIEW_H_
#include <algorithm>
#include <cstdint>

#include "check.h"

namespace echo {
namespace kernels {

const int64_t kTile = 512;  // elements; a dozen tiles fit into the first cache

// An input. An absent one reads as zeros.
class Input {
 public:
  Input(const Call& call, const char* name);

  bool absent() const { return data_ == nullptr; }
  // n elements from `offset` on: in the tensor itself, or in `buffer` of n floats.
  const float* read(int64_t offset, int64_t n, float* buffer) const;

 private:
  const void* data_;
  bool half_;
};

// An output, written or added to. A skipped one takes nothing.
class Output {
 public:
  Output(const Call& call, const char* name);

  bool skipped() const { return data_ == nullptr; }
  // Where to put the n elements from `offset` on, before `write` is called with it: the tensor itself, or `buffer`.
  float* place(int64_t offset, float* buffer) const;
  // Takes n elements for `offset` on. `values` is what `place` gave, or any other array.
  void write(int64_t offset, int64_t n, const float* values) const;

 private:
  void* data_;
  bool half_, add_;
};

// The whole of a tensor as n floats, in `buffer` where the tensor is float16. For vectors that every row needs.
inline const float* read_all(const Input& input, int64_t n, float* buffer) { return input.read(0, n, buffer); }

// Lengths (float32, float16 or int32) as whole numbers from 0 to `most`; `most` where the tensor is absent.
class Lengths {
 public:
  Lengths(const Call& call, int64_t most);
  int64_t operator[](int64_t index) const;

 private:
  const void* data_;
  int dtype_;
  int64_t most_;
};

// y += x over n floats.
void add_to(float* y, const float* x, int64_t n);

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_VIEW_H_
