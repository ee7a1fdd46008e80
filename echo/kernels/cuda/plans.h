// How each kernel of the C interface becomes launches: a plan takes a checked call and a queue. All of a plan but the
// pointers follows from shapes, types and reqs, so a queue that only measures sees the same workspace.
#ifndef ECHO_KERNELS_CUDA_PLANS_H_
#define ECHO_KERNELS_CUDA_PLANS_H_
#include <initializer_list>

#include "check.h"
#include "queue.h"

namespace echo_cuda {

using echo::kernels::Call;

void plan_lstm_cell(const Call&, Queue&);
void plan_lstm_cell_grad(const Call&, Queue&);
void plan_lstm_norm_cell(const Call&, Queue&);
void plan_lstm_norm_cell_grad(const Call&, Queue&);
void plan_gru_cell(const Call&, Queue&);
void plan_gru_cell_grad(const Call&, Queue&);
void plan_mlp_score(const Call&, Queue&);
void plan_mlp_score_grad(const Call&, Queue&);
void plan_weighted_sum(const Call&, Queue&);
void plan_weighted_sum_grad(const Call&, Queue&);
void plan_attention(const Call&, Queue&);
void plan_attention_grad(const Call&, Queue&);
void plan_layer_norm(const Call&, Queue&);
void plan_layer_norm_grad(const Call&, Queue&);
void plan_bias_act(const Call&, Queue&);
void plan_bias_act_grad(const Call&, Queue&);
void plan_sequence_reverse(const Call&, Queue&);
void plan_sequence_reverse_grad(const Call&, Queue&);
void plan_dropout(const Call&, Queue&);
void plan_dropout_grad(const Call&, Queue&);
void plan_relu(const Call&, Queue&);
void plan_relu_grad(const Call&, Queue&);
void plan_pack_mask(const Call&, Queue&);
void plan_pack_mask_grad(const Call&, Queue&);
void plan_apply_mask(const Call&, Queue&);
void plan_apply_mask_grad(const Call&, Queue&);
void plan_lstm_layer(const Call&, Queue&);
void plan_lstm_layer_grad(const Call&, Queue&);

// What the plans share.

inline Long over(Long a, Long b) { return (a + b - 1) / b; }

Output output(const Call& call, const char* name);
// Zeros into an output for which there is no gradient.
void put_zeros(const Call& call, Queue& queue, const char* name, Long count);

// 1 where rows of so many numbers of a type can be read four at a time in all these arrays; null ones do not count.
int wide(bool half, Long columns, std::initializer_list<const void*> arrays);

Grid grid_of_columns(Long rows, Long columns, int wide);
Grid grid_of_rows(Long rows);
Grid grid_of_elements(Long size);

// Rows that one thread sums over, so that `others` times the number of chunks keeps a large device busy; and that
// number.
struct Chunks {
  Long rows, count;
};
Chunks chunks_of(Long rows, Long others, Long columns);

// out[g, j] = sum over r of in[g * group_stride + r * row_stride + j].
void sum_rows(Queue& queue, bool half, const SumRows& sum);

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_PLANS_H_
