// The positive part, which leaves a bit for each element instead of a number.
#include "bits.h"
#include "clones.h"
#include "kernels.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

ECHO_INLINE void forward_tile(const float* __restrict x, float* __restrict y, uint8_t* __restrict kept, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    y[j] = x[j] <= 0.0f ? 0.0f : x[j];  // a NaN stays one
    kept[j] = x[j] > 0.0f;
  }
}

void relu(const Call& call) {
  const int64_t count = call["n"];
  const Input x(call, "x");
  const Output y(call, "y");
  uint8_t* const bits = static_cast<uint8_t*>(call.out("bits"));
  in_tile_chunks(count, [&](int64_t at, int64_t n) {
    float x_buffer[kTile], result[kTile];
    uint8_t kept[kTile];
    float* const place = y.place(at, result);
    cloned<forward_tile>(x.read(at, n, x_buffer), place, kept, n);
    y.write(at, n, place);
    if (bits != nullptr) pack_bits(kept, bits + at / 8, n);
  });
}

void relu_grad(const Call& call) { multiply_by_bits(call, 1.0f); }

const CpuKernel kRelu("relu", relu, no_workspace, Subnormals::kKept);
const CpuKernel kReluGrad("relu_grad", relu_grad, no_workspace, Subnormals::kKept);

}  // namespace
}  // namespace kernels
}  // namespace echo
