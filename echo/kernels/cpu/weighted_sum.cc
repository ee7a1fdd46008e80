// What attention hands on: the sum over time of values times weights, without the [B,T,H] map of products.
#include "clones.h"
#include "kernels.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

ECHO_INLINE void add_product(float factor, const float* __restrict x, float* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

ECHO_INLINE float dot(const float* __restrict x, const float* __restrict y, int64_t n) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

ECHO_INLINE void multiply(float factor, const float* __restrict x, float* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = factor * x[i];
}

float at(const Input& input, int64_t index) {
  float buffer;
  return *input.read(index, 1, &buffer);
}

void weighted_sum(const Call& call) {
  const int64_t B = call["B"], T = call["T"], H = call["H"];
  const Input w(call, "w"), values(call, "values");
  const Output out(call, "out");
  in_chunks(B, B * T * H, [&](int64_t, int64_t begin, int64_t end) {
    float sum[kTile], buffer[kTile];
    for (int64_t b = begin; b < end; ++b) {
      in_tiles(H, kTile, [&](int64_t h, int64_t n) {
        std::fill_n(sum, n, 0.0f);
        for (int64_t t = 0; t < T; ++t) {
          const int64_t row = b * T + t;
          cloned<add_product>(at(w, row), values.read(row * H + h, n, buffer), sum, n);
        }
        out.write(b * H + h, n, sum);
      });
    }
  });
}

void weighted_sum_grad(const Call& call) {
  const int64_t B = call["B"], T = call["T"], H = call["H"];
  const Input dout(call, "dout"), w(call, "w"), values(call, "values");
  const Output dw(call, "dw"), dvalues(call, "dvalues");
  in_chunks(B * T, B * T * H, [&](int64_t, int64_t begin, int64_t end) {
    float gradient[kTile], value[kTile], product[kTile];
    for (int64_t row = begin; row < end; ++row) {
      const float weight = at(w, row);
      float sum = 0.0f;
      in_tiles(H, kTile, [&](int64_t h, int64_t n) {
        const float* const d = dout.read(row / T * H + h, n, gradient);
        if (!dw.skipped()) sum += cloned<dot>(d, values.read(row * H + h, n, value), n);
        if (dvalues.skipped()) return;
        float* const place = dvalues.place(row * H + h, product);
        cloned<multiply>(weight, d, place, n);
        dvalues.write(row * H + h, n, place);
      });
      dw.write(row, 1, &sum);
    }
  });
}

const CpuKernel kWeightedSum("weighted_sum", weighted_sum);
const CpuKernel kWeightedSumGrad("weighted_sum_grad", weighted_sum_grad);

}  // namespace
}  // namespace kernels
}  // namespace echo
