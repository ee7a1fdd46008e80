// The C interface on the CPU: checks a call, finds the kernel, runs it.
#include "kernels.h"

#include <cstring>

#include "echo_kernels.h"
#include "level.h"

namespace echo {
namespace kernels {
namespace {

struct Entry {
  const char* name;
  void (*run)(const Call&);
  size_t (*workspace)(const Call&);
};

size_t no_workspace(const Call&) { return 0; }

const Entry kEntries[] = {
    {"lstm_cell", lstm_cell, no_workspace},
    {"lstm_cell_grad", lstm_cell_grad, no_workspace},
    {"lstm_norm_cell", lstm_norm_cell, lstm_norm_cell_workspace},
    {"lstm_norm_cell_grad", lstm_norm_cell_grad, lstm_norm_cell_grad_workspace},
    {"gru_cell", gru_cell, no_workspace},
    {"gru_cell_grad", gru_cell_grad, no_workspace},
    {"mlp_score", mlp_score, mlp_score_workspace},
    {"mlp_score_grad", mlp_score_grad, mlp_score_grad_workspace},
    {"weighted_sum", weighted_sum, no_workspace},
    {"weighted_sum_grad", weighted_sum_grad, no_workspace},
    {"attention", attention, attention_workspace},
    {"attention_grad", attention_grad, attention_grad_workspace},
    {"layer_norm", layer_norm, layer_norm_workspace},
    {"layer_norm_grad", layer_norm_grad, layer_norm_grad_workspace},
    {"bias_act", bias_act, no_workspace},
    {"bias_act_grad", bias_act_grad, bias_act_grad_workspace},
    {"sequence_reverse", sequence_reverse, no_workspace},
    {"sequence_reverse_grad", sequence_reverse_grad, no_workspace},
    {"dropout", dropout, no_workspace},
    {"dropout_grad", dropout_grad, no_workspace},
    {"relu", relu, no_workspace},
    {"relu_grad", relu_grad, no_workspace},
    {"pack_mask", pack_mask, no_workspace},
    {"pack_mask_grad", pack_mask_grad, no_workspace},
    {"apply_mask", apply_mask, no_workspace},
    {"apply_mask_grad", apply_mask_grad, no_workspace},
    {"softmax_output", softmax_output, softmax_output_workspace},
    {"softmax_output_grad", softmax_output_grad, softmax_output_grad_workspace},
    {"lstm_layer", lstm_layer, lstm_layer_workspace},
    {"lstm_layer_grad", lstm_layer_grad, lstm_layer_grad_workspace},
};

const Entry& entry_of(const Call& call) {
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.name, call.name()) == 0) return entry;
  }
  throw WrongCall(std::string(call.name()) + ": this kernel does not exist on the CPU");
}

void run(const EchoCall& raw) {
  const Call call(raw, true);
  const Entry& entry = entry_of(call);
  if (call.zero_gradient()) return call.write_zeros();
  const size_t bytes = entry.workspace(call);
  if (bytes > 0 && (raw.workspace == nullptr || raw.workspace_bytes < bytes)) {
    throw WrongCall(std::string(call.name()) + ": expected a workspace of " + std::to_string(bytes) + " bytes, got " +
                    (raw.workspace == nullptr ? "none" : std::to_string(raw.workspace_bytes)));
  }
  if (bytes > 0 && reinterpret_cast<uintptr_t>(raw.workspace) % 64 != 0) {
    throw WrongCall(std::string(call.name()) + ": the workspace is not aligned to 64 bytes");
  }
  entry.run(call);
}

}  // namespace
}  // namespace kernels
}  // namespace echo

int echo_cpu_call(const EchoCall* call) {
  return echo::kernels::guard([call] { echo::kernels::run(*call); });
}

const char* echo_kernels_level() { return echo::kernels::level_name(echo::kernels::level()); }

size_t echo_cpu_workspace(const EchoCall* call) {
  size_t bytes = 0;
  const int failed = echo::kernels::guard([call, &bytes] {
    const echo::kernels::Call checked(*call, false);
    bytes = echo::kernels::entry_of(checked).workspace(checked);
  });
  return failed ? SIZE_MAX : bytes;
}
