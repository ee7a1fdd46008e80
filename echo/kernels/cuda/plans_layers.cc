#include "plans_layers.h"

#include <algorithm>

namespace echo_cuda {
namespace {

#ifndef ECHO_GATES_BYTES  // tests make it small
#define ECHO_GATES_BYTES (32 << 20)
#endif
const Long kGatesBytes = ECHO_GATES_BYTES;  // of the gates of some steps: ten steps at once gain most of what all would

void gemm(Queue& queue, const GemmKernel& kernel, const Layer& layer, const Gemm& g, void* blas_room) {
  if (g.c.data != nullptr) multiply(queue, kernel, layer.half, g, blas_room);
}

// Whether rows of gates' gradients, and their parts, begin on a boundary.
int gates_wide(const Layer& layer, const float* gates) {
  return wide(false, layer.parts == 4 ? 4 : layer.hidden, {gates});
}

}  // namespace

Layer::Layer(const Call& call, Long parts)
    : steps(call["T"]), batch(call["B"]), inputs(call["I"]), hidden(call["H"]), parts(parts), half(call.half()) {
  reverse = call.param("reverse") != 0;
  const Long step_bytes = std::max<Long>(1, batch * 4 * hidden * 4);
  at_once = std::min(std::max<Long>(1, kGatesBytes / step_bytes), steps);
}

Grid StepKernel::grid(const Layer& layer, bool resident) const {
  Grid grid;
  const Long weights = (resident ? over(depth, kDepth) : Long{kWarps}) * kDepth * columns * layer.size();
  grid.x = over(layer.hidden, units);
  grid.y = resident ? 1 : over(layer.batch, rows);
  grid.shared_bytes = floats * 4 + weights;
  return grid;
}

Long lowest_forward(const Layer& layer, Long done, Long count) {
  return layer.reverse ? layer.steps - done - count : done;
}

Long lowest_backward(const Layer& layer, Long done, Long count) {
  return layer.reverse ? done : layer.steps - done - count;
}

void run_forward(const Call& call, Queue& queue, const Layer& layer, std::initializer_list<StepKernel> kernels,
                 unsigned* barrier, LayerSteps a, Long done, Long count) {
  if (done + count < layer.steps) a.h_last = a.c_last = Output{nullptr, 0};
  a.direction = layer.reverse ? -1 : 1;
  a.first = layer.reverse ? layer.steps - 1 - done : done;
  a.wh = call.in("wh");
  a.h_start = done == 0 ? call.in("h0") : layer.at(a.y, (a.first - a.direction) * layer.state());
  if (done > 0) a.start = nullptr;
  a.steps = count, a.batch = layer.batch, a.hidden = layer.hidden;
  a.wide = wide(layer.half, layer.hidden, {a.h_start, a.y});
  run_steps(queue, layer, kernels, barrier, a, count, [&](Long s) {
    LayerSteps one = a;
    one.steps = 1, one.first = a.first + s * a.direction;
    one.gates = a.gates + (layer.reverse ? count - 1 - s : s) * layer.gates();
    if (s > 0) one.h_start = layer.at(a.y, (one.first - a.direction) * layer.state()), one.start = nullptr;
    if (s + 1 < count) one.h_last = one.c_last = Output{nullptr, 0};
    return one;
  });
}

void run_backward(const Call& call, Queue& queue, const Layer& layer, const StepKernel& kernel, unsigned* barrier,
                  LayerBackSteps a, float* after, Long done, Long count) {
  const bool last = done + count == layer.steps;
  a.direction = layer.reverse ? 1 : -1;
  a.first = layer.reverse ? done : layer.steps - 1 - done;
  a.dy = call.in("dy"), a.dh_last = call.in("dhT"), a.wh = call.in("wh");
  a.dgates_after = done > 0 ? after : nullptr;
  if (last) a.dh0 = output(call, "dh0");
  if (!last) a.dc0 = Output{nullptr, 0};
  a.steps = count, a.all_steps = layer.steps, a.batch = layer.batch, a.hidden = layer.hidden;
  a.finish = last && (a.dh0.data != nullptr || a.dc0.data != nullptr) ? 1 : 0;
  a.wide = gates_wide(layer, a.dgates);
  const auto place = [&](Long s) { return layer.reverse ? s : count - 1 - s; };
  run_steps(queue, layer, {kernel}, barrier, a, count + a.finish, [&](Long s) {
    LayerBackSteps one = a;
    one.first = a.first + s * a.direction;
    one.steps = s < count ? 1 : 0, one.finish = s < count ? 0 : 1;
    if (s < count) one.dgates = a.dgates + place(s) * layer.gates();
    if (s < count && a.dinputs != nullptr) one.dinputs = a.dinputs + place(s) * layer.state();
    if (s > 0) one.dgates_after = a.dgates + place(s - 1) * layer.gates();
    return one;
  });
  if (!last) queue.copy(after, a.dgates + place(count - 1) * layer.gates(), layer.gates() * 4);
}

void project(const Call& call, Queue& queue, const Layer& layer, Long part, Long parts, bool with_bh, Long lowest,
             Long count, float* to, void* blas_room) {
  const Long first = part * layer.hidden, columns = parts * layer.hidden;
  Gemm g = {};
  g.a = layer.at(call.in("x"), lowest * layer.batch * layer.inputs);
  g.b = layer.at(call.in("wi"), first * layer.inputs);
  g.bias = layer.at(call.in("bi"), first);
  if (with_bh) g.bias2 = layer.at(call.in("bh"), first);
  g.c = {to, 0};
  g.m = count * layer.batch, g.n = columns, g.k = layer.inputs;
  g.a_stride = g.b_stride = layer.inputs, g.c_stride = columns;
  g.a_wide = wide(layer.half, layer.inputs, {g.a});
  g.b_wide = wide(layer.half, layer.inputs, {g.b});
  gemm(queue, kGemmInputs, layer, g, blas_room);
}

void input_gradients(const Call& call, Queue& queue, const Layer& layer, Long part, Long parts, const float* dgates,
                     Long stride, Long lowest, Long count, bool add_dx, bool add, void* partials) {
  const Long rows = count * layer.batch, columns = parts * layer.hidden, from = lowest * layer.batch * layer.inputs;
  const Long weights = part * layer.hidden * layer.inputs;
  const void *x = layer.at(call.in("x"), from), *wi = layer.at(call.in("wi"), weights);
  Output dx = layer.at(output(call, "dx"), from), dwi = layer.at(output(call, "dwi"), weights);
  dx.add |= add_dx ? 1 : 0;
  dwi.add |= add ? 1 : 0;
  const int is_wide = gates_wide(layer, dgates);
  gemm(queue, kGemmGates, layer,
       {dgates, wi, nullptr, nullptr, dx, rows, layer.inputs, columns, stride, layer.inputs, layer.inputs, is_wide,
        wide(layer.half, layer.inputs, {wi})},
       partials);
  gemm(queue, kGemmWeights, layer,
       {dgates, x, nullptr, nullptr, dwi, columns, layer.inputs, rows, stride, layer.inputs, layer.inputs, is_wide,
        wide(layer.half, layer.inputs, {x})},
       partials);
}

void recurrent_weights(const Call& call, Queue& queue, const Layer& layer, const float* dgates, Long lowest, Long count,
                       bool add, void* partials) {
  Output dwh = output(call, "dwh");
  const bool has_start = count > 0 && (layer.reverse ? lowest + count == layer.steps : lowest == 0);
  const auto product = [&](const float* a, const void* h, Long steps) {
    dwh.add |= add ? 1 : 0;
    Gemm g = {a,
              h,
              nullptr,
              nullptr,
              dwh,
              layer.width(),
              layer.hidden,
              steps * layer.batch,
              layer.width(),
              layer.hidden,
              layer.hidden,
              gates_wide(layer, a),
              wide(layer.half, layer.hidden, {h})};
    gemm(queue, kGemmWeights, layer, g, partials);
    add = true;
  };
  if (has_start) product(dgates + (layer.reverse ? count - 1 : 0) * layer.gates(), call.in("h0"), 1);
  const Long rest = count - (has_start ? 1 : 0), first = layer.reverse || !has_start ? 0 : 1;
  const Long before = lowest + first + (layer.reverse ? 1 : -1);
  if (rest > 0 || !has_start) {
    product(dgates + first * layer.gates(), layer.at(call.in("y"), std::max<Long>(0, before) * layer.state()), rest);
  }
}

void sum_gates(Queue& queue, const Layer& layer, const float* dgates, Long rows, Long columns,
               std::initializer_list<Sums> sums, bool add, float* partials) {
  const auto wanted = [](const Sums& sum) { return sum.to.data != nullptr; };
  if (std::none_of(sums.begin(), sums.end(), wanted)) return;
  const Chunks chunks = chunks_of(rows, 1, columns);
  const int none = 4;
  const Output nothing = {nullptr, 0};
  BiasActGrad all = {dgates, nullptr, partials, nothing, rows, columns, chunks.rows, chunks.count, none, 0};
  all.wide = wide(false, columns, {dgates, partials});
  queue.launch("bias_act_grad", false, grid_of_columns(chunks.count, columns, all.wide), all);
  for (Sums sum : sums) {
    sum.to.add |= add ? 1 : 0;
    sum_rows(queue, layer.half, {partials + sum.first, sum.to, 1, chunks.count, sum.count, 0, columns});
  }
}

Long partial_floats(const Layer& layer) {
  const Long sums = chunks_of(layer.at_once * layer.batch, 1, layer.width()).count * layer.width();
  const Long part = chunks_of(layer.at_once * layer.batch, 1, layer.hidden).count * layer.hidden;
  return std::max({sums, part, kBlasBytes / 4});
}

}  // namespace echo_cuda
