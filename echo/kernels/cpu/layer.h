// The sizes of a recurrent layer over time, and the chunks of steps that its passes work on.
#ifndef ECHO_KERNELS_CPU_LAYER_H_
#define ECHO_KERNELS_CPU_LAYER_H_
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "check.h"
#include "view.h"

namespace echo {
namespace kernels {

// The sizes of a layer, and the order of its steps: step 0 is the first that runs, at time T - 1 where it is reversed.
struct LayerShape {
  explicit LayerShape(const Call& call)
      : T(call["T"]), B(call["B"]), I(call["I"]), H(call["H"]), reverse(call.param("reverse") != 0) {}
  int64_t time(int64_t step) const { return reverse ? T - 1 - step : step; }

  int64_t T, B, I, H;
  bool reverse;
};

// Steps [begin, end) of a layer, which are the times [time, time + end - begin).
struct Chunk {
  Chunk(const LayerShape& shape, int64_t first, int64_t steps)
      : begin(first), end(std::min(first + steps, shape.T)), time(std::min(shape.time(begin), shape.time(end - 1))) {}
  int64_t begin, end, time;
};

// The steps that are worked on at a time: with so many rows the products run at their full speed, and the buffers stay
// at some megabytes however long the sequences are. At least one, even of a layer without steps.
inline int64_t chunk_steps(const LayerShape& shape) {
  const int64_t rows = 640, most = std::max<int64_t>(rows / std::max<int64_t>(shape.B, 1), 1);
  const int64_t chunks = std::max<int64_t>((shape.T + most - 1) / most, 1);
  return std::max<int64_t>((shape.T + chunks - 1) / chunks, 1);
}

// The first n elements of an input as floats, zeros where it is absent.
inline void load(const Input& input, int64_t n, float* to) {
  const float* const from = input.read(0, n, to);
  if (from != to && n > 0) std::memcpy(to, from, n * sizeof(float));
}

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_LAYER_H_
