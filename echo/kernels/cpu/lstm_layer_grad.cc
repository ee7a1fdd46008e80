#include "kernels.h"
#include "layer_grad.h"
#include "lstm_rows.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

class Backward {
 public:
  Backward(const Call& call, void* memory);

  size_t bytes() const { return arena_.bytes(); }
  void run();

 private:
  Gates<float> gates_at(int64_t row, int64_t at) const;
  Gates<const float> read_pre(int64_t row, int64_t at, int64_t n, float* buffer) const;
  void save_cells();
  void recompute(const Chunk& chunk, int64_t number);
  void run_step(int64_t step, const Chunk& chunk);

  const Call& call_;
  const LayerShape shape_;
  const Places place_;
  const int64_t steps_, chunks_, rows_;  // steps of a chunk, chunks, rows of a chunk
  const Input pre_, dy_;
  Arena arena_;
  LayerGrad grad_;  // its gates are those of a chunk, which become their gradients
  float* cells_;  // of a chunk: before its first step, then after each
  float* saved_;  // cells before each chunk
  float *dh_, *dc_;
};

Backward::Backward(const Call& call, void* memory)
    : call_(call),
      shape_(call),
      place_(call.places(4)),
      steps_(chunk_steps(shape_)),
      chunks_((shape_.T + steps_ - 1) / steps_),
      rows_(steps_ * shape_.B),
      pre_(call, "pre"),
      dy_(call, "dy"),
      arena_(memory),
      grad_(call, shape_, steps_, 4 * shape_.H, {{0, 0, 4 * shape_.H}}, {{0, 0, 4 * shape_.H}}, &arena_) {
  const int64_t states = shape_.B * shape_.H;
  cells_ = arena_.floats((steps_ + 1) * states);
  saved_ = arena_.floats(chunks_ * states);
  dh_ = arena_.floats(states);
  dc_ = arena_.floats(states);
}

Gates<float> Backward::gates_at(int64_t row, int64_t at) const {
  const int64_t H = shape_.H;
  float* const begin = grad_.gates() + row * 4 * H + at;
  return {begin + place_[0] * H, begin + place_[1] * H, begin + place_[2] * H, begin + place_[3] * H};
}

// n elements of each gate of a row of `pre`; buffer: 4 * kTile floats.
Gates<const float> Backward::read_pre(int64_t row, int64_t at, int64_t n, float* buffer) const {
  const int64_t H = shape_.H, begin = row * 4 * H + at;
  const auto gate = [&](int64_t k) { return pre_.read(begin + place_[k] * H, n, buffer + k * kTile); };
  return {gate(0), gate(1), gate(2), gate(3)};
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

// From the gradients of the state after a step to those before it.
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
  grad_.state(first, {nullptr, 0}, dh_);
}

void Backward::run() {
  const int64_t states = shape_.B * shape_.H;
  if (shape_.T == 0) call_.write_zeros();
  load(Input(call_, "dhT"), states, dh_);
  load(Input(call_, "dcT"), states, dc_);
  grad_.begin();
  save_cells();
  for (int64_t number = chunks_ - 1; number >= 0; --number) {
    const Chunk chunk(shape_, number * steps_, steps_);
    recompute(chunk, number);
    for (int64_t step = chunk.end - 1; step >= chunk.begin; --step) run_step(step, chunk);
    grad_.take(chunk);
  }
  grad_.write();
  Output(call_, "dh0").write(0, states, dh_);
  Output(call_, "dc0").write(0, states, dc_);
}

void lstm_layer_grad(const Call& call) { Backward(call, call.raw().workspace).run(); }

size_t lstm_layer_grad_workspace(const Call& call) { return Backward(call, nullptr).bytes(); }

const CpuKernel kLstmLayerGrad("lstm_layer_grad", lstm_layer_grad, lstm_layer_grad_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
