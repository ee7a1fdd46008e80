// A fully connected layer and what a loss makes of its scores: the scores are made into probabilities where they are
// computed. The gradient of the scores, which is as large as the probabilities, exists one tile at a time, between the
// products that read it.
#ifndef ECHO_KERNELS_CPU_LINEAR_SCORES_H_
#define ECHO_KERNELS_CPU_LINEAR_SCORES_H_
#include <algorithm>

#include "arena.h"
#include "check.h"
#include "gemm.h"
#include "labels.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {

const int64_t kScoreColumns = 1024, kScoreRows = 512;  // of a tile of scores: 2 MB

struct ScoreSizes {
  explicit ScoreSizes(const Call& call) : N(call["N"]), I(call["I"]), V(call["V"]) {}
  const int64_t N, I, V;
};

// finish(row, scores) makes probabilities of the V scores of a row.
class LinearScores {
 public:
  LinearScores(const Call& call, void* memory)
      : call_(call),
        size_(call),
        prob_(call, "prob"),
        arena_(memory),
        direct_(!call.half() && !call.skips("prob")),
        rows_(direct_ ? std::max<int64_t>(size_.N, 1) : std::min(size_.N, kScoreRows)) {
    columns_ = std::min(size_.V, kScoreColumns);
    panels_ = arena_.floats(gemm::packed_floats(columns_, size_.I));
    bias_ = arena_.floats(columns_);
    scratch_ = arena_.floats(gemm::scratch_floats(rows_, size_.I));
    buffer_ = direct_ ? nullptr : arena_.floats(rows_ * size_.V);
  }

  size_t bytes() const { return arena_.bytes(); }

  template <typename Finish>
  void run(const Finish& finish) {
    for (int64_t row = 0; row < size_.N; row += rows_) run_rows(row, std::min(rows_, size_.N - row), finish);
  }

 private:
  template <typename Finish>
  void run_rows(int64_t row, int64_t count, const Finish& finish) {
    float* const scores = buffer_ ? buffer_ : static_cast<float*>(call_.out("prob")) + row * size_.V;
    const gemm::Operand x{call_.in("x"), call_.half(), count, size_.I, size_.I, 1};
    const gemm::Operand w{call_.in("w"), call_.half(), size_.V, size_.I, size_.I, 1};
    const Input b(call_, "b");
    in_tiles(size_.V, kScoreColumns, [&](int64_t column, int64_t columns) {
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
        finish(row + r, line);
        if (buffer_) prob_.write((row + r) * size_.V, size_.V, line);
      }
    });
  }

  const Call& call_;
  const ScoreSizes size_;
  const Output prob_;
  Arena arena_;
  const bool direct_;  // scores are computed where the probabilities will be
  const int64_t rows_;
  int64_t columns_;
  float *panels_, *bias_, *scratch_, *buffer_;
};

// gradient.tile(prob, row, column, n, out) is the gradient of n scores of a row from a column on.
class LinearScoresGradient {
 public:
  LinearScoresGradient(const Call& call, void* memory)
      : call_(call),
        size_(call),
        half_(call.half()),
        arena_(memory),
        rows_(std::min(size_.N, kScoreRows)),
        columns_(std::min(size_.V, kScoreColumns)) {
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

  template <typename Gradient>
  void run(const Gradient& gradient) {
    if (size_.N == 0 || size_.V == 0) return call_.write_zeros();
    in_tiles(size_.V, kScoreColumns, [&](int64_t column, int64_t columns) {
      pack_weights(column, columns);
      std::fill(bias_, bias_ + columns, 0.0f);
      in_tiles(size_.N, kScoreRows, [&](int64_t row, int64_t rows) {
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

  template <typename Gradient>
  void fill_tile(const Gradient& gradient, int64_t row, int64_t rows, int64_t column, int64_t columns) {
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
  const ScoreSizes size_;
  const bool half_;
  Arena arena_;
  const int64_t rows_, columns_;
  float *tile_, *weights_, *inputs_, *scratch_, *bias_, *probs_, *dx_, *dw_;
};

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_LINEAR_SCORES_H_
