// gru_layer.
#include "plans_layers.h"

namespace echo_cuda {
namespace {

void gru_layer(const Call& call, Queue& queue) {
  const Layer layer(call, 3);
  unsigned* barrier = static_cast<unsigned*>(queue.room(sizeof(unsigned)));
  void* blas_room = queue.room(kBlasBytes);
  LayerSteps a = {};
  a.cells = queue.floats(layer.state());
  float* gates = queue.floats(layer.at_once * layer.gates());
  a.gates = gates, a.y = call.out("y"), a.bh = call.in("bh"), a.start = call.in("h0"), a.places = kInOrder;
  if (call.skips("y")) a.y = queue.room(layer.steps * layer.state() * layer.size());
  a.pre = output(call, "pre"), a.h_last = output(call, "hT");
  if (layer.steps == 0) queue.copy(call.out("hT"), call.in("h0"), layer.state() * layer.size());
  const StepKernel narrow = step_kernel<kStepRows, kStepUnits, 4 * kStepUnits>("gru_steps", layer.hidden);
  const StepKernel small = step_kernel<kSmallRows, kSmallUnits, 4 * kSmallUnits>("gru_small_steps", layer.hidden);
  for (Long done = 0; done < layer.steps && !queue.measures(); done += layer.at_once) {
    const Long count = std::min(layer.at_once, layer.steps - done);
    project(call, queue, layer, 0, 3, false, lowest_forward(layer, done, count), count, gates, blas_room);
    run_forward(call, queue, layer, {layer.batch > kSmallRows ? narrow : small}, barrier, a, done, count);
  }
}

void gru_layer_grad(const Call& call, Queue& queue) {
  const Layer layer(call, 3);
  unsigned* barrier = static_cast<unsigned*>(queue.room(sizeof(unsigned)));
  LayerBackSteps a = {};
  a.past = queue.floats(layer.state());
  a.dinputs = queue.floats(layer.at_once * layer.state());
  a.dgates = queue.floats(layer.at_once * layer.gates());
  float* after = queue.floats(layer.gates());
  float* partials = queue.floats(partial_floats(layer));
  if (queue.measures()) return;
  a.pre = call.in("pre"), a.start = call.in("h0"), a.y = call.in("y");
  const StepKernel kernel = step_kernel<kBackRows, kBackUnits, kBackUnits>("gru_back_steps", layer.width());
  const Long hidden = layer.hidden;
  const Output dbi = output(call, "dbi"), dbh = output(call, "dbh");
  Long done = 0;
  do {  // once without steps, as for an LSTM
    const Long count = std::min(layer.at_once, layer.steps - done), lowest = lowest_backward(layer, done, count);
    const Long rows = count * layer.batch;
    const bool add = done > 0;
    project(call, queue, layer, 2, 1, false, lowest, count, a.dinputs, partials);
    run_backward(call, queue, layer, kernel, barrier, a, after, done, count);
    input_gradients(call, queue, layer, 0, 2, a.dgates, layer.width(), lowest, count, false, add, partials);
    input_gradients(call, queue, layer, 2, 1, a.dinputs, hidden, lowest, count, true, add, partials);
    sum_gates(queue, layer, a.dgates, rows, layer.width(), {{dbi, 0, 2 * hidden}, {dbh, 0, layer.width()}}, add,
              partials);
    sum_gates(queue, layer, a.dinputs, rows, hidden, {{layer.at(dbi, 2 * hidden), 0, hidden}}, add, partials);
    recurrent_weights(call, queue, layer, a.dgates, lowest, count, add, partials);
    done += count;
  } while (done < layer.steps);
}

const CudaKernel kGruLayer("gru_layer", gru_layer);
const CudaKernel kGruLayerGrad("gru_layer_grad", gru_layer_grad);

}  // namespace
}  // namespace echo_cuda
