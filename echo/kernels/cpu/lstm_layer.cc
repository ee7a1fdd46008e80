// An LSTM over time. The forward pass saves the sums of its gates; the backward pass recomputes the cells, of which it
// holds one for each chunk and those of one chunk.
#include "clones.h"
#include "math.h"
#include "recurrent_layer.h"

namespace echo {
namespace kernels {
namespace {

// The loops stand in functions of pointers alone, which the compiler knows not to overlap.
ECHO_INLINE void step_tile(int64_t n, const float* __restrict i, const float* __restrict f, const float* __restrict g,
                           const float* __restrict o, float* __restrict c, float* __restrict h) {
  for (int64_t k = 0; k < n; ++k) {
    const float next = sigmoid_of(f[k]) * c[k] + sigmoid_of(i[k]) * tanh_of(g[k]);
    c[k] = next;
    h[k] = sigmoid_of(o[k]) * tanh_of(next);
  }
}

ECHO_INLINE void advance_tile(int64_t n, const float* __restrict i, const float* __restrict f,
                              const float* __restrict g, float* __restrict c) {
  for (int64_t k = 0; k < n; ++k) c[k] = sigmoid_of(f[k]) * c[k] + sigmoid_of(i[k]) * tanh_of(g[k]);
}

ECHO_INLINE void sigmoids(int64_t n, const float* __restrict x, float* __restrict y) {
  for (int64_t k = 0; k < n; ++k) y[k] = sigmoid_code(x[k]);
}

ECHO_INLINE void tanhs(int64_t n, const float* __restrict x, float* __restrict y) {
  for (int64_t k = 0; k < n; ++k) y[k] = tanh_code(x[k]);
}

ECHO_INLINE void next_cells(int64_t n, const float* __restrict i, const float* __restrict f, const float* __restrict g,
                            const float* __restrict c, float* __restrict next) {
  for (int64_t k = 0; k < n; ++k) {
    next[k] = sigmoid_decoded(f[k]).value * c[k] + sigmoid_decoded(i[k]).value * tanh_decoded(g[k]).value;
  }
}

ECHO_INLINE void grad_tile(int64_t n, const float* __restrict dh, const float* __restrict dy, const float* __restrict c,
                           const float* __restrict next, float* __restrict gate_i, float* __restrict gate_f,
                           float* __restrict gate_g, float* __restrict gate_o, float* __restrict dc) {
  for (int64_t k = 0; k < n; ++k) {
    const echo_formulas::LstmGates gate = {sigmoid_decoded(gate_i[k]), sigmoid_decoded(gate_f[k]),
                                           tanh_decoded(gate_g[k]), sigmoid_decoded(gate_o[k])};
    echo_formulas::LstmGrads grads;
    dc[k] = lstm_grad(gate, tanh_gate(next[k]), c[k], dh[k] + dy[k], dc[k], &grads);
    gate_i[k] = grads.i, gate_f[k] = grads.f, gate_g[k] = grads.g, gate_o[k] = grads.o;
  }
}

// The four gates, each n floats: before their non-linearities in `pre`, after them otherwise, as codes of math.h.
template <typename T>
struct Gates {
  T *i, *f, *g, *o;
};

struct Lstm {
  static constexpr int64_t kGates = 4, kInputGates = 4, kBiases = 4, kGradients = 4;
  static constexpr bool kSaves = true, kOneChunk = true, kCarries = false;
  static std::vector<GatePiece> input_pieces(int64_t H) { return {{0, 0, 4 * H}}; }
  static std::vector<GatePiece> state_pieces(int64_t H) { return {{0, 0, 4 * H}}; }

  class Forward;
  class Backward;
};

class Lstm::Forward final : public ForwardCell {
 public:
  Forward(const Call& call, const LayerShape& shape, int64_t, Arena* arena)
      : ForwardCell(call, shape), place_(call.places(4)), c_(arena->floats(shape.B * shape.H)) {}

  void begin(float*) override { load(Input(call_, "c0"), shape_.B * shape_.H, c_); }
  void step(const StepRows& rows, const float* sums, float* h) override {
    const int64_t H = shape_.H;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      in_tiles(H, kTile, [&](int64_t at, int64_t n) {
        const float* const pre = sums + row * 4 * H + at;
        cloned<step_tile>(n, pre + place_[0] * H, pre + place_[1] * H, pre + place_[2] * H, pre + place_[3] * H,
                          c_ + row * H + at, h + row * H + at);
      });
    }
  }
  void finish() override { Output(call_, "cT").write(0, shape_.B * shape_.H, c_); }

 private:
  const Places place_;
  float* const c_;
};

class Lstm::Backward final : public BackwardCell {
 public:
  Backward(const Call& call, const LayerShape& shape, int64_t steps, Arena* arena);

  void begin() override;
  void prepare(const Chunk& chunk, float* gates) override;
  void step(const StepRows& rows, const Chunk& chunk, float* gates, float* dh) override;
  void finish() override { Output(call_, "dc0").write(0, shape_.B * shape_.H, dc_); }

 private:
  Gates<float> gates_at(float* row, int64_t at) const;
  Gates<const float> read_pre(int64_t row, int64_t at, int64_t n, float* buffer) const;

  const Places place_;
  const int64_t steps_, chunks_;  // steps of a chunk, chunks
  const Input pre_;
  float* const cells_;  // of a chunk: before its first step, then after each
  float* const saved_;  // cells before each chunk
  float* const dc_;
};

Lstm::Backward::Backward(const Call& call, const LayerShape& shape, int64_t steps, Arena* arena)
    : BackwardCell(call, shape),
      place_(call.places(4)),
      steps_(steps),
      chunks_((shape.T + steps - 1) / steps),
      pre_(call, "pre"),
      cells_(arena->floats((steps + 1) * shape.B * shape.H)),
      saved_(arena->floats(chunks_ * shape.B * shape.H)),
      dc_(arena->floats(shape.B * shape.H)) {}

Gates<float> Lstm::Backward::gates_at(float* row, int64_t at) const {
  const int64_t H = shape_.H;
  float* const begin = row + at;
  return {begin + place_[0] * H, begin + place_[1] * H, begin + place_[2] * H, begin + place_[3] * H};
}

// n elements of each gate of a row of `pre`; buffer: 4 * kTile floats.
Gates<const float> Lstm::Backward::read_pre(int64_t row, int64_t at, int64_t n, float* buffer) const {
  const int64_t H = shape_.H, begin = row * 4 * H + at;
  const auto gate = [&](int64_t k) { return pre_.read(begin + place_[k] * H, n, buffer + k * kTile); };
  return {gate(0), gate(1), gate(2), gate(3)};
}

// The cells before each chunk.
void Lstm::Backward::begin() {
  const int64_t B = shape_.B, H = shape_.H;
  load(Input(call_, "dcT"), B * H, dc_);
  load(Input(call_, "c0"), chunks_ > 0 ? B * H : 0, saved_);
  in_chunks(B, shape_.T * B * H, [&](int64_t, int64_t begin, int64_t end) {
    float buffer[4 * kTile];
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t chunk = 1; chunk < chunks_; ++chunk) {
        float* const cell = saved_ + (chunk * B + row) * H;
        std::memcpy(cell, cell - B * H, H * sizeof(float));
        for (int64_t step = (chunk - 1) * steps_; step < chunk * steps_; ++step) {
          const int64_t place = shape_.time(step) * B + row;
          in_tiles(H, kTile, [&](int64_t at, int64_t n) {
            const Gates<const float> pre = read_pre(place, at, n, buffer);
            cloned<advance_tile>(n, pre.i, pre.f, pre.g, cell + at);
          });
        }
      }
    }
  });
}

// The gates and cells of a chunk.
void Lstm::Backward::prepare(const Chunk& chunk, float* gates) {
  const int64_t B = shape_.B, H = shape_.H, number = chunk.begin / steps_;
  in_chunks(B, steps_ * B * H, [&](int64_t, int64_t begin, int64_t end) {
    float buffer[4 * kTile];
    for (int64_t row = begin; row < end; ++row) {
      float* cell = cells_ + row * H;
      std::memcpy(cell, saved_ + (number * B + row) * H, H * sizeof(float));
      for (int64_t step = chunk.begin; step < chunk.end; ++step, cell += B * H) {
        const int64_t time = shape_.time(step), place = (time - chunk.time) * B + row;
        in_tiles(H, kTile, [&](int64_t at, int64_t n) {
          const Gates<const float> pre = read_pre(time * B + row, at, n, buffer);
          const Gates<float> gate = gates_at(gates + place * 4 * H, at);
          cloned<sigmoids>(n, pre.i, gate.i);
          cloned<sigmoids>(n, pre.f, gate.f);
          cloned<tanhs>(n, pre.g, gate.g);
          cloned<sigmoids>(n, pre.o, gate.o);
          cloned<next_cells>(n, gate.i, gate.f, gate.g, cell + at, cell + B * H + at);
        });
      }
    }
  });
}

void Lstm::Backward::step(const StepRows& rows, const Chunk& chunk, float* gates, float* dh) {
  const int64_t B = shape_.B, H = shape_.H;
  const float* const cells = cells_ + (rows.step - chunk.begin) * B * H;
  float buffer[kTile];
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    in_tiles(H, kTile, [&](int64_t at, int64_t n) {
      const int64_t here = row * H + at;
      const float* const dy = dy_.read(rows.time * B * H + here, n, buffer);
      const Gates<float> gate = gates_at(gates + row * 4 * H, at);
      cloned<grad_tile>(n, dh + here, dy, cells + here, cells + B * H + here, gate.i, gate.f, gate.g, gate.o,
                        dc_ + here);
    });
  }
}

const RecurrentLayer<Lstm> kLstmLayer("lstm_layer", "lstm_layer_grad");

}  // namespace
}  // namespace kernels
}  // namespace echo
