// A vanilla RNN over time, of tanh or relu. The backward pass needs the states alone.
#include "clones.h"
#include "math.h"
#include "recurrent_layer.h"

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

struct Rnn {
  static constexpr int64_t kGates = 1, kInputGates = 1, kBiases = 1, kGradients = 1;
  static constexpr bool kSaves = false, kOneChunk = false, kCarries = false;
  static std::vector<GatePiece> input_pieces(int64_t H) { return {{0, 0, H}}; }
  static std::vector<GatePiece> state_pieces(int64_t H) { return {{0, 0, H}}; }

  class Forward;
  class Backward;
};

class Rnn::Forward final : public ForwardCell {
 public:
  Forward(const Call& call, const LayerShape& shape, int64_t, Arena*)
      : ForwardCell(call, shape), tanh_(is_tanh(call)) {}

  void step(const StepRows& rows, const float* sums, float* h) override {
    const int64_t at = rows.begin * shape_.H, n = (rows.end - rows.begin) * shape_.H;
    tanh_ ? cloned<tanhs>(n, sums + at, h + at) : cloned<relus>(n, sums + at, h + at);
  }

 private:
  const bool tanh_;
};

class Rnn::Backward final : public BackwardCell {
 public:
  Backward(const Call& call, const LayerShape& shape, int64_t, Arena*)
      : BackwardCell(call, shape), tanh_(is_tanh(call)), y_(call, "y") {}

  void step(const StepRows& rows, const Chunk&, float* gates, float* dh) override {
    const int64_t H = shape_.H, states = shape_.B * H;
    float buffers[2][kTile];
    in_tiles((rows.end - rows.begin) * H, kTile, [&](int64_t offset, int64_t n) {
      const int64_t at = rows.begin * H + offset;
      const float* const dy = dy_.read(rows.time * states + at, n, buffers[0]);
      const float* const y = y_.read(rows.time * states + at, n, buffers[1]);
      tanh_ ? cloned<tanh_grads>(n, dh + at, dy, y, gates + at) : cloned<relu_grads>(n, dh + at, dy, y, gates + at);
    });
  }

 private:
  const bool tanh_;
  const Input y_;
};

const RecurrentLayer<Rnn> kRnnLayer("rnn_layer", "rnn_layer_grad");

}  // namespace
}  // namespace kernels
}  // namespace echo
