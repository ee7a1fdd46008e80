// What the plans of recurrent layers share: the products that need no order of time are done for as many steps at once as
// a bounded buffer holds; the steps run with a grid barrier if all blocks and their weights fit on the device, else
// as one kernel a step.
#ifndef ECHO_KERNELS_CUDA_PLANS_LAYERS_H_
#define ECHO_KERNELS_CUDA_PLANS_LAYERS_H_
#include <initializer_list>

#include "plans.h"

namespace echo_cuda {

struct Layer {
  Long steps, batch, inputs, hidden;
  Long parts;  // gates of a unit
  bool half, reverse;
  Long at_once;  // steps whose gates fit the buffer

  Layer(const Call& call, Long parts);

  Long state() const { return batch * hidden; }
  Long size() const { return half ? 2 : 4; }
  Long width() const { return parts * hidden; }
  Long gates() const { return batch * width(); }
  const void* at(const void* array, Long elements) const { return static_cast<const char*>(array) + elements * size(); }
  void* at(void* array, Long elements) const { return static_cast<char*>(array) + elements * size(); }
  // The same of an output that is wanted.
  Output at(Output to, Long elements) const { return {to.data ? at(to.data, elements) : nullptr, to.add}; }
};

// A kernel of steps: batch rows and units of a block, columns of its product, floats of its StepRoom, terms.
struct StepKernel {
  const char* name;
  Long rows, units, columns, floats, depth;

  Grid grid(const Layer& layer, bool resident) const;
};

template <int rows, int units, int columns>
StepKernel step_kernel(const char* name, Long depth) {
  return {name, rows, units, columns, StepRoom<rows, columns>::kFloats, depth};
}

#ifdef ECHO_CUDA_STEP_BY_STEP  // to measure what the grid barrier is worth
const bool kAtOnce = false;
#else
const bool kAtOnce = true;
#endif

// Many steps at once by the first of the kernels that fits on the device, else one by one by the first: `a` has what
// all steps need, one_step(s) what step s needs alone.
template <typename Steps, typename OneStep>
void run_steps(Queue& queue, const Layer& layer, std::initializer_list<StepKernel> kernels, unsigned* barrier, Steps a,
               Long count, const OneStep& one_step) {
  for (const StepKernel& kernel : kernels) {
    const Grid grid = kernel.grid(layer, true);
    if (!kAtOnce || count < 2 || !queue.fits_at_once(kernel.name, layer.half, grid)) continue;
    a.barrier = barrier;
    queue.set_zero(barrier, sizeof *barrier);
    if (queue.launch_at_once(kernel.name, layer.half, grid, a)) return;
  }
  const StepKernel& kernel = *kernels.begin();
  for (Long s = 0; s < count; ++s) queue.launch(kernel.name, layer.half, kernel.grid(layer, false), one_step(s));
}

// Steps of the forward pass after `done`: `a` has what the layer alone knows, and all outputs.
void run_forward(const Call& call, Queue& queue, const Layer& layer, std::initializer_list<StepKernel> kernels,
                 unsigned* barrier, LayerSteps a, Long done, Long count);
// The same of the gradient, where `after` is room for the gates' gradients of a step.
void run_backward(const Call& call, Queue& queue, const Layer& layer, const StepKernel& kernel, unsigned* barrier,
                  LayerBackSteps a, float* after, Long done, Long count);
// The first of `count` steps in time, after `done` steps of the forward pass, or of the gradient.
Long lowest_forward(const Layer& layer, Long done, Long count);
Long lowest_backward(const Layer& layer, Long done, Long count);

// The inputs of `count` steps from time `lowest` on times `parts` gates of wi from `part` on, with bi; and with bh.
void project(const Call& call, Queue& queue, const Layer& layer, Long part, Long parts, bool with_bh, Long lowest,
             Long count, float* to, void* blas_room);
// Their part of dx and dwi, from the gates' gradients, rows of which are `stride` floats apart. add_dx: dx has another
// part already; add: so have weights those of other steps.
void input_gradients(const Call& call, Queue& queue, const Layer& layer, Long part, Long parts, const float* dgates,
                     Long stride, Long lowest, Long count, bool add_dx, bool add, void* partials);
// dwh: the gates' gradients of each step by the state before it.
void recurrent_weights(const Call& call, Queue& queue, const Layer& layer, const float* dgates, Long lowest, Long count,
                       bool add, void* partials);

// Columns [first, first + count) of sums over rows.
struct Sums {
  Output to;
  Long first, count;
};
// The sums of `rows` rows of as many floats as `columns`, for some outputs; `add`: to those of other steps.
void sum_gates(Queue& queue, const Layer& layer, const float* dgates, Long rows, Long columns,
               std::initializer_list<Sums> sums, bool add, float* partials);
// Floats that `partials` needs for the above.
Long partial_floats(const Layer& layer);

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_PLANS_LAYERS_H_
