// A GRU over time. The backward pass gets the sums in front of both sigmoids and the state's part of n; the input's part
// of n is a third of one product, and computed again.
#include "clones.h"
#include "math.h"
#include "recurrent_layer.h"

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

struct Gru {
  static constexpr int64_t kGates = 3, kInputGates = 2, kBiases = 4, kGradients = 4;  // the last bias is that of s_n
  static constexpr bool kSaves = true, kOneChunk = false, kCarries = true;
  // Columns n, r, z, s_n.
  static std::vector<GatePiece> input_pieces(int64_t H) { return {{0, 2 * H, H}, {H, 0, 2 * H}}; }
  static std::vector<GatePiece> state_pieces(int64_t H) { return {{H, 0, 3 * H}}; }

  class Forward;
  class Backward;
};

// The rows of wi that make x_n.
gemm::Operand weight_of_n(const Call& call, const LayerShape& shape) {
  const gemm::Operand first{call.in("wi"), call.half(), shape.H, shape.I, shape.I, 1};
  return first.moved(2 * shape.H * shape.I);
}

class Gru::Forward final : public ForwardCell {
 public:
  Forward(const Call& call, const LayerShape& shape, int64_t steps, Arena* arena)
      : ForwardCell(call, shape),
        x_n_(arena->floats(steps * shape.B * shape.H)),
        wi_n_(arena->floats(gemm::packed_floats(shape.H, shape.I))) {}

  void begin(float* bias) override;
  void project(const gemm::Operand& x, float* scratch) override {
    gemm::multiply(x, wi_n_, shape_.H, {bias_ + 2 * shape_.H, 0}, x_n_, shape_.H, scratch);
  }
  void start(float* sums) override {
    const int64_t H = shape_.H;
    for (int64_t row = 0; row < shape_.B; ++row) std::copy_n(bias_ + 3 * H, H, sums + row * 3 * H + 2 * H);
  }
  void step(const StepRows& rows, const float* sums, float* h) override {
    const int64_t H = shape_.H;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const float* const pre = sums + row * 3 * H;
      cloned<step_tile>(H, pre, pre + H, pre + 2 * H, x_n_ + (rows.first + row) * H, h + row * H);
    }
  }

 private:
  float* bias_ = nullptr;  // of r, z and x_n, then of s_n
  float *const x_n_, *const wi_n_;
};

void Gru::Forward::begin(float* bias) {
  const int64_t H = shape_.H;
  bias_ = bias;
  gemm::pack(weight_of_n(call_, shape_), wi_n_);
  float buffer[kTile];
  const Input bh(call_, "bh");
  in_tiles(H, kTile, [&](int64_t at, int64_t n) {
    std::memcpy(bias + 3 * H + at, bh.read(2 * H + at, n, buffer), n * sizeof(float));
  });
}

class Gru::Backward final : public BackwardCell {
 public:
  Backward(const Call& call, const LayerShape& shape, int64_t steps, Arena* arena);

  void begin() override;
  // The input's part of n, instead of its gradient.
  void prepare(const Chunk& chunk, float* gates) override {
    const int64_t B = shape_.B, I = shape_.I, H = shape_.H;
    const gemm::Operand x{call_.in("x"), call_.half(), (chunk.end - chunk.begin) * B, I, I, 1};
    gemm::multiply(x.moved(chunk.time * B * I), wi_n_, H, {bias_, 0}, gates, 4 * H, scratch_);
  }
  void step(const StepRows& rows, const Chunk&, float* gates, float* dh) override {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      in_tiles(shape_.H, kTile, [&](int64_t at, int64_t n) {
        step_of_row(rows, row, at, n, gates + row * 4 * shape_.H + at, dh + row * shape_.H + at);
      });
    }
  }

 private:
  void step_of_row(const StepRows& rows, int64_t row, int64_t at, int64_t n, float* gates, float* dh) const;

  const Input pre_, y_, h0_;
  float *const bias_, *const scratch_, *const wi_n_;
};

Gru::Backward::Backward(const Call& call, const LayerShape& shape, int64_t steps, Arena* arena)
    : BackwardCell(call, shape),
      pre_(call, "pre"),
      y_(call, "y"),
      h0_(call, "h0"),
      bias_(arena->floats(shape.H)),
      scratch_(arena->floats(gemm::scratch_floats(steps * shape.B, shape.I))),
      wi_n_(arena->floats(gemm::packed_floats(shape.H, shape.I))) {}

void Gru::Backward::begin() {
  const int64_t H = shape_.H;
  float buffer[kTile];
  const Input bi(call_, "bi");
  in_tiles(H, kTile,
           [&](int64_t at, int64_t n) { std::memcpy(bias_ + at, bi.read(2 * H + at, n, buffer), n * sizeof(float)); });
  gemm::pack(weight_of_n(call_, shape_), wi_n_);
}

void Gru::Backward::step_of_row(const StepRows& rows, int64_t row, int64_t at, int64_t n, float* gates,
                                float* dh) const {
  float buffers[5][kTile];
  const int64_t B = shape_.B, H = shape_.H, pre = (rows.time * B + row) * 3 * H + at;
  const int64_t here = row * H + at;
  const float* const h = rows.step == 0 ? h0_.read(here, n, buffers[0])
                                        : y_.read(shape_.time(rows.step - 1) * B * H + here, n, buffers[0]);
  cloned<grad_tile>(n, pre_.read(pre, n, buffers[1]), pre_.read(pre + H, n, buffers[2]),
                    pre_.read(pre + 2 * H, n, buffers[3]), h, dy_.read(rows.time * B * H + here, n, buffers[4]), gates,
                    gates + H, gates + 2 * H, gates + 3 * H, dh);
}

const RecurrentLayer<Gru> kGruLayer("gru_layer", "gru_layer_grad");

}  // namespace
}  // namespace kernels
}  // namespace echo
