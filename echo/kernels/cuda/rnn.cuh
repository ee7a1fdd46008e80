// Steps of a vanilla RNN layer.
#ifndef ECHO_KERNELS_CUDA_RNN_CUH_
#define ECHO_KERNELS_CUDA_RNN_CUH_
#include "steps.cuh"

namespace echo_cuda {

struct RnnUnit {
  enum { kGates = 1, kColumns = 1 };

  template <typename T>
  __device__ static void forward(const LayerSteps& a, Long step, Long t, Long b, Long j, const float* recurrent) {
    const Long at = b * a.hidden + j, all = a.batch * a.hidden, slot = a.direction > 0 ? step : a.steps - 1 - step;
    const float sum = a.gates[slot * all + at] + recurrent[0];
    const float h = a.relu ? (sum <= 0 ? 0.f : sum) : tanhf(sum);  // a NaN stays one
    assign(static_cast<T*>(a.y) + t * all + at, h);
    if (step == a.steps - 1) put<T>(a.h_last, at, h);
  }

  template <typename T>
  __device__ static void backward(const LayerBackSteps& a, Long step, Long t, Long b, Long j, float dh) {
    const Long all = a.batch * a.hidden, at = b * a.hidden + j;
    if (step == a.steps) {
      put<T>(a.dh0, at, dh);
      return;
    }
    if (a.dy) dh += get<T>(a.dy, t * all + at);
    const float y = get<T>(a.y, t * all + at), slope = a.relu ? (y > 0 ? 1.f : 0.f) : 1.f - y * y;
    a.dgates[(a.direction > 0 ? step : a.steps - 1 - step) * all + at] = dh * slope;
  }
};

template <typename T>
__device__ void rnn_steps(const LayerSteps& a) {
  forward_steps<T, RnnUnit, 4 * kStepUnits, kStepRows>(a);
}

template <typename T>
__device__ void rnn_back_steps(const LayerBackSteps& a) {
  backward_steps<T, RnnUnit>(a);
}

}  // namespace echo_cuda

#if ECHO_IN(rnn)
ECHO_BOTH(1, rnn_steps, LayerSteps)
ECHO_BOTH(1, rnn_back_steps, LayerBackSteps)
#endif

#endif  // ECHO_KERNELS_CUDA_RNN_CUH_
