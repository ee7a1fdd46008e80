// Both passes of a recurrent layer over time, which the LSTM, the GRU and the RNN of tanh or relu share. The input's
// products are made for many steps at once, the weights are packed once for all steps, and the forward pass saves as
// little as possible: the backward pass recomputes the rest, some steps at a time.
//
// `Cell` is what the layers differ in. Sizes count in units of H:
//   kGates       the sums of a step: rows of wh
//   kInputGates  the first of these, to which the product of the input is added, too
//   kBiases      the bias: those of wi, the first kInputGates with those of wh added, then what the cell adds
//   kSaves       whether the sums are an output, `pre`
//   kOneChunk    whether sums that are computed in the output itself are those of all steps at once
//   kGradients   the gradients of a step: columns of the buffer, of which input_pieces(H) belong to rows of wi, and
//                state_pieces(H) to rows of wh
//   kCarries     whether a step leaves in dh what goes past its gates to the state before
//   Forward, Backward  a step of some rows and what the cell holds for it; they derive from the classes below
#ifndef ECHO_KERNELS_CPU_RECURRENT_LAYER_H_
#define ECHO_KERNELS_CPU_RECURRENT_LAYER_H_
#include <optional>

#include "gemm.h"
#include "kernels.h"
#include "layer.h"
#include "layer_grad.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {

// Rows [begin, end) of the batch in a step. The first row of the batch is row `first` of the chunk's buffers.
struct StepRows {
  int64_t step, time, first, begin, end;
};

// What a cell holds and does in the forward pass.
class ForwardCell {
 public:
  ForwardCell(const Call& call, const LayerShape& shape) : call_(call), shape_(shape) {}
  // Completes the bias.
  virtual void begin(float*) {}
  // Makes other products of the input of a chunk.
  virtual void project(const gemm::Operand&, float*) {}
  // Starts the sums of a step that have no product of the input.
  virtual void start(float*) {}
  // From the sums and states of the whole batch to the next states of some rows.
  virtual void step(const StepRows& rows, const float* sums, float* h) = 0;
  virtual void finish() {}

 protected:
  ~ForwardCell() = default;

  const Call& call_;
  const LayerShape& shape_;
};

// The same of the backward pass.
class BackwardCell {
 public:
  BackwardCell(const Call& call, const LayerShape& shape) : call_(call), shape_(shape), dy_(call, "dy") {}
  virtual void begin() {}
  // Prepares the steps of a chunk, in the buffer of gradients or elsewhere.
  virtual void prepare(const Chunk&, float*) {}
  // From the gradients of the next states, which lack dy, to those of the sums of some rows; both of the whole batch.
  virtual void step(const StepRows& rows, const Chunk& chunk, float* gradients, float* dh) = 0;
  virtual void finish() {}

 protected:
  ~BackwardCell() = default;

  const Call& call_;
  const LayerShape& shape_;
  const Input dy_;
};

template <typename Cell>
class RecurrentForward {
 public:
  RecurrentForward(const Call& call, void* memory)
      : call_(call),
        shape_(call),
        y_(call, "y"),
        pre_(Cell::kSaves ? std::optional<Output>(std::in_place, call, "pre") : std::nullopt),
        direct_(Cell::kSaves && !call.half() && !call.skips("pre")),
        one_chunk_(direct_ && Cell::kOneChunk),
        steps_(one_chunk_ ? std::max<int64_t>(shape_.T, 1) : chunk_steps(shape_)),
        width_(Cell::kGates * shape_.H),
        arena_(memory),
        cell_(call, shape_, steps_, &arena_) {
    const int64_t B = shape_.B, I = shape_.I, H = shape_.H;
    bias_ = arena_.floats(Cell::kBiases * H);
    h_ = arena_.floats(B * H);
    scratch_ = arena_.floats(std::max(gemm::scratch_floats(steps_ * B, I), gemm::scratch_floats(B, H)));
    const int64_t wi_floats = gemm::packed_floats(Cell::kInputGates * H, I), wh_floats = gemm::packed_floats(width_, H);
    // In one chunk wi is done with when wh is packed: they share their room.
    wi_ = arena_.floats(one_chunk_ ? std::max(wi_floats, wh_floats) : wi_floats);
    wh_ = one_chunk_ ? wi_ : arena_.floats(wh_floats);
    buffer_ = direct_ ? nullptr : arena_.floats(steps_ * B * width_);
  }

  size_t bytes() const { return arena_.bytes(); }

  void run() {
    begin();
    for (int64_t first = 0; first < shape_.T; first += steps_) {
      const Chunk chunk(shape_, first, steps_);
      project(chunk);
      for (int64_t step = chunk.begin; step < chunk.end; ++step) run_step(step, chunk);
    }
    Output(call_, "hT").write(0, shape_.B * shape_.H, h_);
    cell_.finish();
  }

 private:
  void begin() {
    load(Input(call_, "bi"), width_, bias_);
    float buffer[kTile];
    const Input bh(call_, "bh");
    in_tiles(Cell::kInputGates * shape_.H, kTile,
             [&](int64_t at, int64_t n) { add_to(bias_ + at, bh.read(at, n, buffer), n); });
    load(Input(call_, "h0"), shape_.B * shape_.H, h_);
    cell_.begin(bias_);
  }

  float* sums_of(const Chunk& chunk) const {
    return direct_ ? static_cast<float*>(call_.out("pre")) + chunk.time * shape_.B * width_ : buffer_;
  }

  // The input's part of the sums, for all steps of a chunk.
  void project(const Chunk& chunk) {
    const int64_t B = shape_.B, I = shape_.I, H = shape_.H, columns = Cell::kInputGates * H;
    const bool half = call_.half();
    if (chunk.begin == 0) gemm::pack({call_.in("wi"), half, columns, I, I, 1}, wi_);
    const gemm::Operand all{call_.in("x"), half, (chunk.end - chunk.begin) * B, I, I, 1};
    const gemm::Operand x = all.moved(chunk.time * B * I);
    gemm::multiply(x, wi_, columns, {bias_, 0}, sums_of(chunk), width_, scratch_);
    cell_.project(x, scratch_);
    if (chunk.begin == 0) gemm::pack({call_.in("wh"), half, width_, H, H, 1}, wh_);
  }

  void run_step(int64_t step, const Chunk& chunk) {
    const int64_t B = shape_.B, H = shape_.H, time = shape_.time(step), first = (time - chunk.time) * B;
    float* const sums = sums_of(chunk) + first * width_;
    cell_.start(sums);
    gemm::multiply({h_, false, B, H, H, 1}, wh_, width_, {sums, width_}, sums, width_, scratch_);
    in_chunks(B, B * H, [&](int64_t, int64_t begin, int64_t end) {
      const int64_t rows = end - begin, place = time * B + begin;
      if (pre_) pre_->write(place * width_, rows * width_, sums + begin * width_);
      cell_.step({step, time, first, begin, end}, sums, h_);
      y_.write(place * H, rows * H, h_ + begin * H);
    });
  }

  const Call& call_;
  const LayerShape shape_;
  const Output y_;
  const std::optional<Output> pre_;
  const bool direct_;  // the sums are computed in the output itself; otherwise in a buffer
  const bool one_chunk_;
  const int64_t steps_, width_;
  Arena arena_;
  float *bias_, *h_, *scratch_, *wi_, *wh_, *buffer_;
  typename Cell::Forward cell_;
};

template <typename Cell>
class RecurrentBackward {
 public:
  RecurrentBackward(const Call& call, void* memory)
      : call_(call),
        shape_(call),
        steps_(chunk_steps(shape_)),
        width_(Cell::kGradients * shape_.H),
        arena_(memory),
        grad_(call, shape_, steps_, width_, Cell::input_pieces(shape_.H), Cell::state_pieces(shape_.H), &arena_),
        dh_(arena_.floats(shape_.B * shape_.H)),
        cell_(call, shape_, steps_, &arena_) {}

  size_t bytes() const { return arena_.bytes(); }

  void run() {
    const int64_t states = shape_.B * shape_.H;
    if (shape_.T == 0) call_.write_zeros();
    load(Input(call_, "dhT"), states, dh_);
    grad_.begin();
    cell_.begin();
    for (int64_t number = (shape_.T + steps_ - 1) / steps_ - 1; number >= 0; --number) {
      const Chunk chunk(shape_, number * steps_, steps_);
      cell_.prepare(chunk, grad_.gates());
      for (int64_t step = chunk.end - 1; step >= chunk.begin; --step) run_step(step, chunk);
      grad_.take(chunk);
    }
    grad_.write();
    Output(call_, "dh0").write(0, states, dh_);
    cell_.finish();
  }

 private:
  // From the gradients of the state after a step to those before it.
  void run_step(int64_t step, const Chunk& chunk) {
    const int64_t B = shape_.B, H = shape_.H, time = shape_.time(step), first = (time - chunk.time) * B;
    float* const gradients = grad_.gates() + first * width_;
    in_chunks(B, B * H, [&](int64_t, int64_t begin, int64_t end) {
      cell_.step({step, time, first, begin, end}, chunk, gradients, dh_);
    });
    grad_.state(first, Cell::kCarries ? gemm::Start{dh_, H} : gemm::Start{nullptr, 0}, dh_);
  }

  const Call& call_;
  const LayerShape shape_;
  const int64_t steps_, width_;
  Arena arena_;
  LayerGrad grad_;
  float* const dh_;
  typename Cell::Backward cell_;
};

template <typename Pass>
void run_pass(const Call& call) {
  Pass(call, call.raw().workspace).run();
}

template <typename Pass>
size_t pass_workspace(const Call& call) {
  return Pass(call, nullptr).bytes();
}

// Makes a layer and its gradient known.
template <typename Cell>
class RecurrentLayer {
 public:
  RecurrentLayer(const char* name, const char* grad_name) noexcept
      : forward_(name, run_pass<RecurrentForward<Cell>>, pass_workspace<RecurrentForward<Cell>>),
        backward_(grad_name, run_pass<RecurrentBackward<Cell>>, pass_workspace<RecurrentBackward<Cell>>) {}

 private:
  const CpuKernel forward_, backward_;
};

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_RECURRENT_LAYER_H_
