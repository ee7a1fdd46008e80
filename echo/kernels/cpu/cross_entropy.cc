// The logarithm of the softmax where a loss reads it: at the label, and summed over all classes. Of the scores only two
// numbers a row are kept, or after a fully connected layer the probabilities: no array of logarithms is ever in memory.
#include <algorithm>
#include <cmath>

#include "chunk_vectors.h"
#include "clones.h"
#include "kernels.h"
#include "labels.h"
#include "linear_scores.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

// As MXNet's pick has it: towards 0, and into the classes that there are; 0 for what is no int.
int64_t class_of(float label, int64_t V) {
  if (!(label > 0.0f) || label >= 2147483648.0f) return 0;
  return std::min(static_cast<int64_t>(label), V - 1);
}

ECHO_INLINE float sum_of_exponentials(const float* x, int64_t n, float most) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += exp_of(x[i] - most);
  return sum;
}

ECHO_INLINE float sum_of_differences(const float* x, int64_t n, float most) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] - most;
  return sum;
}

// slope * exp((x - most) - logsum) + rest
ECHO_INLINE void gradient_of_scores(const float* x, int64_t n, float most, float logsum, float slope, float rest,
                                    float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = slope * exp_of((x[i] - most) - logsum) + rest;
}

ECHO_INLINE void gradient_of_probabilities(const float* prob, int64_t n, float slope, float rest, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = slope * prob[i] + rest;
}

// The outputs of a row, from the largest of its scores and the logarithm of the sum of exponentials below it.
class Losses {
 public:
  explicit Losses(const Call& call) : labels_(call), logp_(call, "logp"), sum_(call, "sum"), V_(call["V"]) {}

  float wanted(int64_t row, const float* scores) const { return scores[class_of(labels_[row], V_)]; }

  // `wanted` and `differences`: the score at the label, and the sum of all, each less the largest.
  void write(int64_t row, float wanted, float differences, float logsum) const {
    const float logp = wanted - logsum, sum = differences - static_cast<float>(V_) * logsum;
    logp_.write(row, 1, &logp);
    sum_.write(row, 1, &sum);
  }

 private:
  const Labels labels_;
  const Output logp_, sum_;
  const int64_t V_;
};

// The gradient of a row's scores is slope p + rest, and at the label `dlogp` more, where p are the probabilities.
struct RowGradient {
  float dlogp, slope, rest;
};

class RowGradients {
 public:
  explicit RowGradients(const Call& call) : labels_(call), dlogp_(call, "dlogp"), dsum_(call, "dsum"), V_(call["V"]) {}

  RowGradient operator[](int64_t row) const {
    const float dlogp = value(dlogp_, row), dsum = value(dsum_, row);
    return {dlogp, -(dlogp + static_cast<float>(V_) * dsum), dsum};
  }
  int64_t label(int64_t row) const { return class_of(labels_[row], V_); }

  // Columns [column, column + n) of a row, from its probabilities.
  void tile(const float* prob, int64_t row, int64_t column, int64_t n, float* out) const {
    const RowGradient of_row = (*this)[row];
    cloned<gradient_of_probabilities>(prob, n, of_row.slope, of_row.rest, out);
    const int64_t wanted = label(row) - column;
    if (wanted >= 0 && wanted < n) out[wanted] += of_row.dlogp;
  }

 private:
  float value(const Input& input, int64_t row) const {
    float number = 0.0f;
    return input.absent() ? 0.0f : *input.read(row, 1, &number);
  }

  const Labels labels_;
  const Input dlogp_, dsum_;
  const int64_t V_;
};

enum { kX, kDx, kVectors };

size_t cross_entropy_workspace(const Call& call) { return ChunkVectors::bytes(call["N"], kVectors, call["V"]); }

void cross_entropy(const Call& call) {
  const int64_t N = call["N"], V = call["V"];
  if (V == 0) return call.write_zeros();
  const Input x(call, "x");
  float* const most = static_cast<float*>(call.out("most"));
  float* const logsum = static_cast<float*>(call.out("logsum"));
  const Losses losses(call);
  const ChunkVectors rows(call.raw().workspace, N, kVectors, V);
  in_chunks(N, N * V, [&](int64_t chunk, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const scores = x.read(row * V, V, rows.at(chunk, kX));
      const float base = cloned<largest>(scores, V);
      const float log_of_sum = std::log(cloned<sum_of_exponentials>(scores, V, base));
      losses.write(row, losses.wanted(row, scores) - base, cloned<sum_of_differences>(scores, V, base), log_of_sum);
      if (most) most[row] = base;
      if (logsum) logsum[row] = log_of_sum;
    }
  });
}

void cross_entropy_grad(const Call& call) {
  const int64_t N = call["N"], V = call["V"];
  call.write_zeros("dlabel");
  const Output dx(call, "dx");
  if (V == 0 || dx.skipped()) return;
  const Input x(call, "x");
  const float* const most = static_cast<const float*>(call.in("most"));
  const float* const logsum = static_cast<const float*>(call.in("logsum"));
  const RowGradients gradients(call);
  const ChunkVectors rows(call.raw().workspace, N, kVectors, V);
  in_chunks(N, N * V, [&](int64_t chunk, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const scores = x.read(row * V, V, rows.at(chunk, kX));
      const RowGradient of_row = gradients[row];
      const int64_t label = gradients.label(row);
      const float at_label = (scores[label] - most[row]) - logsum[row];
      float* const out = dx.place(row * V, rows.at(chunk, kDx));
      cloned<gradient_of_scores>(scores, V, most[row], logsum[row], of_row.slope, of_row.rest, out);
      // 1 - p, which vanishes in p where that is nearly 1
      out[label] = of_row.rest * (1.0f - static_cast<float>(V) * std::exp(at_label)) -
                   of_row.dlogp * std::expm1(at_label);
      dx.write(row * V, V, out);
    }
  });
}

void linear_cross_entropy(const Call& call) {
  const int64_t V = call["V"];
  if (V == 0) return call.write_zeros();
  const Losses losses(call);
  LinearScores(call, call.raw().workspace).run([&](int64_t row, float* scores) {
    const float most = cloned<largest>(scores, V);
    const float wanted = losses.wanted(row, scores) - most, differences = cloned<sum_of_differences>(scores, V, most);
    const float sum = cloned<exp_and_sum>(scores, V, most);
    losses.write(row, wanted, differences, std::log(sum));
    cloned<scale>(scores, V, 1.0f / sum);
  });
}
size_t linear_cross_entropy_workspace(const Call& call) { return LinearScores(call, nullptr).bytes(); }

void linear_cross_entropy_grad(const Call& call) {
  LinearScoresGradient(call, call.raw().workspace).run(RowGradients(call));
}
size_t linear_cross_entropy_grad_workspace(const Call& call) { return LinearScoresGradient(call, nullptr).bytes(); }

const CpuKernel kCrossEntropy("cross_entropy", cross_entropy, cross_entropy_workspace);
const CpuKernel kCrossEntropyGrad("cross_entropy_grad", cross_entropy_grad, cross_entropy_workspace);
const CpuKernel kLinearCrossEntropy("linear_cross_entropy", linear_cross_entropy, linear_cross_entropy_workspace);
const CpuKernel kLinearCrossEntropyGrad("linear_cross_entropy_grad", linear_cross_entropy_grad,
                                        linear_cross_entropy_grad_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
