// The LSTM's cell on runs of n elements, for whole layers, where the gates are computed once and kept for a while.
#ifndef ECHO_KERNELS_CPU_LSTM_ROWS_H_
#define ECHO_KERNELS_CPU_LSTM_ROWS_H_
#include <cstdint>

namespace echo {
namespace kernels {

// The four gates, each n floats: before their non-linearities in `pre`, after them otherwise, as codes of
// math.h.
template <typename T>
struct Gates {
  T *i, *f, *g, *o;
};

// c becomes the next cell; h is written.
void cell_step(int64_t n, const Gates<const float>& pre, float* c, float* h);

// c becomes the next cell.
void cell_advance(int64_t n, const Gates<const float>& pre, float* c);

// The gates from `pre`, and the next cell from c.
void cell_gates(int64_t n, const Gates<const float>& pre, const float* c, const Gates<float>& gates, float* next);

// The gates become the gradients of `pre`, dc that of the cell before the step. c is that cell, `next` the one after
// the step; the gradient of h is dh + dy.
void cell_step_grad(int64_t n, const float* dh, const float* dy, const float* c, const float* next,
                    const Gates<float>& gates, float* dc);

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_LSTM_ROWS_H_
