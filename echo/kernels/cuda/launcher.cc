// The C interface on CUDA devices: checks a call, finds its plan, enqueues it.
#include <cstring>

#include "plans.h"

namespace echo_cuda {
namespace {

struct Entry {
  const char* name;
  void (*plan)(const Call&, Queue&);
};

const Entry kEntries[] = {
    {"lstm_cell", plan_lstm_cell},
    {"lstm_cell_grad", plan_lstm_cell_grad},
    {"lstm_norm_cell", plan_lstm_norm_cell},
    {"lstm_norm_cell_grad", plan_lstm_norm_cell_grad},
    {"gru_cell", plan_gru_cell},
    {"gru_cell_grad", plan_gru_cell_grad},
    {"mlp_score", plan_mlp_score},
    {"mlp_score_grad", plan_mlp_score_grad},
    {"weighted_sum", plan_weighted_sum},
    {"weighted_sum_grad", plan_weighted_sum_grad},
    {"attention", plan_attention},
    {"attention_grad", plan_attention_grad},
    {"layer_norm", plan_layer_norm},
    {"layer_norm_grad", plan_layer_norm_grad},
    {"bias_act", plan_bias_act},
    {"bias_act_grad", plan_bias_act_grad},
    {"sequence_reverse", plan_sequence_reverse},
    {"sequence_reverse_grad", plan_sequence_reverse_grad},
    {"dropout", plan_dropout},
    {"dropout_grad", plan_dropout_grad},
    {"relu", plan_relu},
    {"relu_grad", plan_relu_grad},
    {"pack_mask", plan_pack_mask},
    {"pack_mask_grad", plan_pack_mask_grad},
    {"apply_mask", plan_apply_mask},
    {"apply_mask_grad", plan_apply_mask_grad},
    {"lstm_layer", plan_lstm_layer},
    {"lstm_layer_grad", plan_lstm_layer_grad},
};

const Entry& entry_of(const Call& call) {
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.name, call.name()) == 0) return entry;
  }
  throw echo::kernels::WrongCall(std::string(call.name()) + ": this kernel does not exist on CUDA");
}

size_t workspace_bytes(const Call& call) {
  Queue measure;
  entry_of(call).plan(call, measure);
  return measure.bytes();
}

void check_workspace(const Call& call, size_t bytes) {
  const EchoCall& raw = call.raw();
  if (bytes > 0 && (raw.workspace == nullptr || raw.workspace_bytes < bytes)) {
    throw echo::kernels::WrongCall(std::string(call.name()) + ": expected a workspace of " + std::to_string(bytes) +
                                   " bytes, got " +
                                   (raw.workspace == nullptr ? "none" : std::to_string(raw.workspace_bytes)));
  }
  if (bytes > 0 && reinterpret_cast<uintptr_t>(raw.workspace) % 64 != 0) {
    throw echo::kernels::WrongCall(std::string(call.name()) + ": the workspace is not aligned to 64 bytes");
  }
}

void run(const EchoCall& raw) {
  const Call call(raw, true);
  const Entry& entry = entry_of(call);
  const bool zeros = call.zero_gradient();
  if (!zeros) check_workspace(call, workspace_bytes(call));
  Queue queue(raw);
  if (!zeros) return entry.plan(call, queue);
  for (int i = 0; i < raw.num_out; ++i) {
    const EchoTensor& tensor = raw.out[i];
    if (raw.req[i] != ECHO_WRITE || tensor.data == nullptr) continue;
    queue.set_zero(tensor.data, echo::kernels::element_count(tensor) * echo::kernels::dtype_bytes(tensor.dtype));
  }
}

// Both kinds of launches, of kernels that have nothing to do.
void try_device(int number) {
  Queue queue(number);
  queue.launch("lstm_cell", false, Grid(), LstmCell());
  if (queue.fits_at_once("lstm_steps", false, Grid())) queue.launch_at_once("lstm_steps", false, Grid(), LstmSteps());
}

}  // namespace
}  // namespace echo_cuda

int echo_cuda_ready(int device) {
  return echo::kernels::guard([device] { echo_cuda::try_device(device); });
}

int echo_cuda_call(const EchoCall* call) {
  return echo::kernels::guard([call] { echo_cuda::run(*call); });
}

size_t echo_cuda_workspace(const EchoCall* call) {
  size_t bytes = 0;
  const int failed = echo::kernels::guard([call, &bytes] {
    bytes = echo_cuda::workspace_bytes(echo::kernels::Call(*call, false));
  });
  return failed ? SIZE_MAX : bytes;
}
