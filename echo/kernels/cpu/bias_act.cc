// A bias and an activation over rows; the backward pass needs the output alone.
#include "chunk_vectors.h"
#include "clones.h"
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

enum { kRelu, kSigmoid, kTanh, kSoftrelu, kNone };

template <typename Function>
ECHO_INLINE void each_sum(const float* __restrict x, const float* __restrict b, float* __restrict y, int64_t n,
                          const Function& function) {
  for (int64_t j = 0; j < n; ++j) y[j] = function(x[j] + b[j]);
}

ECHO_INLINE void forward_tile(int act, const float* x, const float* b, float* y, int64_t n) {
  switch (act) {
    case kRelu: return each_sum(x, b, y, n, [](float v) { return v <= 0.0f ? 0.0f : v; });  // a NaN stays one
    case kSigmoid: return each_sum(x, b, y, n, [](float v) { return sigmoid_of(v); });
    case kTanh: return each_sum(x, b, y, n, [](float v) { return tanh_of(v); });
    case kSoftrelu: return each_sum(x, b, y, n, [](float v) { return softplus_of(v); });
    default: return each_sum(x, b, y, n, [](float v) { return v; });
  }
}

// 1 - exp(-y), without cancellation where the output y is small.
ECHO_INLINE float slope_of_softplus(float y) {
  const float e = expm1_of(y > 80.0f ? 80.0f : y);
  return e / (1.0f + e);
}

template <typename Slope>
ECHO_INLINE void each_product(const float* __restrict dy, const float* __restrict y, float* __restrict dx, int64_t n,
                              const Slope& slope) {
  for (int64_t j = 0; j < n; ++j) dx[j] = dy[j] * slope(y[j]);
}

ECHO_INLINE void backward_tile(int act, const float* dy, const float* y, float* dx, int64_t n) {
  switch (act) {
    case kRelu: return each_product(dy, y, dx, n, [](float v) { return v > 0.0f ? 1.0f : 0.0f; });
    case kSigmoid: return each_product(dy, y, dx, n, [](float v) { return v * (1.0f - v); });
    case kTanh: return each_product(dy, y, dx, n, [](float v) { return 1.0f - v * v; });
    case kSoftrelu: return each_product(dy, y, dx, n, [](float v) { return slope_of_softplus(v); });
    default: return each_product(dy, y, dx, n, [](float) { return 1.0f; });
  }
}

void bias_act(const Call& call) {
  const int64_t N = call["N"], H = call["H"];
  const int act = static_cast<int>(call.param("act"));
  const Input x(call, "x"), b(call, "b");
  const Output y(call, "y");
  in_chunks(N, N * H, [&](int64_t, int64_t begin, int64_t end) {
    float x_buffer[kTile], b_buffer[kTile], result[kTile];
    in_tiles(H, kTile, [&](int64_t at, int64_t n) {
      const float* const bias = b.read(at, n, b_buffer);
      for (int64_t row = begin; row < end; ++row) {
        float* const place = y.place(row * H + at, result);
        cloned<forward_tile>(act, x.read(row * H + at, n, x_buffer), bias, place, n);
        y.write(row * H + at, n, place);
      }
    });
  });
}

size_t bias_act_grad_workspace(const Call& call) { return ChunkVectors::bytes(call["N"], 1, call["H"]); }

void bias_act_grad(const Call& call) {
  const int64_t N = call["N"], H = call["H"];
  const int act = static_cast<int>(call.param("act"));
  const Input dy(call, "dy"), y(call, "y");
  const Output dx(call, "dx"), db(call, "db");
  const ChunkVectors sums(call.raw().workspace, N, 1, H);
  in_chunks(N, N * H, [&](int64_t chunk, int64_t begin, int64_t end) {
    float dy_buffer[kTile], y_buffer[kTile], result[kTile];
    float* const sum = sums.zeros(chunk, 0);
    in_tiles(H, kTile, [&](int64_t at, int64_t n) {
      for (int64_t row = begin; row < end; ++row) {
        float* const place = dx.place(row * H + at, result);
        cloned<backward_tile>(act, dy.read(row * H + at, n, dy_buffer), y.read(row * H + at, n, y_buffer), place, n);
        add_to(sum + at, place, n);
        dx.write(row * H + at, n, place);
      }
    });
  });
  sums.write_sum(0, db);
}

const CpuKernel kBiasAct("bias_act", bias_act, no_workspace, Subnormals::kKept);
const CpuKernel kBiasActGrad("bias_act_grad", bias_act_grad, bias_act_grad_workspace, Subnormals::kKept);

}  // namespace
}  // namespace kernels
}  // namespace echo
