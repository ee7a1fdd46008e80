// The pointwise part of a GRU step. The backward pass computes the gates again.
#include "kernels.h"
#include "math.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

ECHO_INLINE void forward_tile(const float* __restrict x_r, const float* __restrict x_z, const float* __restrict x_n,
                              const float* __restrict s_r, const float* __restrict s_z, const float* __restrict s_n,
                              const float* __restrict h, float* __restrict h_next, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    const float z = sigmoid_of(x_z[j] + s_z[j]);
    const float n = tanh_of(x_n[j] + sigmoid_of(x_r[j] + s_r[j]) * s_n[j]);
    h_next[j] = echo_formulas::gru_next(z, n, h[j]);
  }
}

ECHO_INLINE void backward_tile(const float* __restrict dh_next, const float* __restrict x_r,
                               const float* __restrict x_z, const float* __restrict x_n, const float* __restrict s_r,
                               const float* __restrict s_z, const float* __restrict s_n, const float* __restrict h,
                               float* __restrict d_r, float* __restrict d_z, float* __restrict d_n,
                               float* __restrict d_sn, float* __restrict dh, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    const Sigmoid r = sigmoid_gate(x_r[j] + s_r[j]), z = sigmoid_gate(x_z[j] + s_z[j]);
    const Tanh n = tanh_gate(x_n[j] + r.value * s_n[j]);
    const echo_formulas::GruGrads grads = echo_formulas::gru_grad({r, z, n}, rounded(n), s_n[j], h[j], dh_next[j]);
    d_r[j] = grads.r, d_z[j] = grads.z, d_n[j] = grads.n, d_sn[j] = grads.sn, dh[j] = grads.h;
  }
}

struct Gates {
  const float* part[3];
};

Gates read_gates(const Input& input, const Places& place, int64_t b, int64_t H, int64_t at, int64_t n,
                 float (*buffers)[kTile]) {
  Gates gates;
  for (int gate = 0; gate < 3; ++gate) gates.part[gate] = input.read((3 * b + place[gate]) * H + at, n, buffers[gate]);
  return gates;
}

void gru_cell(const Call& call) {
  const int64_t B = call["B"], H = call["H"];
  const Places place = call.places(3);
  const Input x(call, "x"), s(call, "s"), h(call, "h");
  const Output h_next(call, "h'");
  in_chunks(B, B * H * 5, [&](int64_t, int64_t begin, int64_t end) {
    float x_buffers[3][kTile], s_buffers[3][kTile], h_buffer[kTile], result[kTile];
    for (int64_t b = begin; b < end; ++b) {
      in_tiles(H, kTile, [&](int64_t at, int64_t n) {
        const Gates xs = read_gates(x, place, b, H, at, n, x_buffers);
        const Gates ss = read_gates(s, place, b, H, at, n, s_buffers);
        float* const next = h_next.place(b * H + at, result);
        cloned<forward_tile>(xs.part[0], xs.part[1], xs.part[2], ss.part[0], ss.part[1], ss.part[2],
                             h.read(b * H + at, n, h_buffer), next, n);
        h_next.write(b * H + at, n, next);
      });
    }
  });
}

void gru_cell_grad(const Call& call) {
  const int64_t B = call["B"], H = call["H"];
  const Places place = call.places(3);
  const Input dh_next(call, "dh'"), x(call, "x"), s(call, "s"), h(call, "h");
  const Output dx(call, "dx"), ds(call, "ds"), dh(call, "dh");
  in_chunks(B, B * H * 5, [&](int64_t, int64_t begin, int64_t end) {
    float x_buffers[3][kTile], s_buffers[3][kTile], h_buffer[kTile], head[kTile];
    float d_r[kTile], d_z[kTile], d_n[kTile], d_sn[kTile], result[kTile];
    for (int64_t b = begin; b < end; ++b) {
      in_tiles(H, kTile, [&](int64_t at, int64_t n) {
        const Gates xs = read_gates(x, place, b, H, at, n, x_buffers);
        const Gates ss = read_gates(s, place, b, H, at, n, s_buffers);
        cloned<backward_tile>(dh_next.read(b * H + at, n, head), xs.part[0], xs.part[1], xs.part[2], ss.part[0],
                              ss.part[1], ss.part[2], h.read(b * H + at, n, h_buffer), d_r, d_z, d_n, d_sn, result, n);
        const float* const of_x[] = {d_r, d_z, d_n};
        const float* const of_s[] = {d_r, d_z, d_sn};
        for (int gate = 0; gate < 3; ++gate) {
          dx.write((3 * b + place[gate]) * H + at, n, of_x[gate]);
          ds.write((3 * b + place[gate]) * H + at, n, of_s[gate]);
        }
        dh.write(b * H + at, n, result);
      });
    }
  });
}

const CpuKernel kGruCell("gru_cell", gru_cell);
const CpuKernel kGruCellGrad("gru_cell_grad", gru_cell_grad);

}  // namespace
}  // namespace kernels
}  // namespace echo
