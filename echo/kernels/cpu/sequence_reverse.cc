// The first steps of each sequence in reverse order: whole rows move, nothing is computed.
#include "kernels.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

void reverse(const Call& call, const char* from, const char* to) {
  const int64_t T = call["T"], B = call["B"], R = call["R"];
  const Input x(call, from);
  const Output y(call, to);
  const Lengths lengths(call, T);
  in_chunks(T, T * B * R, [&](int64_t, int64_t begin, int64_t end) {
    float buffer[kTile];
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t b = 0; b < B; ++b) {
        const int64_t length = lengths[b], source = t < length ? length - 1 - t : t;
        in_tiles(R, kTile, [&](int64_t at, int64_t n) {
          y.write((t * B + b) * R + at, n, x.read((source * B + b) * R + at, n, buffer));
        });
      }
    }
  });
}

void sequence_reverse(const Call& call) { reverse(call, "x", "y"); }

void sequence_reverse_grad(const Call& call) {
  reverse(call, "dy", "dx");
  call.write_zeros("dlengths");
}

const CpuKernel kSequenceReverse("sequence_reverse", sequence_reverse, no_workspace, Subnormals::kKept);
const CpuKernel kSequenceReverseGrad("sequence_reverse_grad", sequence_reverse_grad, no_workspace, Subnormals::kKept);

}  // namespace
}  // namespace kernels
}  // namespace echo
