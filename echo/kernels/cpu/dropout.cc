// Inverted dropout, which leaves a bit for each element instead of a number; and the bits of a Dropout alone.
#include "draws.h"
#include "kernels.h"

namespace echo {
namespace kernels {
namespace {

void dropout(const Call& call) {
  const float factor = factor_of(call);
  const Input x(call, "x");
  const Output y(call, "y");
  uint8_t* const bits = static_cast<uint8_t*>(call.out("bits"));
  Draws(call, call["n"]).in_tile_chunks([&](int64_t at, int64_t n, const uint8_t* flags) {
    float x_buffer[kTile], result[kTile];
    float* const place = y.place(at, result);
    multiply_by_flags(x.read(at, n, x_buffer), flags, factor, place, n);
    y.write(at, n, place);
    if (bits != nullptr) pack_bits(flags, bits + at / 8, n);
  });
}

void dropout_grad(const Call& call) { multiply_by_bits(call, factor_of(call)); }

void draw_mask(const Call& call) {
  const int64_t count = call["N"] * call["Tq"] * call["Tk"];
  float buffer;
  const float first = *Input(call, "first").read(0, 1, &buffer);
  uint8_t* const bits = static_cast<uint8_t*>(call.out("bits"));
  float* const factor = static_cast<float*>(call.out("factor"));
  if (factor != nullptr) *factor = first == 1.0f ? 1.0f : factor_of(call);
  if (bits == nullptr || count == 0) return;
  if (first == 1.0f) {  // nothing is trained: nothing is drawn
    std::fill_n(bits, count / 8, uint8_t{0xff});
    if (count % 8 != 0) bits[count / 8] = static_cast<uint8_t>((1u << (count % 8)) - 1);
    return;
  }
  Draws(call, count, 1).in_tile_chunks([&](int64_t at, int64_t n, uint8_t* flags) {
    if (at == 0) flags[0] = first != 0.0f;
    pack_bits(flags, bits + at / 8, n);
  });
}

void draw_mask_grad(const Call& call) { call.write_zeros(); }

const CpuKernel kDropout("dropout", dropout, no_workspace, Subnormals::kKept);
const CpuKernel kDropoutGrad("dropout_grad", dropout_grad, no_workspace, Subnormals::kKept);
const CpuKernel kDrawMask("draw_mask", draw_mask, no_workspace, Subnormals::kKept);
const CpuKernel kDrawMaskGrad("draw_mask_grad", draw_mask_grad, no_workspace, Subnormals::kKept);

}  // namespace
}  // namespace kernels
}  // namespace echo
