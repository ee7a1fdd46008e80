// lstm_layer.
#include "plans_layers.h"

namespace echo_cuda {
namespace {

void lstm_layer(const Call& call, Queue& queue) {
  const Layer layer(call, 4);
  unsigned* barrier = static_cast<unsigned*>(queue.room(sizeof(unsigned)));
  void* blas_room = queue.room(kBlasBytes);
  LayerSteps a = {};
  a.cells = queue.floats(layer.state());
  float* gates = queue.floats(layer.at_once * layer.gates());
  a.gates = gates, a.y = call.out("y"), a.start = call.in("c0"), a.places = places_of(call, 4);
  if (call.skips("y")) a.y = queue.room(layer.steps * layer.state() * layer.size());
  a.pre = output(call, "pre"), a.h_last = output(call, "hT"), a.c_last = output(call, "cT");
  if (layer.steps == 0) {
    queue.copy(call.out("hT"), call.in("h0"), layer.state() * layer.size());
    queue.copy(call.out("cT"), call.in("c0"), layer.state() * layer.size());
  }
  const Long depth = layer.hidden;
  const StepKernel narrow = step_kernel<kStepRows, kStepUnits, 4 * kStepUnits>("lstm_steps", depth);
  const StepKernel wide_one = step_kernel<kWideRows, kWideUnits, 4 * kWideUnits>("lstm_wide_steps", depth);
  const StepKernel small = step_kernel<kSmallRows, kSmallUnits, 4 * kSmallUnits>("lstm_small_steps", depth);
  for (Long done = 0; done < layer.steps && !queue.measures(); done += layer.at_once) {
    const Long count = std::min(layer.at_once, layer.steps - done);
    project(call, queue, layer, 0, 4, true, lowest_forward(layer, done, count), count, gates, blas_room);
    run_forward(call, queue, layer, {layer.batch > kSmallRows ? narrow : small, wide_one}, barrier, a, done, count);
  }
}

void lstm_layer_grad(const Call& call, Queue& queue) {
  const Layer layer(call, 4);
  unsigned* barrier = static_cast<unsigned*>(queue.room(sizeof(unsigned)));
  float* cells = queue.floats(layer.steps * layer.state());
  LayerBackSteps a = {};
  a.past = queue.floats(layer.state());
  a.dgates = queue.floats(layer.at_once * layer.gates());
  float* after = queue.floats(layer.gates());
  float* partials = queue.floats(partial_floats(layer));
  if (queue.measures()) return;
  a.places = places_of(call, 4);
  const LstmCells again = {call.in("pre"), call.in("c0"),         cells,   layer.steps, layer.batch,
                           layer.hidden,   layer.reverse ? 1 : 0, a.places};
  if (layer.steps > 0) queue.launch("lstm_cells", layer.half, grid_of_columns(layer.batch, layer.hidden, 0), again);
  a.pre = call.in("pre"), a.start = call.in("c0"), a.cells = cells;
  a.dc_last = call.in("dcT"), a.dc0 = output(call, "dc0");
  const StepKernel kernel = step_kernel<kBackRows, kBackUnits, kBackUnits>("lstm_back_steps", layer.width());
  Long done = 0;
  do {  // once without steps: then weights have gradients of 0, and those of the states pass through
    const Long count = std::min(layer.at_once, layer.steps - done), lowest = lowest_backward(layer, done, count);
    const bool add = done > 0;
    run_backward(call, queue, layer, kernel, barrier, a, after, done, count);
    input_gradients(call, queue, layer, 0, 4, a.dgates, layer.width(), lowest, count, false, add, partials);
    sum_gates(queue, layer, a.dgates, count * layer.batch, layer.width(),
              {{output(call, "dbi"), 0, layer.width()}, {output(call, "dbh"), 0, layer.width()}}, add, partials);
    recurrent_weights(call, queue, layer, a.dgates, lowest, count, add, partials);
    done += count;
  } while (done < layer.steps);
}

const CudaKernel kLstmLayer("lstm_layer", lstm_layer);
const CudaKernel kLstmLayerGrad("lstm_layer_grad", lstm_layer_grad);

}  // namespace
}  // namespace echo_cuda
