#include "layer_grad.h"

#include <utility>

#include "parallel.h"

namespace echo {
namespace kernels {
namespace {

using gemm::Operand;
using gemm::Start;

// Rows of a weight.
int64_t rows_of(const std::vector<GatePiece>& pieces) {
  int64_t rows = 0;
  for (const GatePiece& piece : pieces) rows += piece.count;
  return rows;
}

}  // namespace

Product::Product(const Call& call, const char* name, int64_t buffer_floats, Arena* arena)
    : out_(call, name),
      data_(call.half() ? nullptr : static_cast<float*>(call.out(name))),
      buffer_(call.half() && buffer_floats > 0 ? arena->floats(buffer_floats) : nullptr),
      adds_(call.adds(name)) {}

LayerGrad::LayerGrad(const Call& call, const LayerShape& shape, int64_t steps, int64_t width,
                     std::vector<GatePiece> of_input, std::vector<GatePiece> of_state, Arena* arena)
    : call_(call),
      shape_(shape),
      width_(width),
      of_input_(std::move(of_input)),
      of_state_(std::move(of_state)),
      dx_(call, "dx", call.skips("dx") ? 0 : steps * shape.B * shape.I, arena),
      dwi_(call, "dwi", call.skips("dwi") ? 0 : rows_of(of_input_) * shape.I, arena),
      dwh_(call, "dwh", call.skips("dwh") ? 0 : rows_of(of_state_) * shape.H, arena) {
  const int64_t I = shape_.I, H = shape_.H, rows = steps * shape_.B;
  const bool weights = !call.skips("dwi") || !call.skips("dwh");
  gates_ = arena->floats(rows * width_);
  dbias_ = arena->floats(width_);
  const int64_t input = call.skips("dx") ? 0 : gemm::scratch_floats(rows, width_);
  const int64_t of_weights = weights ? gemm::scratch_floats(width_, rows) : 0;
  scratch_ = arena->floats(std::max({gemm::scratch_floats(shape_.B, width_), input, of_weights}));
  for (const GatePiece& piece : of_state_) wh_.push_back(arena->floats(gemm::packed_floats(H, piece.count)));
  for (const GatePiece& piece : of_input_) {
    wi_.push_back(call.skips("dx") ? nullptr : arena->floats(gemm::packed_floats(I, piece.count)));
  }
  right_ = weights ? arena->floats(gemm::packed_floats(std::max(I, H), rows)) : nullptr;
}

void LayerGrad::pack(const char* weight, int64_t columns, const std::vector<GatePiece>& pieces,
                     float* const* to) const {
  for (const GatePiece& piece : pieces) {
    const Operand whole{call_.in(weight), call_.half(), columns, piece.count, 1, columns};
    gemm::pack(whole.moved(piece.row * columns), *to++);
  }
}

void LayerGrad::begin() {
  std::fill_n(dbias_, width_, 0.0f);
  pack("wh", shape_.H, of_state_, wh_.data());
  if (dx_.wanted()) pack("wi", shape_.I, of_input_, wi_.data());
}

void LayerGrad::state(int64_t row, Start start, float* dh) const {
  const int64_t B = shape_.B, H = shape_.H;
  for (size_t i = 0; i < of_state_.size(); ++i) {
    const Operand left{gates_ + row * width_ + of_state_[i].column, false, B, of_state_[i].count, width_, 1};
    gemm::multiply(left, wh_[i], H, i == 0 ? start : Start{dh, H}, dh, H, scratch_);
  }
}

// Adds the gates' gradients from first_row of the buffer on, times `right` [columns, rows].
void LayerGrad::add_product(const Product& to, const std::vector<GatePiece>& pieces, int64_t first_row, int64_t rows,
                            const Operand& right, bool first) const {
  const int64_t columns = right.rows;
  if (rows == 0 && !first) return;
  gemm::pack(right, right_);
  for (const GatePiece& piece : pieces) {
    const int64_t offset = piece.row * columns;
    float* const sum = to.at(offset, offset);
    const Operand left{gates_ + first_row * width_ + piece.column, false, piece.count, rows, 1, width_};
    gemm::multiply(left, right_, columns, first ? to.start(offset, columns) : Start{sum, columns}, sum, columns,
                   scratch_);
  }
}

void LayerGrad::add_weights(const Chunk& chunk, bool first) const {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H, rows = (chunk.end - chunk.begin) * B;
  const bool half = call_.half();
  const Operand x{call_.in("x"), half, I, rows, 1, I};
  if (dwi_.wanted()) add_product(dwi_, of_input_, 0, rows, x.moved(chunk.time * B * I), first);
  if (!dwh_.wanted()) return;
  // The states before the steps are y of the step before, and h0 at the first.
  const bool has_first = chunk.begin == 0;
  const int64_t rest = has_first ? rows - B : rows, time = chunk.time + (has_first && !shape_.reverse ? 1 : 0);
  const int64_t before = shape_.reverse ? time + 1 : time - 1;
  const Operand y{call_.in("y"), half, H, rest, 1, H};
  add_product(dwh_, of_state_, (time - chunk.time) * B, rest, rest > 0 ? y.moved(before * B * H) : y, first);
  if (!has_first) return;
  const Operand h0{call_.in("h0"), half, H, B, 1, H};
  add_product(dwh_, of_state_, (shape_.time(0) - chunk.time) * B, B, h0, false);
}

void LayerGrad::add_bias(int64_t rows) const {
  in_chunks((width_ + kTile - 1) / kTile, rows * width_, [&](int64_t, int64_t begin, int64_t end) {
    in_tiles(std::min(end * kTile, width_) - begin * kTile, kTile, [&](int64_t at, int64_t n) {
      float sum[kTile] = {};
      const int64_t column = begin * kTile + at;
      for (int64_t row = 0; row < rows; ++row) add_to(sum, gates_ + row * width_ + column, n);
      add_to(dbias_ + column, sum, n);
    });
  });
}

void LayerGrad::write_input(const Chunk& chunk) const {
  const int64_t B = shape_.B, I = shape_.I, rows = (chunk.end - chunk.begin) * B, offset = chunk.time * B * I;
  float* const dx = dx_.at(offset, 0);
  for (size_t i = 0; i < of_input_.size(); ++i) {
    const Operand left{gates_ + of_input_[i].column, false, rows, of_input_[i].count, width_, 1};
    gemm::multiply(left, wi_[i], I, i == 0 ? dx_.start(offset, I) : Start{dx, I}, dx, I, scratch_);
  }
  dx_.write(offset, rows * I);
}

void LayerGrad::take(const Chunk& chunk) {
  add_weights(chunk, chunk.end == shape_.T);
  if (call_.out("dbi") != nullptr || call_.out("dbh") != nullptr) add_bias((chunk.end - chunk.begin) * shape_.B);
  if (dx_.wanted()) write_input(chunk);
}

void LayerGrad::write_bias(const char* name, const std::vector<GatePiece>& pieces) const {
  const Output bias(call_, name);
  for (const GatePiece& piece : pieces) bias.write(piece.row, piece.count, dbias_ + piece.column);
}

void LayerGrad::write() {
  if (shape_.T > 0) {
    dwi_.write(0, rows_of(of_input_) * shape_.I);
    dwh_.write(0, rows_of(of_state_) * shape_.H);
  }
  write_bias("dbi", of_input_);
  write_bias("dbh", of_state_);
}

}  // namespace kernels
}  // namespace echo
