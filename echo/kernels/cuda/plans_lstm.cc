// lstm_layer: the products that need no order of time are done for as many steps at once as a bounded buffer holds; the
// steps run behind a grid barrier where all blocks and their weights fit on the device, else as one kernel a step.
#include <algorithm>

#include "plans.h"

namespace echo_cuda {
namespace {

#ifndef ECHO_GATES_BYTES  // tests make it small
#define ECHO_GATES_BYTES (32 << 20)
#endif
const Long kGatesBytes = ECHO_GATES_BYTES;  // of the gates of some steps: ten steps at once gain most of what all would

struct Layer {
  Long steps, batch, inputs, hidden;
  bool half, reverse;
  Long at_once;  // steps whose gates fit the buffer

  explicit Layer(const Call& call)
      : steps(call["T"]), batch(call["B"]), inputs(call["I"]), hidden(call["H"]), half(call.half()) {
    reverse = call.param("reverse") != 0;
    const Long step_bytes = std::max<Long>(1, batch * 4 * hidden * 4);
    at_once = std::min(std::max<Long>(1, kGatesBytes / step_bytes), steps);
  }
  Long state() const { return batch * hidden; }
  Long size() const { return half ? 2 : 4; }
  Long gates() const { return batch * 4 * hidden; }
  const void* at(const void* array, Long elements) const { return static_cast<const char*>(array) + elements * size(); }
  void* at(void* array, Long elements) const { return static_cast<char*>(array) + elements * size(); }
};

// A kernel of steps: batch rows and units of a block, columns of its product, floats of its StepRoom, terms.
struct StepKernel {
  const char* name;
  Long rows, units, columns, floats, depth;

  Grid grid(const Layer& layer, bool resident) const {
    Grid grid;
    const Long weights = (resident ? over(depth, kDepth) : Long{kWarps}) * kDepth * columns * layer.size();
    grid.x = over(layer.hidden, units);
    grid.y = resident ? 1 : over(layer.batch, rows);
    grid.shared_bytes = floats * 4 + weights;
    return grid;
  }
};

template <int rows, int units, int columns>
StepKernel step_kernel(const char* name, Long depth) {
  return {name, rows, units, columns, StepRoom<rows, columns>::kFloats, depth};
}

void gemm(Queue& queue, const GemmKernel& kernel, const Layer& layer, const Gemm& g, void* blas_room) {
  if (g.c.data != nullptr) multiply(queue, kernel, layer.half, g, blas_room);
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

// Pre-activations from the inputs of `count` steps from time `lowest` on.
void project(const Call& call, Queue& queue, const Layer& layer, Long lowest, Long count, float* gates,
             void* blas_room) {
  const void* x = layer.at(call.in("x"), lowest * layer.batch * layer.inputs);
  Gemm g = {x,
            call.in("wi"),
            call.in("bi"),
            call.in("bh"),
            {gates, 0},
            count * layer.batch,
            4 * layer.hidden,
            layer.inputs,
            layer.inputs,
            layer.inputs,
            4 * layer.hidden,
            0,
            0};
  g.a_wide = wide(layer.half, layer.inputs, {g.a});
  g.b_wide = wide(layer.half, layer.inputs, {g.b});
  gemm(queue, kGemmInputs, layer, g, blas_room);
}

void forward_steps(const Call& call, Queue& queue, const Layer& layer, void* y, float* cells, float* gates,
                   unsigned* barrier, Long done, Long count) {
  LstmSteps a = {};
  const bool last = done + count == layer.steps;
  a.direction = layer.reverse ? -1 : 1;
  a.first = layer.reverse ? layer.steps - 1 - done : done;
  a.gates = gates;
  a.wh = call.in("wh");
  a.h_start = done == 0 ? call.in("h0") : layer.at(y, (a.first - a.direction) * layer.state());
  a.c_start = done == 0 ? call.in("c0") : nullptr;
  a.cells = cells, a.y = y, a.pre = output(call, "pre");
  if (last) a.h_last = output(call, "hT"), a.c_last = output(call, "cT");
  a.steps = count, a.batch = layer.batch, a.hidden = layer.hidden;
  a.wide = wide(layer.half, layer.hidden, {a.h_start, y});
  const Long depth = layer.hidden;
  const StepKernel narrow = step_kernel<kStepRows, kStepUnits, 4 * kStepUnits>("lstm_steps", depth);
  const StepKernel wide_one = step_kernel<kWideRows, kWideUnits, 4 * kWideUnits>("lstm_wide_steps", depth);
  const StepKernel small = step_kernel<kSmallRows, kSmallUnits, 4 * kSmallUnits>("lstm_small_steps", depth);
  run_steps(queue, layer, {layer.batch > kSmallRows ? narrow : small, wide_one}, barrier, a, count, [&](Long s) {
    LstmSteps one = a;
    one.steps = 1, one.first = a.first + s * a.direction;
    one.gates = gates + (layer.reverse ? count - 1 - s : s) * layer.gates();
    if (s > 0) one.h_start = layer.at(y, (one.first - a.direction) * layer.state()), one.c_start = nullptr;
    if (s + 1 < count) one.h_last = one.c_last = Output{nullptr, 0};
    return one;
  });
}

void lstm_layer(const Call& call, Queue& queue) {
  const Layer layer(call);
  unsigned* barrier = static_cast<unsigned*>(queue.room(sizeof(unsigned)));
  void* blas_room = queue.room(kBlasBytes);
  float* cells = queue.floats(layer.state());
  float* gates = queue.floats(layer.at_once * layer.gates());
  void* y = call.out("y");
  if (call.raw().req[0] == ECHO_SKIP) y = queue.room(layer.steps * layer.state() * layer.size());
  if (layer.steps == 0) {
    queue.copy(call.out("hT"), call.in("h0"), layer.state() * layer.size());
    queue.copy(call.out("cT"), call.in("c0"), layer.state() * layer.size());
  }
  for (Long done = 0; done < layer.steps && !queue.measures(); done += layer.at_once) {
    const Long count = std::min(layer.at_once, layer.steps - done);
    project(call, queue, layer, layer.reverse ? layer.steps - done - count : done, count, gates, blas_room);
    forward_steps(call, queue, layer, y, cells, gates, barrier, done, count);
  }
}

struct Room {
  unsigned* barrier;
  float *cells, *dc, *dgates, *after;
  float* partials;  // cuBLAS's between its sums
};

void backward_steps(const Call& call, Queue& queue, const Layer& layer, const Room& room, Long done, Long count) {
  LstmBackSteps a = {};
  const bool last = done + count == layer.steps;
  a.direction = layer.reverse ? 1 : -1;
  a.first = layer.reverse ? done : layer.steps - 1 - done;
  a.dy = call.in("dy"), a.dh_last = call.in("dhT"), a.dc_last = call.in("dcT");
  a.wh = call.in("wh"), a.pre = call.in("pre"), a.c0 = call.in("c0");
  a.cells = room.cells, a.dgates = room.dgates, a.dgates_after = done > 0 ? room.after : nullptr, a.dc = room.dc;
  if (last) a.dh0 = output(call, "dh0"), a.dc0 = output(call, "dc0");
  a.steps = count, a.all_steps = layer.steps, a.batch = layer.batch, a.hidden = layer.hidden;
  a.finish = last && (a.dh0.data != nullptr || a.dc0.data != nullptr) ? 1 : 0;
  a.wide = 1;  // gates' gradients come from the workspace, 4 H a row
  const StepKernel kernel = step_kernel<kBackRows, kBackUnits, kBackUnits>("lstm_back_steps", 4 * layer.hidden);
  const auto slot = [&](Long s) { return room.dgates + (layer.reverse ? s : count - 1 - s) * layer.gates(); };
  run_steps(queue, layer, {kernel}, room.barrier, a, count + a.finish, [&](Long s) {
    LstmBackSteps one = a;
    one.first = a.first + s * a.direction;
    one.steps = s < count ? 1 : 0, one.finish = s < count ? 0 : 1;
    if (s < count) one.dgates = slot(s);
    if (s > 0) one.dgates_after = slot(s - 1);
    return one;
  });
  if (!last) queue.copy(room.after, slot(count - 1), layer.gates() * 4);
}

// dwh: the gates' gradients of each step by the state before it. `add`: there are sums of other steps already.
void recurrent_weights(const Call& call, Queue& queue, const Layer& layer, const Room& room, Long lowest, Long count,
                       bool add) {
  Output dwh = output(call, "dwh");
  const bool has_start = count > 0 && (layer.reverse ? lowest + count == layer.steps : lowest == 0);
  const auto product = [&](const float* a, const void* h, Long steps) {
    dwh.add |= add ? 1 : 0;
    Gemm g = {a,
              h,
              nullptr,
              nullptr,
              dwh,
              4 * layer.hidden,
              layer.hidden,
              steps * layer.batch,
              4 * layer.hidden,
              layer.hidden,
              layer.hidden,
              wide(false, 4, {a}),
              wide(layer.half, layer.hidden, {h})};
    gemm(queue, kGemmWeights, layer, g, room.partials);
    add = true;
  };
  if (has_start) product(room.dgates + (layer.reverse ? count - 1 : 0) * layer.gates(), call.in("h0"), 1);
  const Long rest = count - (has_start ? 1 : 0), first = layer.reverse || !has_start ? 0 : 1;
  const Long before = lowest + first + (layer.reverse ? 1 : -1);
  if (rest > 0 || !has_start) {
    product(room.dgates + first * layer.gates(), layer.at(call.in("y"), std::max<Long>(0, before) * layer.state()),
            rest);
  }
}

// dx, dwi and the gradients of both biases, from the gates' gradients of `count` steps from time `lowest` on.
void input_gradients(const Call& call, Queue& queue, const Layer& layer, const Room& room, Long lowest, Long count,
                     bool add) {
  const Long rows = count * layer.batch, gates = 4 * layer.hidden, from = lowest * layer.batch * layer.inputs;
  const void *x = layer.at(call.in("x"), from), *wi = call.in("wi");
  Output dx = output(call, "dx"), dwi = output(call, "dwi"), dbi = output(call, "dbi"), dbh = output(call, "dbh");
  if (dx.data != nullptr) dx.data = layer.at(dx.data, from);
  const int gates_wide = wide(false, 4, {room.dgates});
  gemm(queue, kGemmGates, layer,
       {room.dgates, wi, nullptr, nullptr, dx, rows, layer.inputs, gates, gates, layer.inputs, layer.inputs, gates_wide,
        wide(layer.half, layer.inputs, {wi})},
       room.partials);
  if (add) dwi.add = dbi.add = dbh.add = 1;
  gemm(queue, kGemmWeights, layer,
       {room.dgates, x, nullptr, nullptr, dwi, gates, layer.inputs, rows, gates, layer.inputs, layer.inputs, gates_wide,
        wide(layer.half, layer.inputs, {x})},
       room.partials);
  if (dbi.data == nullptr && dbh.data == nullptr) return;
  const Chunks chunks = chunks_of(rows, 1, gates);
  const int none = 4;
  const Output nothing = {nullptr, 0};
  BiasActGrad sums = {room.dgates, nullptr, room.partials, nothing, rows, gates, chunks.rows, chunks.count, none, 1};
  queue.launch("bias_act_grad", false, grid_of_columns(chunks.count, gates, 1), sums);
  sum_rows(queue, layer.half, {room.partials, dbi, 1, chunks.count, gates, 0, gates});
  sum_rows(queue, layer.half, {room.partials, dbh, 1, chunks.count, gates, 0, gates});
}

void lstm_layer_grad(const Call& call, Queue& queue) {
  const Layer layer(call);
  Room room;
  room.barrier = static_cast<unsigned*>(queue.room(sizeof(unsigned)));
  room.cells = queue.floats(layer.steps * layer.state());
  room.dc = queue.floats(layer.state());
  room.dgates = queue.floats(layer.at_once * layer.gates());
  room.after = queue.floats(layer.gates());
  const Long sums = chunks_of(layer.at_once * layer.batch, 1, 4 * layer.hidden).count * 4 * layer.hidden;
  room.partials = queue.floats(std::max(sums, kBlasBytes / 4));
  if (queue.measures()) return;
  const LstmCells cells = {call.in("pre"), call.in("c0"), room.cells,           layer.steps,
                           layer.batch,    layer.hidden,  layer.reverse ? 1 : 0};
  if (layer.steps > 0) queue.launch("lstm_cells", layer.half, grid_of_columns(layer.batch, layer.hidden, 0), cells);
  Long done = 0;
  do {  // once without steps: then weights have gradients of 0, and those of the states pass through
    const Long count = std::min(layer.at_once, layer.steps - done);
    const Long lowest = layer.reverse ? done : layer.steps - done - count;
    backward_steps(call, queue, layer, room, done, count);
    input_gradients(call, queue, layer, room, lowest, count, done > 0);
    recurrent_weights(call, queue, layer, room, lowest, count, done > 0);
    done += count;
  } while (done < layer.steps);
}

const CudaKernel kLstmLayer("lstm_layer", lstm_layer);
const CudaKernel kLstmLayerGrad("lstm_layer_grad", lstm_layer_grad);

}  // namespace
}  // namespace echo_cuda
