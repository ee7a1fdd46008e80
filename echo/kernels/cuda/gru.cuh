// Steps of a GRU layer.
#ifndef ECHO_KERNELS_CUDA_GRU_CUH_
#define ECHO_KERNELS_CUDA_GRU_CUH_
#include "steps.cuh"

namespace echo_cuda {

struct GruUnit {
  enum { kGates = 3, kColumns = 4 };  // four, as vectors are read

  template <typename T>
  __device__ static void forward(const LayerSteps& a, Long step, Long t, Long b, Long j, const float* recurrent) {
    const Long at = b * a.hidden + j, all = a.batch * a.hidden, slot = a.direction > 0 ? step : a.steps - 1 - step;
    const Long three = 3 * b * a.hidden + j, pre = t * 3 * all + three;
    const float* inputs = a.gates + slot * 3 * all + three;
    const float r = inputs[0] + (recurrent[0] + get<T>(a.bh, j));
    const float z = inputs[a.hidden] + (recurrent[1] + get<T>(a.bh, a.hidden + j));
    const float s = recurrent[2] + get<T>(a.bh, 2 * a.hidden + j);
    put<T>(a.pre, pre, r);
    put<T>(a.pre, pre + a.hidden, z);
    put<T>(a.pre, pre + 2 * a.hidden, s);
    const float before = step == 0 && a.start ? get<T>(a.start, at) : a.cells[at];
    const float h = gru_next(sigmoid(z), tanhf(inputs[2 * a.hidden] + sigmoid(r) * s), before);
    a.cells[at] = h;
    assign(static_cast<T*>(a.y) + t * all + at, h);
    if (step == a.steps - 1) put<T>(a.h_last, at, h);
  }

  // dh: the part that comes through the gates of the following step.
  template <typename T>
  __device__ static void backward(const LayerBackSteps& a, Long step, Long t, Long b, Long j, float dh) {
    const Long all = a.batch * a.hidden, at = b * a.hidden + j, before = t + a.direction;
    if (step || a.dgates_after) dh += a.past[at];
    if (step == a.steps) {
      put<T>(a.dh0, at, dh);
      return;
    }
    if (a.dy) dh += get<T>(a.dy, t * all + at);
    const Long three = 3 * b * a.hidden + j, pre = t * 3 * all + three;
    const Long slot = a.direction > 0 ? step : a.steps - 1 - step;
    const float s = get<T>(a.pre, pre + 2 * a.hidden);
    float* inputs = a.dinputs + slot * all + at;
    const GruGates gate = gru_gates(get<T>(a.pre, pre), get<T>(a.pre, pre + a.hidden), *inputs, 0.f, 0.f, s);
    const float h = before < 0 || before >= a.all_steps ? get<T>(a.start, at) : get<T>(a.y, before * all + at);
    const GruGrads d = gru_grad(gate, gate.n.value, s, h, dh);
    float* dgates = a.dgates + slot * 3 * all + three;
    dgates[0] = d.r, dgates[a.hidden] = d.z, dgates[2 * a.hidden] = d.sn;
    *inputs = d.n;
    a.past[at] = d.h;
  }
};

template <typename T>
__device__ void gru_steps(const LayerSteps& a) {
  forward_steps<T, GruUnit, kStepUnits, kStepRows>(a);
}

template <typename T>
__device__ void gru_small_steps(const LayerSteps& a) {
  forward_steps<T, GruUnit, kSmallUnits, kSmallRows>(a);
}

template <typename T>
__device__ void gru_back_steps(const LayerBackSteps& a) {
  backward_steps<T, GruUnit>(a);
}

}  // namespace echo_cuda

#if ECHO_IN(gru)
ECHO_BOTH(1, gru_steps, LayerSteps)
ECHO_BOTH(1, gru_small_steps, LayerSteps)
ECHO_BOTH(1, gru_back_steps, LayerBackSteps)
#endif

#endif  // ECHO_KERNELS_CUDA_GRU_CUH_
