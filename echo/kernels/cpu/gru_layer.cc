// A GRU over time. The backward pass gets the sums in front of both sigmoids and the state's part of n; the input's part
// of n is a third of one product, and computed again.
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

// x_n: the input's part of n; s_n: the state's. h becomes the next state.
ECHO_INLINE void step_tile(int64_t count, const float* __restrict r, const float* __restrict z,
                           const float* __restrict s_n, const float* __restrict x_n, float* __restrict h) {
  for (int64_t j = 0; j < count; ++j) {
    const float n = tanh_of(x_n[j] + sigmoid_of(r[j]) * s_n[j]);
    h[j] = echo_formulas::gru_next(sigmoid_of(z[j]), n, h[j]);
  }
}

// The gradients of x_n (in its place), r, z and s_n; dh, the gradient of the state after the step without dy, becomes
// what goes past the gates to the state before it.
ECHO_INLINE void grad_tile(int64_t count, const float* __restrict r, const float* __restrict z,
                           const float* __restrict s_n, const float* __restrict h, const float* __restrict dy,
                           float* __restrict d_n, float* __restrict d_r, float* __restrict d_z, float* __restrict d_sn,
                           float* __restrict dh) {
  for (int64_t j = 0; j < count; ++j) {
    const Sigmoid reset = sigmoid_gate(r[j]), update = sigmoid_gate(z[j]);
    const float s = s_n[j];
    const Tanh n = tanh_gate(d_n[j] + reset.value * s);
    const echo_formulas::GruGrads grads = echo_formulas::gru_grad({reset, update, n}, rounded(n), s, h[j],
                                                                  dh[j] + dy[j]);
    d_n[j] = grads.n, d_r[j] = grads.r, d_z[j] = grads.z, d_sn[j] = grads.sn, dh[j] = grads.h;
  }
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
  void run_row(int64_t row, int64_t time, float* pre, const float* x_n);
  float* pre_of(const Chunk& chunk);

  const Call& call_;
  const LayerShape shape_;
  const int64_t steps_;
  const Output y_, pre_;
  Arena arena_;
  const bool direct_;  // `pre` is computed where it is wanted; otherwise in a buffer
  float* bias_;  // of r, z and x_n, then of s_n
  float *h_, *x_n_, *scratch_, *wi_gates_, *wi_n_, *wh_, *buffer_;
};

Forward::Forward(const Call& call, void* memory)
    : call_(call),
      shape_(call),
      steps_(chunk_steps(shape_)),
      y_(call, "y"),
      pre_(call, "pre"),
      arena_(memory),
      direct_(!call.half() && !call.skips("pre")) {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H;
  bias_ = arena_.floats(4 * H);
  h_ = arena_.floats(B * H);
  x_n_ = arena_.floats(steps_ * B * H);
  scratch_ = arena_.floats(std::max(gemm::scratch_floats(steps_ * B, I), gemm::scratch_floats(B, H)));
  wi_gates_ = arena_.floats(gemm::packed_floats(2 * H, I));
  wi_n_ = arena_.floats(gemm::packed_floats(H, I));
  wh_ = arena_.floats(gemm::packed_floats(3 * H, H));
  buffer_ = direct_ ? nullptr : arena_.floats(steps_ * B * 3 * H);
}

void Forward::begin() {
  const int64_t I = shape_.I, H = shape_.H;
  const bool half = call_.half();
  const gemm::Operand wi{call_.in("wi"), half, 2 * H, I, I, 1};
  const gemm::Operand wi_n{call_.in("wi"), half, H, I, I, 1};
  gemm::pack(wi, wi_gates_);
  gemm::pack(wi_n.moved(2 * H * I), wi_n_);
  gemm::pack({call_.in("wh"), half, 3 * H, H, H, 1}, wh_);
  load(Input(call_, "bi"), 3 * H, bias_);
  float buffer[kTile];
  const Input bh(call_, "bh");
  in_tiles(2 * H, kTile, [&](int64_t at, int64_t n) { add_to(bias_ + at, bh.read(at, n, buffer), n); });
  in_tiles(H, kTile, [&](int64_t at, int64_t n) {
    std::memcpy(bias_ + 3 * H + at, bh.read(2 * H + at, n, buffer), n * sizeof(float));
  });
  load(Input(call_, "h0"), shape_.B * H, h_);
}

float* Forward::pre_of(const Chunk& chunk) {
  if (!direct_) return buffer_;
  return static_cast<float*>(call_.out("pre")) + chunk.time * shape_.B * 3 * shape_.H;
}

// The input's part for all steps of a chunk.
void Forward::project(const Chunk& chunk) {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H;
  const gemm::Operand all{call_.in("x"), call_.half(), (chunk.end - chunk.begin) * B, I, I, 1};
  const gemm::Operand x = all.moved(chunk.time * B * I);
  gemm::multiply(x, wi_gates_, 2 * H, {bias_, 0}, pre_of(chunk), 3 * H, scratch_);
  gemm::multiply(x, wi_n_, H, {bias_ + 2 * H, 0}, x_n_, H, scratch_);
}

void Forward::run_step(int64_t step, const Chunk& chunk) {
  const int64_t B = shape_.B, H = shape_.H, time = shape_.time(step), first = (time - chunk.time) * B;
  float* const pre = pre_of(chunk) + first * 3 * H;
  for (int64_t row = 0; row < B; ++row) std::copy_n(bias_ + 3 * H, H, pre + row * 3 * H + 2 * H);
  gemm::multiply({h_, false, B, H, H, 1}, wh_, 3 * H, {pre, 3 * H}, pre, 3 * H, scratch_);
  in_chunks(B, B * H, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) run_row(row, time, pre + row * 3 * H, x_n_ + (first + row) * H);
  });
}

void Forward::run_row(int64_t row, int64_t time, float* pre, const float* x_n) {
  const int64_t H = shape_.H, place = time * shape_.B + row;
  pre_.write(place * 3 * H, 3 * H, pre);
  float* const h = h_ + row * H;
  cloned<step_tile>(H, pre, pre + H, pre + 2 * H, x_n, h);
  y_.write(place * H, H, h);
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
  void begin();
  void project(const Chunk& chunk);
  void run_step(int64_t step, const Chunk& chunk);
  void run_tile(int64_t row, int64_t step, int64_t at, int64_t n, float* gates);

  const Call& call_;
  const LayerShape shape_;
  const int64_t steps_;
  const Input pre_, dy_, y_, h0_;
  Arena arena_;
  LayerGrad grad_;  // columns n, r, z, s_n
  float *bias_, *dh_, *scratch_, *wi_n_;
};

Backward::Backward(const Call& call, void* memory)
    : call_(call),
      shape_(call),
      steps_(chunk_steps(shape_)),
      pre_(call, "pre"),
      dy_(call, "dy"),
      y_(call, "y"),
      h0_(call, "h0"),
      arena_(memory),
      grad_(call, shape_, steps_, 4 * shape_.H, {{0, 2 * shape_.H, shape_.H}, {shape_.H, 0, 2 * shape_.H}},
            {{shape_.H, 0, 3 * shape_.H}}, &arena_) {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H;
  bias_ = arena_.floats(H);
  dh_ = arena_.floats(B * H);
  scratch_ = arena_.floats(gemm::scratch_floats(steps_ * B, I));
  wi_n_ = arena_.floats(gemm::packed_floats(H, I));
}

void Backward::begin() {
  const int64_t I = shape_.I, H = shape_.H;
  float buffer[kTile];
  const Input bi(call_, "bi");
  in_tiles(H, kTile,
           [&](int64_t at, int64_t n) { std::memcpy(bias_ + at, bi.read(2 * H + at, n, buffer), n * sizeof(float)); });
  const gemm::Operand wi_n{call_.in("wi"), call_.half(), H, I, I, 1};
  gemm::pack(wi_n.moved(2 * H * I), wi_n_);
  load(Input(call_, "dhT"), shape_.B * H, dh_);
  grad_.begin();
}

// The input's part of n, instead of its gradient.
void Backward::project(const Chunk& chunk) {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H;
  const gemm::Operand x{call_.in("x"), call_.half(), (chunk.end - chunk.begin) * B, I, I, 1};
  gemm::multiply(x.moved(chunk.time * B * I), wi_n_, H, {bias_, 0}, grad_.gates(), 4 * H, scratch_);
}

void Backward::run_step(int64_t step, const Chunk& chunk) {
  const int64_t B = shape_.B, H = shape_.H, first = (shape_.time(step) - chunk.time) * B;
  in_chunks(B, B * H, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const gates = grad_.gates() + (first + row) * 4 * H;
      in_tiles(H, kTile, [&](int64_t at, int64_t n) { run_tile(row, step, at, n, gates + at); });
    }
  });
  grad_.state(first, {dh_, H}, dh_);
}

void Backward::run_tile(int64_t row, int64_t step, int64_t at, int64_t n, float* gates) {
  float buffers[5][kTile];
  const int64_t B = shape_.B, H = shape_.H, time = shape_.time(step), pre = (time * B + row) * 3 * H + at;
  const int64_t here = row * H + at;
  const float* const h = step == 0 ? h0_.read(here, n, buffers[0])
                                   : y_.read(shape_.time(step - 1) * B * H + here, n, buffers[0]);
  cloned<grad_tile>(n, pre_.read(pre, n, buffers[1]), pre_.read(pre + H, n, buffers[2]),
                    pre_.read(pre + 2 * H, n, buffers[3]), h, dy_.read(time * B * H + here, n, buffers[4]), gates,
                    gates + H, gates + 2 * H, gates + 3 * H, dh_ + here);
}

void Backward::run() {
  const int64_t states = shape_.B * shape_.H;
  if (shape_.T == 0) call_.write_zeros();
  begin();
  for (int64_t number = (shape_.T + steps_ - 1) / steps_ - 1; number >= 0; --number) {
    const Chunk chunk(shape_, number * steps_, steps_);
    project(chunk);
    for (int64_t step = chunk.end - 1; step >= chunk.begin; --step) run_step(step, chunk);
    grad_.take(chunk);
  }
  grad_.write();
  Output(call_, "dh0").write(0, states, dh_);
}

void gru_layer(const Call& call) { Forward(call, call.raw().workspace).run(); }

size_t gru_layer_workspace(const Call& call) { return Forward(call, nullptr).bytes(); }

void gru_layer_grad(const Call& call) { Backward(call, call.raw().workspace).run(); }

size_t gru_layer_grad_workspace(const Call& call) { return Backward(call, nullptr).bytes(); }

const CpuKernel kGruLayer("gru_layer", gru_layer, gru_layer_workspace);
const CpuKernel kGruLayerGrad("gru_layer_grad", gru_layer_grad, gru_layer_grad_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
