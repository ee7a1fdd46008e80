// rnn_layer.
#include "plans_layers.h"

namespace echo_cuda {
namespace {

int is_relu(const Call& call) { return call.param("act") == 0 ? 1 : 0; }

void rnn_layer(const Call& call, Queue& queue) {
  const Layer layer(call, 1);
  unsigned* barrier = static_cast<unsigned*>(queue.room(sizeof(unsigned)));
  void* blas_room = queue.room(kBlasBytes);
  LayerSteps a = {};
  float* gates = queue.floats(layer.at_once * layer.gates());
  a.gates = gates, a.y = call.out("y"), a.relu = is_relu(call);
  if (call.skips("y")) a.y = queue.room(layer.steps * layer.state() * layer.size());
  a.h_last = output(call, "hT");
  if (layer.steps == 0) queue.copy(call.out("hT"), call.in("h0"), layer.state() * layer.size());
  const StepKernel kernel = step_kernel<kStepRows, 4 * kStepUnits, 4 * kStepUnits>("rnn_steps", layer.hidden);
  for (Long done = 0; done < layer.steps && !queue.measures(); done += layer.at_once) {
    const Long count = std::min(layer.at_once, layer.steps - done);
    project(call, queue, layer, 0, 1, true, lowest_forward(layer, done, count), count, gates, blas_room);
    run_forward(call, queue, layer, {kernel}, barrier, a, done, count);
  }
}

void rnn_layer_grad(const Call& call, Queue& queue) {
  const Layer layer(call, 1);
  unsigned* barrier = static_cast<unsigned*>(queue.room(sizeof(unsigned)));
  LayerBackSteps a = {};
  a.dgates = queue.floats(layer.at_once * layer.gates());
  float* after = queue.floats(layer.gates());
  float* partials = queue.floats(partial_floats(layer));
  if (queue.measures()) return;
  a.y = call.in("y"), a.relu = is_relu(call);
  const StepKernel kernel = step_kernel<kBackRows, kBackUnits, kBackUnits>("rnn_back_steps", layer.width());
  Long done = 0;
  do {  // once without steps, as for an LSTM
    const Long count = std::min(layer.at_once, layer.steps - done), lowest = lowest_backward(layer, done, count);
    const bool add = done > 0;
    run_backward(call, queue, layer, kernel, barrier, a, after, done, count);
    input_gradients(call, queue, layer, 0, 1, a.dgates, layer.width(), lowest, count, false, add, partials);
    sum_gates(queue, layer, a.dgates, count * layer.batch, layer.width(),
              {{output(call, "dbi"), 0, layer.width()}, {output(call, "dbh"), 0, layer.width()}}, add, partials);
    recurrent_weights(call, queue, layer, a.dgates, lowest, count, add, partials);
    done += count;
  } while (done < layer.steps);
}

const CudaKernel kRnnLayer("rnn_layer", rnn_layer);
const CudaKernel kRnnLayerGrad("rnn_layer_grad", rnn_layer_grad);

}  // namespace
}  // namespace echo_cuda
