// The kernels on the CPU; echo_kernels.h says what each computes. NAME_workspace: the bytes that NAME needs.
#ifndef ECHO_KERNELS_CPU_KERNELS_H_
#define ECHO_KERNELS_CPU_KERNELS_H_
#include <cstddef>

#include "check.h"

namespace echo {
namespace kernels {

void lstm_cell(const Call& call);
void lstm_cell_grad(const Call& call);

void lstm_norm_cell(const Call& call);
size_t lstm_norm_cell_workspace(const Call& call);
void lstm_norm_cell_grad(const Call& call);
size_t lstm_norm_cell_grad_workspace(const Call& call);

void gru_cell(const Call& call);
void gru_cell_grad(const Call& call);

void mlp_score(const Call& call);
size_t mlp_score_workspace(const Call& call);
void mlp_score_grad(const Call& call);
size_t mlp_score_grad_workspace(const Call& call);

void weighted_sum(const Call& call);
void weighted_sum_grad(const Call& call);

void attention(const Call& call);
size_t attention_workspace(const Call& call);
void attention_grad(const Call& call);
size_t attention_grad_workspace(const Call& call);

void layer_norm(const Call& call);
size_t layer_norm_workspace(const Call& call);
void layer_norm_grad(const Call& call);
size_t layer_norm_grad_workspace(const Call& call);

void bias_act(const Call& call);
void bias_act_grad(const Call& call);
size_t bias_act_grad_workspace(const Call& call);

void sequence_reverse(const Call& call);
void sequence_reverse_grad(const Call& call);

void dropout(const Call& call);
void dropout_grad(const Call& call);

void relu(const Call& call);
void relu_grad(const Call& call);

void pack_mask(const Call& call);
void pack_mask_grad(const Call& call);

void apply_mask(const Call& call);
void apply_mask_grad(const Call& call);

void softmax_output(const Call& call);
size_t softmax_output_workspace(const Call& call);
void softmax_output_grad(const Call& call);
size_t softmax_output_grad_workspace(const Call& call);

void lstm_layer(const Call& call);
size_t lstm_layer_workspace(const Call& call);
void lstm_layer_grad(const Call& call);
size_t lstm_layer_grad_workspace(const Call& call);

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_KERNELS_H_
