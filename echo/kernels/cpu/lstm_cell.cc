// The pointwise part of an LSTM step. The backward pass computes the gates again from their pre-activations.
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

ECHO_INLINE void forward_tile(const float* __restrict i, const float* __restrict f, const float* __restrict g,
                              const float* __restrict o, const float* __restrict c, float* __restrict h,
                              float* __restrict c_next, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    const float cell = sigmoid_of(f[j]) * c[j] + sigmoid_of(i[j]) * tanh_of(g[j]);
    c_next[j] = cell;
    h[j] = sigmoid_of(o[j]) * tanh_of(cell);
  }
}

ECHO_INLINE void backward_tile(const float* __restrict dh, const float* __restrict dc_next,
                               const float* __restrict pre_i, const float* __restrict pre_f,
                               const float* __restrict pre_g, const float* __restrict pre_o, const float* __restrict c,
                               float* __restrict d_i, float* __restrict d_f, float* __restrict d_g,
                               float* __restrict d_o, float* __restrict dc, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    const echo_formulas::LstmGates gate = {sigmoid_gate(pre_i[j]), sigmoid_gate(pre_f[j]), tanh_gate(pre_g[j]),
                                           sigmoid_gate(pre_o[j])};
    echo_formulas::LstmGrads grads;
    dc[j] = lstm_grad(gate, tanh_gate(gate.next_cell(c[j])), c[j], dh[j], dc_next[j], &grads);
    d_i[j] = grads.i, d_f[j] = grads.f, d_g[j] = grads.g, d_o[j] = grads.o;
  }
}

void lstm_cell(const Call& call) {
  const int64_t B = call["B"], H = call["H"];
  const Places place = call.places(4);
  const Input pre(call, "pre"), c(call, "c");
  const Output h(call, "h"), c_next(call, "c'");
  in_chunks(B, B * H * 5, [&](int64_t, int64_t begin, int64_t end) {
    float gates[4][kTile], cell[kTile], h_buffer[kTile], c_buffer[kTile];
    for (int64_t b = begin; b < end; ++b) {
      in_tiles(H, kTile, [&](int64_t at, int64_t n) {
        const float* in[4];
        for (int gate = 0; gate < 4; ++gate) in[gate] = pre.read((4 * b + place[gate]) * H + at, n, gates[gate]);
        float* const h_at = h.place(b * H + at, h_buffer);
        float* const c_at = c_next.place(b * H + at, c_buffer);
        cloned<forward_tile>(in[0], in[1], in[2], in[3], c.read(b * H + at, n, cell), h_at, c_at, n);
        h.write(b * H + at, n, h_at);
        c_next.write(b * H + at, n, c_at);
      });
    }
  });
}

void lstm_cell_grad(const Call& call) {
  const int64_t B = call["B"], H = call["H"];
  const Places place = call.places(4);
  const Input dh(call, "dh"), dc_next(call, "dc'"), pre(call, "pre"), c(call, "c");
  const Output dpre(call, "dpre"), dc(call, "dc");
  in_chunks(B, B * H * 5, [&](int64_t, int64_t begin, int64_t end) {
    float heads[2][kTile], gates[4][kTile], cell[kTile], d_gates[4][kTile], dc_buffer[kTile];
    for (int64_t b = begin; b < end; ++b) {
      in_tiles(H, kTile, [&](int64_t at, int64_t n) {
        const float* in[4];
        float* out[4];
        for (int gate = 0; gate < 4; ++gate) {
          in[gate] = pre.read((4 * b + place[gate]) * H + at, n, gates[gate]);
          out[gate] = dpre.place((4 * b + place[gate]) * H + at, d_gates[gate]);
        }
        float* const dc_at = dc.place(b * H + at, dc_buffer);
        cloned<backward_tile>(dh.read(b * H + at, n, heads[0]), dc_next.read(b * H + at, n, heads[1]), in[0], in[1],
                              in[2], in[3], c.read(b * H + at, n, cell), out[0], out[1], out[2], out[3], dc_at, n);
        for (int gate = 0; gate < 4; ++gate) dpre.write((4 * b + place[gate]) * H + at, n, out[gate]);
        dc.write(b * H + at, n, dc_at);
      });
    }
  });
}

const CpuKernel kLstmCell("lstm_cell", lstm_cell);
const CpuKernel kLstmCellGrad("lstm_cell_grad", lstm_cell_grad);

}  // namespace
}  // namespace kernels
}  // namespace echo
