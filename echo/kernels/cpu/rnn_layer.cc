// A vanilla RNN over time, of tanh or relu. The backward pass needs the states alone.
#include "gemm.h"
#include "kernels.h"
#include "layer.h"
#include "layer_grad.h"
#include "math.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

enum { kRelu = 0, kTanh = 2 };  // as of bias_act

ECHO_INLINE void tanhs(int64_t n, const float* __restrict x, float* __restrict y) {
  for (int64_t j = 0; j < n; ++j) y[j] = tanh_of(x[j]);
}

ECHO_INLINE void relus(int64_t n, const float* __restrict x, float* __restrict y) {
  for (int64_t j = 0; j < n; ++j) y[j] = x[j] <= 0.0f ? 0.0f : x[j];  // a NaN stays one
}

ECHO_INLINE void tanh_grads(int64_t n, const float* __restrict dh, const float* __restrict dy,
                            const float* __restrict y, float* __restrict d) {
  for (int64_t j = 0; j < n; ++j) d[j] = (dh[j] + dy[j]) * (1.0f - y[j] * y[j]);
}

ECHO_INLINE void relu_grads(int64_t n, const float* __restrict dh, const float* __restrict dy,
                            const float* __restrict y, float* __restrict d) {
  for (int64_t j = 0; j < n; ++j) d[j] = (dh[j] + dy[j]) * (y[j] > 0.0f ? 1.0f : 0.0f);  // a NaN stays one
}

bool is_tanh(const Call& call) {
  const double act = call.param("act");
  if (act != kRelu && act != kTanh) throw WrongCall("rnn_layer: act: expected 0 (relu) or 2 (tanh)");
  return act == kTanh;
}

class Forward {
 public:
  Forward(const Call& call, void* memory);

  size_t bytes() const { return arena_.bytes(); }
  void run();

 private:
  void begin();
  void project(const Chunk& chunk);
  void run_step(int64_t step, const Chunk& chunk);

  const Call& call_;
  const LayerShape shape_;
  const int64_t steps_;
  const bool tanh_;
  const Output y_;
  Arena arena_;
  float *bias_, *h_, *sums_, *scratch_, *wi_, *wh_;
};

Forward::Forward(const Call& call, void* memory)
    : call_(call), shape_(call), steps_(chunk_steps(shape_)), tanh_(is_tanh(call)), y_(call, "y"), arena_(memory) {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H;
  bias_ = arena_.floats(H);
  h_ = arena_.floats(B * H);
  sums_ = arena_.floats(steps_ * B * H);
  scratch_ = arena_.floats(std::max(gemm::scratch_floats(steps_ * B, I), gemm::scratch_floats(B, H)));
  wi_ = arena_.floats(gemm::packed_floats(H, I));
  wh_ = arena_.floats(gemm::packed_floats(H, H));
}

void Forward::begin() {
  const int64_t I = shape_.I, H = shape_.H;
  gemm::pack({call_.in("wi"), call_.half(), H, I, I, 1}, wi_);
  gemm::pack({call_.in("wh"), call_.half(), H, H, H, 1}, wh_);
  load(Input(call_, "bi"), H, bias_);
  float buffer[kTile];
  const Input bh(call_, "bh");
  in_tiles(H, kTile, [&](int64_t at, int64_t n) { add_to(bias_ + at, bh.read(at, n, buffer), n); });
  load(Input(call_, "h0"), shape_.B * H, h_);
}

// The input's part for all steps of a chunk.
void Forward::project(const Chunk& chunk) {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H;
  const gemm::Operand x{call_.in("x"), call_.half(), (chunk.end - chunk.begin) * B, I, I, 1};
  gemm::multiply(x.moved(chunk.time * B * I), wi_, H, {bias_, 0}, sums_, H, scratch_);
}

void Forward::run_step(int64_t step, const Chunk& chunk) {
  const int64_t B = shape_.B, H = shape_.H, time = shape_.time(step);
  float* const sums = sums_ + (time - chunk.time) * B * H;
  gemm::multiply({h_, false, B, H, H, 1}, wh_, H, {sums, H}, sums, H, scratch_);
  in_chunks(B, B * H, [&](int64_t, int64_t begin, int64_t end) {
    const int64_t at = begin * H, n = (end - begin) * H;
    tanh_ ? cloned<tanhs>(n, sums + at, h_ + at) : cloned<relus>(n, sums + at, h_ + at);
    y_.write(time * B * H + at, n, h_ + at);
  });
}

void Forward::run() {
  begin();
  for (int64_t first = 0; first < shape_.T; first += steps_) {
    const Chunk chunk(shape_, first, steps_);
    project(chunk);
    for (int64_t step = chunk.begin; step < chunk.end; ++step) run_step(step, chunk);
  }
  Output(call_, "hT").write(0, shape_.B * shape_.H, h_);
}

class Backward {
 public:
  Backward(const Call& call, void* memory);

  size_t bytes() const { return arena_.bytes(); }
  void run();

 private:
  void run_step(int64_t step, const Chunk& chunk);

  const Call& call_;
  const LayerShape shape_;
  const int64_t steps_;
  const bool tanh_;
  const Input dy_, y_;
  Arena arena_;
  LayerGrad grad_;
  float* dh_;
};

Backward::Backward(const Call& call, void* memory)
    : call_(call),
      shape_(call),
      steps_(chunk_steps(shape_)),
      tanh_(is_tanh(call)),
      dy_(call, "dy"),
      y_(call, "y"),
      arena_(memory),
      grad_(call, shape_, steps_, shape_.H, {{0, 0, shape_.H}}, {{0, 0, shape_.H}}, &arena_) {
  dh_ = arena_.floats(shape_.B * shape_.H);
}

void Backward::run_step(int64_t step, const Chunk& chunk) {
  const int64_t B = shape_.B, H = shape_.H, time = shape_.time(step), first = (time - chunk.time) * B;
  in_chunks(B, B * H, [&](int64_t, int64_t begin, int64_t end) {
    float buffers[2][kTile];
    in_tiles((end - begin) * H, kTile, [&](int64_t offset, int64_t n) {
      const int64_t at = begin * H + offset;
      const float* const dy = dy_.read(time * B * H + at, n, buffers[0]);
      const float* const y = y_.read(time * B * H + at, n, buffers[1]);
      float* const d = grad_.gates() + first * H + at;
      tanh_ ? cloned<tanh_grads>(n, dh_ + at, dy, y, d) : cloned<relu_grads>(n, dh_ + at, dy, y, d);
    });
  });
  grad_.state(first, {nullptr, 0}, dh_);
}

void Backward::run() {
  const int64_t states = shape_.B * shape_.H;
  if (shape_.T == 0) call_.write_zeros();
  load(Input(call_, "dhT"), states, dh_);
  grad_.begin();
  for (int64_t number = (shape_.T + steps_ - 1) / steps_ - 1; number >= 0; --number) {
    const Chunk chunk(shape_, number * steps_, steps_);
    for (int64_t step = chunk.end - 1; step >= chunk.begin; --step) run_step(step, chunk);
    grad_.take(chunk);
  }
  grad_.write();
  Output(call_, "dh0").write(0, states, dh_);
}

void rnn_layer(const Call& call) { Forward(call, call.raw().workspace).run(); }

size_t rnn_layer_workspace(const Call& call) { return Forward(call, nullptr).bytes(); }

void rnn_layer_grad(const Call& call) { Backward(call, call.raw().workspace).run(); }

size_t rnn_layer_grad_workspace(const Call& call) { return Backward(call, nullptr).bytes(); }

const CpuKernel kRnnLayer("rnn_layer", rnn_layer, rnn_layer_workspace);
const CpuKernel kRnnLayerGrad("rnn_layer_grad", rnn_layer_grad, rnn_layer_grad_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
