// A fully connected layer and the SoftmaxOutput behind it. MXNet's own holds the gradient of the scores, which is as large as
// the probabilities, all at once; here it exists one tile at a time, between the products that read it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "arena.h"
#include "clones.h"
#include "gemm.h"
#include "half.h"
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

const int64_t kColumns = 1024, kRows = 512;  // of a tile of scores: 2 MB

class Labels {
 public:
  explicit Labels(const Call& call) : data_(call.in("label")), dtype_(call.in_dtype("label")) {}

  float operator[](int64_t index) const {
    if (dtype_ == ECHO_INT32) return static_cast<float>(static_cast<const int32_t*>(data_)[index]);
    return dtype_ == ECHO_FLOAT16 ? to_float(static_cast<const Half*>(data_)[index])
                                  : static_cast<const float*>(data_)[index];
  }

 private:
  const void* data_;
  int dtype_;
};

struct Sizes {
  explicit Sizes(const Call& call) : N(call["N"]), I(call["I"]), V(call["V"]) {}
  const int64_t N, I, V;
};

ECHO_INLINE float largest(const float* x, int64_t n) {
  float most = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

ECHO_INLINE float exp_and_sum(float* x, int64_t n, float most) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] = exp_of(x[i] - most);
  return sum;
}

ECHO_INLINE void scale(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// x + add, times a factor.
ECHO_INLINE void shift_and_scale(const float* x, int64_t n, float add, float factor, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] + add) * factor;
}

void softmax(float* row, int64_t n) {
  const float sum = cloned<exp_and_sum>(row, n, cloned<largest>(row, n));
  cloned<scale>(row, n, 1.0f / sum);
}

class Forward {
 public:
  Forward(const Call& call, void* memory)
      : call_(call),
        size_(call),
        prob_(call, "prob"),
        arena_(memory),
        rows_(call.half() ? kRows : std::max<int64_t>(size_.N, 1)) {
    columns_ = std::min(size_.V, kColumns);
    panels_ = arena_.floats(gemm::packed_floats(columns_, size_.I));
    bias_ = arena_.floats(columns_);
    scratch_ = arena_.floats(gemm::scratch_floats(rows_, size_.I));
    buffer_ = call.half() ? arena_.floats(rows_ * size_.V) : nullptr;
  }

  size_t bytes() const { return arena_.bytes(); }

  void run() {
    for (int64_t row = 0; row < size_.N; row += rows_) run_rows(row, std::min(rows_, size_.N - row));
  }

 private:
  void run_rows(int64_t row, int64_t count) {
    float* const scores = buffer_ ? buffer_ : static_cast<float*>(call_.out("prob")) + row * size_.V;
    const gemm::Operand x{call_.in("x"), call_.half(), count, size_.I, size_.I, 1};
    const gemm::Operand w{call_.in("w"), call_.half(), size_.V, size_.I, size_.I, 1};
    const Input b(call_, "b");
    in_tiles(size_.V, kColumns, [&](int64_t column, int64_t columns) {
      gemm::Operand part = w.moved(column * size_.I);
      part.rows = columns;
      gemm::pack(part, panels_);
      in_tiles(columns, kTile, [&](int64_t at, int64_t n) {
        const float* values = b.read(column + at, n, bias_ + at);
        if (values != bias_ + at) std::copy(values, values + n, bias_ + at);
      });
      gemm::multiply(x.moved(row * size_.I), panels_, columns, {bias_, 0}, scores + column, size_.V, scratch_);
    });
    in_chunks(count, count * size_.V, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* const line = scores + r * size_.V;
        softmax(line, size_.V);
        if (buffer_) prob_.write((row + r) * size_.V, size_.V, line);
      }
    });
  }

  const Call& call_;
  const Sizes size_;
  const Output prob_;
  Arena arena_;
  const int64_t rows_;
  int64_t columns_;
  float *panels_, *bias_, *scratch_, *buffer_;
};

// The gradient of the scores, as MXNet's SoftmaxOutput defines it: the gradient of the output is not read.
class ScoreGradient {
 public:
  explicit ScoreGradient(const Call& call)
      : labels_(call),
        ignores_(call.param("use_ignore") != 0),
        ignored_(static_cast<float>(call.param("ignore_label"))),
        V_(call["V"]),
        hit_(static_cast<float>(call.param("smooth_alpha")) - 1.0f),
        miss_(V_ > 1 ? -static_cast<float>(call.param("smooth_alpha")) / static_cast<float>(V_ - 1) : 0.0f) {
    const int64_t N = call["N"];
    int64_t count = 1;
    if (call.param("normalization") == 1) count = N;
    if (call.param("normalization") == 2) {
      count = 0;
      for (int64_t i = 0; i < N; ++i) count += static_cast<int64_t>(labels_[i]) != static_cast<int64_t>(ignored_);
      count = std::max<int64_t>(count, 1);
    }
    factor_ = static_cast<float>(call.param("grad_scale") / static_cast<double>(count));
  }

  // Columns [column, column + n) of a row, from its probabilities.
  void tile(const float* prob, int64_t row, int64_t column, int64_t n, float* out) const {
    const float label = labels_[row];
    if (ignores_ && label == ignored_) {
      std::fill(out, out + n, 0.0f);
      return;
    }
    const int64_t wanted = std::isfinite(label) ? static_cast<int64_t>(label) - column : -1;
    const float mine = wanted >= 0 && wanted < n ? prob[wanted] : 0.0f;
    cloned<shift_and_scale>(prob, n, miss_, factor_, out);
    if (wanted >= 0 && wanted < n) out[wanted] = (mine + hit_) * factor_;
  }

 private:
  const Labels labels_;
  const bool ignores_;
  const float ignored_;
  const int64_t V_;
  const float hit_, miss_;
  float factor_;
};

class Backward {
 public:
  Backward(const Call& call, void* memory)
      : call_(call),
        size_(call),
        half_(call.half()),
        arena_(memory),
        rows_(std::min(size_.N, kRows)),
        columns_(std::min(size_.V, kColumns)) {
    tile_ = arena_.floats(rows_ * columns_);
    weights_ = arena_.floats(gemm::packed_floats(size_.I, columns_));
    inputs_ = arena_.floats(gemm::packed_floats(size_.I, rows_));
    scratch_ = arena_.floats(std::max(gemm::scratch_floats(rows_, columns_), gemm::scratch_floats(columns_, rows_)));
    bias_ = arena_.floats(columns_);
    probs_ = half_ ? arena_.floats(columns_ * kChunks) : nullptr;
    dx_ = half_ ? arena_.floats(size_.N * size_.I) : nullptr;
    dw_ = half_ ? arena_.floats(columns_ * size_.I) : nullptr;
  }

  size_t bytes() const { return arena_.bytes(); }

  void run() {
    if (size_.N == 0 || size_.V == 0) return call_.write_zeros();
    const ScoreGradient gradient(call_);
    in_tiles(size_.V, kColumns, [&](int64_t column, int64_t columns) {
      pack_weights(column, columns);
      std::fill(bias_, bias_ + columns, 0.0f);
      in_tiles(size_.N, kRows, [&](int64_t row, int64_t rows) {
        fill_tile(gradient, row, rows, column, columns);
        add_to_dx(row, rows, column, columns);
        add_to_dw(row, rows, column, columns);
        if (!Output(call_, "db").skipped())
          for (int64_t r = 0; r < rows; ++r) add_to(bias_, tile_ + r * columns, columns);
      });
      Output(call_, "db").write(column, columns, bias_);
      if (half_) Output(call_, "dw").write(column * size_.I, columns * size_.I, dw_);
    });
    if (half_) Output(call_, "dx").write(0, size_.N * size_.I, dx_);
    call_.write_zeros("dlabel");
  }

 private:
  void pack_weights(int64_t column, int64_t columns) {
    if (Output(call_, "dx").skipped()) return;
    const gemm::Operand w{call_.in("w"), half_, size_.I, columns, 1, size_.I};
    gemm::pack(w.moved(column * size_.I), weights_);
  }

  void fill_tile(const ScoreGradient& gradient, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    const Input prob(call_, "prob");
    in_chunks(rows, rows * columns, [&](int64_t chunk, int64_t begin, int64_t end) {
      float* const buffer = half_ ? probs_ + chunk * columns_ : nullptr;
      for (int64_t r = begin; r < end; ++r) {
        const float* values = prob.read((row + r) * size_.V + column, columns, buffer);
        gradient.tile(values, row + r, column, columns, tile_ + r * columns);
      }
    });
  }

  // dx += tile W
  void add_to_dx(int64_t row, int64_t rows, int64_t column, int64_t columns) {
    if (Output(call_, "dx").skipped()) return;
    float* const dx = (half_ ? dx_ : static_cast<float*>(call_.out("dx"))) + row * size_.I;
    const bool begins = column == 0 && (half_ || !call_.adds("dx"));
    gemm::multiply({tile_, false, rows, columns, columns, 1}, weights_, size_.I, {begins ? nullptr : dx, size_.I}, dx,
                   size_.I, scratch_);
  }

  // dw += tile' x
  void add_to_dw(int64_t row, int64_t rows, int64_t column, int64_t columns) {
    if (Output(call_, "dw").skipped()) return;
    const gemm::Operand x{call_.in("x"), half_, size_.I, rows, 1, size_.I};
    gemm::pack(x.moved(row * size_.I), inputs_);
    float* const dw = half_ ? dw_ : static_cast<float*>(call_.out("dw")) + column * size_.I;
    const bool begins = row == 0 && (half_ || !call_.adds("dw"));
    gemm::multiply({tile_, false, columns, rows, 1, columns}, inputs_, size_.I, {begins ? nullptr : dw, size_.I}, dw,
                   size_.I, scratch_);
  }

  const Call& call_;
  const Sizes size_;
  const bool half_;
  Arena arena_;
  const int64_t rows_, columns_;
  float *tile_, *weights_, *inputs_, *scratch_, *bias_, *probs_, *dx_, *dw_;
};

void softmax_output(const Call& call) { Forward(call, call.raw().workspace).run(); }
size_t softmax_output_workspace(const Call& call) { return Forward(call, nullptr).bytes(); }
void softmax_output_grad(const Call& call) { Backward(call, call.raw().workspace).run(); }
size_t softmax_output_grad_workspace(const Call& call) { return Backward(call, nullptr).bytes(); }

const CpuKernel kSoftmaxOutput("softmax_output", softmax_output, softmax_output_workspace);
const CpuKernel kSoftmaxOutputGrad("softmax_output_grad", softmax_output_grad, softmax_output_grad_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
