// Steps of an LSTM layer.
#ifndef ECHO_KERNELS_CUDA_LSTM_CUH_
#define ECHO_KERNELS_CUDA_LSTM_CUH_
#include "steps.cuh"

namespace echo_cuda {

struct LstmUnit {
  enum { kGates = 4, kColumns = 4 };

  // The cell of batch row b and hidden unit j, at the step-th step of the call, which is time t.
  template <typename T>
  __device__ static void forward(const LayerSteps& a, Long step, Long t, Long b, Long j, const float* recurrent) {
    const Long at = b * a.hidden + j, slot = a.direction > 0 ? step : a.steps - 1 - step;
    float pre[4];
    for (int gate = 0; gate < 4; ++gate) {
      const Long four = (4 * b + place_of_gate(a.places, gate)) * a.hidden + j;
      pre[gate] = a.gates[slot * 4 * a.batch * a.hidden + four] + recurrent[gate];
      put<T>(a.pre, t * 4 * a.batch * a.hidden + four, pre[gate]);
    }
    const Gates gate = gates_of(pre[0], pre[1], pre[2], pre[3]);
    const float before = step == 0 && a.start ? get<T>(a.start, at) : a.cells[at];
    const float c = gate.f * before + gate.i * gate.g, h = gate.o * tanhf(c);
    a.cells[at] = c;
    assign(static_cast<T*>(a.y) + t * a.batch * a.hidden + at, h);
    if (step == a.steps - 1) {
      put<T>(a.h_last, at, h);
      put<T>(a.c_last, at, c);
    }
  }

  // The gradient of the cell of batch row b and hidden unit j; dh without dy.
  template <typename T>
  __device__ static void backward(const LayerBackSteps& a, Long step, Long t, Long b, Long j, float dh) {
    const Long all = a.batch * a.hidden, at = b * a.hidden + j, before = t + a.direction;
    const bool start = step == 0 && !a.dgates_after;
    float dc = 0;
    if (!start)
      dc = a.past[at];
    else if (a.dc_last)
      dc = get<T>(a.dc_last, at);
    if (step == a.steps) {
      put<T>(a.dh0, at, dh);
      put<T>(a.dc0, at, dc);
      return;
    }
    if (a.dy) dh += get<T>(a.dy, t * all + at);
    const auto part = [&](int gate) { return (4 * b + place_of_gate(a.places, gate)) * a.hidden + j; };
    const Long pre = t * 4 * all;
    const LstmGates gate = lstm_gates(get<T>(a.pre, pre + part(0)), get<T>(a.pre, pre + part(1)),
                                      get<T>(a.pre, pre + part(2)), get<T>(a.pre, pre + part(3)));
    const float c = before < 0 || before >= a.all_steps ? get<T>(a.start, at) : a.cells[before * all + at];
    LstmGrads d;
    a.past[at] = lstm_grad(gate, tanh_gate(gate.next_cell(c)), c, dh, dc, &d);
    const Long slot = a.direction > 0 ? step : a.steps - 1 - step;
    float* dgates = a.dgates + slot * 4 * all;
    dgates[part(0)] = d.i, dgates[part(1)] = d.f, dgates[part(2)] = d.g, dgates[part(3)] = d.o;
  }
};

template <typename T>
__device__ void lstm_steps(const LayerSteps& a) {
  forward_steps<T, LstmUnit, kStepUnits, kStepRows>(a);
}

template <typename T>
__device__ void lstm_small_steps(const LayerSteps& a) {
  forward_steps<T, LstmUnit, kSmallUnits, kSmallRows>(a);
}

template <typename T>
__device__ void lstm_wide_steps(const LayerSteps& a) {
  forward_steps<T, LstmUnit, kWideUnits, kWideRows>(a);
}

// c of every step again, from the pre-activations.
template <typename T>
__device__ void lstm_cells(const LstmCells& a) {
  each_column<1>(a.batch, a.hidden, [&](Long b, Long j) {
    const Long at = b * a.hidden + j;
    float c = get<T>(a.c0, at);
    for (Long step = 0; step < a.steps; ++step) {
      const Long t = a.reverse ? a.steps - 1 - step : step, row = (t * a.batch + b) * 4;
      const auto pre = [&](int gate) { return get<T>(a.pre, (row + place_of_gate(a.places, gate)) * a.hidden + j); };
      const float i = sigmoid(pre(0)), f = sigmoid(pre(1));
      c = f * c + i * tanhf(pre(2));
      a.cells[t * a.batch * a.hidden + at] = c;
    }
  });
}

template <typename T>
__device__ void lstm_back_steps(const LayerBackSteps& a) {
  backward_steps<T, LstmUnit>(a);
}

}  // namespace echo_cuda

#if ECHO_IN(lstm)
ECHO_BOTH(1, lstm_steps, LayerSteps)
ECHO_BOTH(1, lstm_small_steps, LayerSteps)
ECHO_BOTH(1, lstm_wide_steps, LayerSteps)
ECHO_BOTH(1, lstm_cells, LstmCells)
ECHO_BOTH(1, lstm_back_steps, LayerBackSteps)
#endif

#endif  // ECHO_KERNELS_CUDA_LSTM_CUH_
