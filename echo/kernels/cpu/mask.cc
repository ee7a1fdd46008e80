// A mask of numbers, 0 or one other value, as a bit for each element and that value; and its product with an array.
#include "bits.h"
#include "clones.h"
#include "kernels.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

ECHO_INLINE void flags_of(const float* __restrict mask, uint8_t* __restrict flags, int64_t n) {
  for (int64_t j = 0; j < n; ++j) flags[j] = mask[j] != 0.0f;
}

// The first element that is not 0; 0 where there is none.
float first_of(const Input& mask, int64_t count) {
  float buffer[kTile], found = 0.0f;
  for (int64_t at = 0; at < count && found == 0.0f; at += kTile) {
    const int64_t n = std::min(kTile, count - at);
    const float* const values = mask.read(at, n, buffer);
    const float* const first = std::find_if(values, values + n, [](float value) { return value != 0.0f; });
    if (first != values + n) found = *first;
  }
  return found;
}

float factor_of(const Call& call) {
  const float* const scale = static_cast<const float*>(call.in("scale"));
  return scale == nullptr ? 0.0f : *scale;
}

void pack_mask(const Call& call) {
  const int64_t count = call["n"];
  const Input mask(call, "mask");
  uint8_t* const bits = static_cast<uint8_t*>(call.out("bits"));
  float* const scale = static_cast<float*>(call.out("scale"));
  if (scale != nullptr) *scale = first_of(mask, count);
  if (bits == nullptr) return;
  in_tile_chunks(count, [&](int64_t at, int64_t n) {
    float buffer[kTile];
    uint8_t flags[kTile];
    cloned<flags_of>(mask.read(at, n, buffer), flags, n);
    pack_bits(flags, bits + at / 8, n);
  });
}

void pack_mask_grad(const Call& call) { call.write_zeros(); }

void apply_mask(const Call& call) { multiply_by_bits(call, factor_of(call), "x", "y"); }

void apply_mask_grad(const Call& call) {
  multiply_by_bits(call, factor_of(call));
  call.write_zeros("dbits");
  call.write_zeros("dscale");
}

const CpuKernel kPackMask("pack_mask", pack_mask, no_workspace, Subnormals::kKept);
const CpuKernel kPackMaskGrad("pack_mask_grad", pack_mask_grad, no_workspace, Subnormals::kKept);
const CpuKernel kApplyMask("apply_mask", apply_mask, no_workspace, Subnormals::kKept);
const CpuKernel kApplyMaskGrad("apply_mask_grad", apply_mask_grad, no_workspace, Subnormals::kKept);

}  // namespace
}  // namespace kernels
}  // namespace echo
