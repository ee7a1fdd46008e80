#include "gemm.h"
#include "kernels.h"
#include "lstm_layer.h"
#include "lstm_rows.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

using gemm::Operand;
using gemm::Start;

// A gradient made of products: in the output itself where that is float32, otherwise in a buffer that is written to the
// output afterwards.
class Product {
 public:
  Product(const Call& call, const char* name, int64_t buffer_floats, Arena* arena)
      : out_(call, name),
        data_(call.half() ? nullptr : static_cast<float*>(call.out(name))),
        buffer_(call.half() && buffer_floats > 0 ? arena->floats(buffer_floats) : nullptr),
        adds_(call.adds(name)) {}

  bool wanted() const { return !out_.skipped(); }
  float* at(int64_t offset) const { return data_ != nullptr ? data_ + offset : buffer_; }
  // What the first product is added to.
  Start start(int64_t offset, int64_t stride) const {
    return {data_ != nullptr && adds_ ? data_ + offset : nullptr, stride};
  }
  void write(int64_t offset, int64_t n) const {
    if (data_ == nullptr) out_.write(offset, n, buffer_);
  }

 private:
  const Output out_;
  float *const data_, *const buffer_;
  const bool adds_;
};

class Backward {
 public:
  Backward(const Call& call, void* memory);

  size_t bytes() const { return arena_.bytes(); }
  void run();

 private:
  bool asked(int output) const { return call_.raw().req[output] != ECHO_SKIP; }
  Gates<float> gates_at(int64_t row, int64_t at) const;
  Gates<const float> read_pre(int64_t row, int64_t at, int64_t n, float* buffer) const;
  void save_cells();
  void recompute(const Chunk& chunk, int64_t number);
  void run_step(int64_t step, const Chunk& chunk);
  void add_weights(const Chunk& chunk);
  void add_product(const Product& to, int64_t first_row, int64_t rows, const Operand& right, bool first);
  void add_bias(int64_t rows);
  void write_input(const Chunk& chunk);
  void write_rest();

  const Call& call_;
  const LayerShape shape_;
  const int64_t steps_, chunks_, rows_;  // steps of a chunk, chunks, rows of a chunk
  const Input pre_, dy_;
  Arena arena_;
  Product dx_, dwi_, dwh_;
  float* gates_;  // of a chunk, in the order of time; they become their gradients
  float* cells_;  // of a chunk: before its first step, then behind each
  float* saved_;  // cells before each chunk
  float *dh_, *dc_, *dbias_, *scratch_;
  float *wi_, *wh_, *right_;  // packed
};

Backward::Backward(const Call& call, void* memory)
    : call_(call),
      shape_(call),
      steps_(std::max<int64_t>(chunk_steps(shape_), 1)),
      chunks_((shape_.T + steps_ - 1) / steps_),
      rows_(steps_ * shape_.B),
      pre_(call, "pre"),
      dy_(call, "dy"),
      arena_(memory),
      dx_(call, "dx", asked(0) ? rows_ * shape_.I : 0, &arena_),
      dwi_(call, "dwi", asked(1) ? 4 * shape_.H * shape_.I : 0, &arena_),
      dwh_(call, "dwh", asked(3) ? 4 * shape_.H * shape_.H : 0, &arena_) {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H;
  gates_ = arena_.floats(rows_ * 4 * H);
  cells_ = arena_.floats((steps_ + 1) * B * H);
  saved_ = arena_.floats(chunks_ * B * H);
  dh_ = arena_.floats(B * H);
  dc_ = arena_.floats(B * H);
  dbias_ = arena_.floats(4 * H);
  const int64_t input = asked(0) ? gemm::scratch_floats(rows_, 4 * H) : 0;
  const int64_t weights = asked(1) || asked(3) ? gemm::scratch_floats(4 * H, rows_) : 0;
  scratch_ = arena_.floats(std::max({gemm::scratch_floats(B, 4 * H), input, weights}));
  wh_ = arena_.floats(gemm::packed_floats(H, 4 * H));
  wi_ = asked(0) ? arena_.floats(gemm::packed_floats(I, 4 * H)) : nullptr;
  right_ = asked(1) || asked(3) ? arena_.floats(gemm::packed_floats(std::max(I, H), rows_)) : nullptr;
}

Gates<float> Backward::gates_at(int64_t row, int64_t at) const {
  const int64_t H = shape_.H;
  float* const begin = gates_ + row * 4 * H + at;
  return {begin, begin + H, begin + 2 * H, begin + 3 * H};
}

// n elements of each gate of a row of `pre`; buffer: 4 * kTile floats.
Gates<const float> Backward::read_pre(int64_t row, int64_t at, int64_t n, float* buffer) const {
  const int64_t H = shape_.H, begin = row * 4 * H + at;
  return {pre_.read(begin, n, buffer), pre_.read(begin + H, n, buffer + kTile),
          pre_.read(begin + 2 * H, n, buffer + 2 * kTile), pre_.read(begin + 3 * H, n, buffer + 3 * kTile)};
}

// The cells before each chunk.
void Backward::save_cells() {
  const int64_t B = shape_.B, H = shape_.H;
  load(Input(call_, "c0"), chunks_ > 0 ? B * H : 0, saved_);
  in_chunks(B, shape_.T * B * H, [&](int64_t, int64_t begin, int64_t end) {
    float buffer[4 * kTile];
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t chunk = 1; chunk < chunks_; ++chunk) {
        float* const cell = saved_ + (chunk * B + row) * H;
        std::memcpy(cell, cell - B * H, H * sizeof(float));
        for (int64_t step = (chunk - 1) * steps_; step < chunk * steps_; ++step) {
          const int64_t place = shape_.time(step) * B + row;
          in_tiles(H, kTile,
                   [&](int64_t at, int64_t n) { cell_advance(n, read_pre(place, at, n, buffer), cell + at); });
        }
      }
    }
  });
}

// The gates and cells of a chunk.
void Backward::recompute(const Chunk& chunk, int64_t number) {
  const int64_t B = shape_.B, H = shape_.H;
  in_chunks(B, rows_ * H, [&](int64_t, int64_t begin, int64_t end) {
    float buffer[4 * kTile];
    for (int64_t row = begin; row < end; ++row) {
      float* cell = cells_ + row * H;
      std::memcpy(cell, saved_ + (number * B + row) * H, H * sizeof(float));
      for (int64_t step = chunk.begin; step < chunk.end; ++step, cell += B * H) {
        const int64_t time = shape_.time(step), place = (time - chunk.time) * B + row;
        in_tiles(H, kTile, [&](int64_t at, int64_t n) {
          const Gates<const float> pre = read_pre(time * B + row, at, n, buffer);
          cell_gates(n, pre, cell + at, gates_at(place, at), cell + B * H + at);
        });
      }
    }
  });
}

// From the gradients of the state behind a step to those before it.
void Backward::run_step(int64_t step, const Chunk& chunk) {
  const int64_t B = shape_.B, H = shape_.H, time = shape_.time(step), first = (time - chunk.time) * B;
  const float* const cells = cells_ + (step - chunk.begin) * B * H;
  in_chunks(B, B * H, [&](int64_t, int64_t begin, int64_t end) {
    float buffer[kTile];
    for (int64_t row = begin; row < end; ++row) {
      in_tiles(H, kTile, [&](int64_t at, int64_t n) {
        const int64_t here = row * H + at;
        const float* const dy = dy_.read(time * B * H + here, n, buffer);
        cell_step_grad(n, dh_ + here, dy, cells + here, cells + B * H + here, gates_at(first + row, at), dc_ + here);
      });
    }
  });
  const Operand left{gates_ + first * 4 * H, false, B, 4 * H, 4 * H, 1};
  gemm::multiply(left, wh_, H, {nullptr, 0}, dh_, H, scratch_);
}

// Adds the gradients of a chunk's `pre`, from first_row on, times `right` [columns, rows].
void Backward::add_product(const Product& to, int64_t first_row, int64_t rows, const Operand& right, bool first) {
  const int64_t H = shape_.H, columns = right.rows;
  if (rows == 0 && !first) return;
  gemm::pack(right, right_);
  const Start start = first ? to.start(0, columns) : Start{to.at(0), columns};
  gemm::multiply({gates_ + first_row * 4 * H, false, 4 * H, rows, 1, 4 * H}, right_, columns, start, to.at(0), columns,
                 scratch_);
}

void Backward::add_weights(const Chunk& chunk) {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H, rows = (chunk.end - chunk.begin) * B;
  const bool half = call_.half(), first = chunk.end == shape_.T;
  const Operand x{call_.in("x"), half, I, rows, 1, I};
  if (dwi_.wanted()) add_product(dwi_, 0, rows, x.moved(chunk.time * B * I), first);
  if (!dwh_.wanted()) return;
  // The states before the steps are y of the step before, and h0 at the first.
  const bool has_first = chunk.begin == 0;
  const int64_t rest = has_first ? rows - B : rows, time = chunk.time + (has_first && !shape_.reverse ? 1 : 0);
  const int64_t before = shape_.reverse ? time + 1 : time - 1;
  const Operand y{call_.in("y"), half, H, rest, 1, H};
  add_product(dwh_, (time - chunk.time) * B, rest, rest > 0 ? y.moved(before * B * H) : y, first);
  if (!has_first) return;
  const Operand h0{call_.in("h0"), half, H, B, 1, H};
  add_product(dwh_, (shape_.time(0) - chunk.time) * B, B, h0, false);
}

void Backward::add_bias(int64_t rows) {
  const int64_t width = 4 * shape_.H;
  in_chunks((width + kTile - 1) / kTile, rows * width, [&](int64_t, int64_t begin, int64_t end) {
    in_tiles(std::min(end * kTile, width) - begin * kTile, kTile, [&](int64_t at, int64_t n) {
      float sum[kTile] = {};
      const int64_t column = begin * kTile + at;
      for (int64_t row = 0; row < rows; ++row) add_to(sum, gates_ + row * width + column, n);
      add_to(dbias_ + column, sum, n);
    });
  });
}

void Backward::write_input(const Chunk& chunk) {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H, rows = (chunk.end - chunk.begin) * B;
  if (!dx_.wanted()) return;
  const int64_t offset = chunk.time * B * I;
  const Operand left{gates_, false, rows, 4 * H, 4 * H, 1};
  gemm::multiply(left, wi_, I, dx_.start(offset, I), dx_.at(offset), I, scratch_);
  dx_.write(offset, rows * I);
}

void Backward::write_rest() {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H;
  if (shape_.T > 0) {
    dwi_.write(0, 4 * H * I);
    dwh_.write(0, 4 * H * H);
  }
  Output(call_, "dbi").write(0, 4 * H, dbias_);
  Output(call_, "dbh").write(0, 4 * H, dbias_);
  Output(call_, "dh0").write(0, B * H, dh_);
  Output(call_, "dc0").write(0, B * H, dc_);
}

void Backward::run() {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H;
  const bool half = call_.half(), wants_bias = call_.out("dbi") != nullptr || call_.out("dbh") != nullptr;
  if (shape_.T == 0) call_.write_zeros();
  load(Input(call_, "dhT"), B * H, dh_);
  load(Input(call_, "dcT"), B * H, dc_);
  std::fill_n(dbias_, 4 * H, 0.0f);
  gemm::pack({call_.in("wh"), half, H, 4 * H, 1, H}, wh_);
  if (dx_.wanted()) gemm::pack({call_.in("wi"), half, I, 4 * H, 1, I}, wi_);
  save_cells();
  for (int64_t number = chunks_ - 1; number >= 0; --number) {
    const Chunk chunk(shape_, number * steps_, steps_);
    recompute(chunk, number);
    for (int64_t step = chunk.end - 1; step >= chunk.begin; --step) run_step(step, chunk);
    add_weights(chunk);
    if (wants_bias) add_bias((chunk.end - chunk.begin) * B);
    write_input(chunk);
  }
  write_rest();
}

void lstm_layer_grad(const Call& call) { Backward(call, call.raw().workspace).run(); }

size_t lstm_layer_grad_workspace(const Call& call) { return Backward(call, nullptr).bytes(); }

const CpuKernel kLstmLayerGrad("lstm_layer_grad", lstm_layer_grad, lstm_layer_grad_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
