// A fully connected layer and the SoftmaxOutput after it.
#include <algorithm>
#include <cmath>

#include "clones.h"
#include "kernels.h"
#include "labels.h"
#include "linear_scores.h"

namespace echo {
namespace kernels {
namespace {

// x + add, times a factor.
ECHO_INLINE void shift_and_scale(const float* x, int64_t n, float add, float factor, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] + add) * factor;
}

void softmax(float* row, int64_t n) {
  const float sum = cloned<exp_and_sum>(row, n, cloned<largest>(row, n));
  cloned<scale>(row, n, 1.0f / sum);
}

// A label towards 0; what is no number, or beyond any class, is no class, nor ignored.
int64_t whole(float label) { return std::fabs(label) < 4e18f ? static_cast<int64_t>(label) : -(int64_t{1} << 62); }

// The gradient of the scores, as MXNet's SoftmaxOutput defines it: the gradient of the output is not read.
class ScoreGradient {
 public:
  explicit ScoreGradient(const Call& call)
      : labels_(call),
        ignores_(call.param("use_ignore") != 0),
        ignored_(whole(static_cast<float>(call.param("ignore_label")))),
        V_(call["V"]),
        hit_(static_cast<float>(call.param("smooth_alpha")) - 1.0f),
        miss_(V_ > 1 ? -static_cast<float>(call.param("smooth_alpha")) / static_cast<float>(V_ - 1) : 0.0f) {
    const int64_t N = call["N"];
    int64_t count = 1;
    if (call.param("normalization") == 1) count = N;
    if (call.param("normalization") == 2) {
      count = 0;
      for (int64_t i = 0; i < N; ++i) count += whole(labels_[i]) != ignored_;
      count = std::max<int64_t>(count, 1);
    }
    factor_ = static_cast<float>(call.param("grad_scale") / static_cast<double>(count));
  }

  // Columns [column, column + n) of a row, from its probabilities.
  void tile(const float* prob, int64_t row, int64_t column, int64_t n, float* out) const {
    const int64_t label = whole(labels_[row]);
    if (ignores_ && label == ignored_) {
      std::fill(out, out + n, 0.0f);
      return;
    }
    const int64_t wanted = label - column;
    const float mine = wanted >= 0 && wanted < n ? prob[wanted] : 0.0f;
    cloned<shift_and_scale>(prob, n, miss_, factor_, out);
    if (wanted >= 0 && wanted < n) out[wanted] = (mine + hit_) * factor_;
  }

 private:
  const Labels labels_;
  const bool ignores_;
  const int64_t ignored_;
  const int64_t V_;
  const float hit_, miss_;
  float factor_;
};

void softmax_output(const Call& call) {
  const int64_t V = call["V"];
  LinearScores(call, call.raw().workspace).run([V](int64_t, float* scores) { softmax(scores, V); });
}
size_t softmax_output_workspace(const Call& call) { return LinearScores(call, nullptr).bytes(); }

void softmax_output_grad(const Call& call) {
  LinearScoresGradient(call, call.raw().workspace).run(ScoreGradient(call));
}
size_t softmax_output_grad_workspace(const Call& call) { return LinearScoresGradient(call, nullptr).bytes(); }

const CpuKernel kSoftmaxOutput("softmax_output", softmax_output, softmax_output_workspace);
const CpuKernel kSoftmaxOutputGrad("softmax_output_grad", softmax_output_grad, softmax_output_grad_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
