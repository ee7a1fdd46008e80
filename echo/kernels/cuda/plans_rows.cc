// lstm_norm_cell, mlp_score, weighted_sum, layer_norm.
#include "plans.h"

namespace echo_cuda {
namespace {

void lstm_norm_cell(const Call& call, Queue& queue) {
  LstmNormCell a = {call.in("pre"),
                    call.in("c"),
                    call.in("gamma"),
                    call.in("beta"),
                    output(call, "h"),
                    output(call, "c'"),
                    call["B"],
                    call["H"],
                    static_cast<float>(call.param("eps")),
                    0,
                    places_of(call, 4)};
  a.wide = wide(call.half(), a.hidden, {a.pre, a.c, a.gamma, a.beta, a.h.data, a.c_next.data});
  queue.launch("lstm_norm_cell", call.half(), grid_of_rows(a.batch), a);
}

void lstm_norm_cell_grad(const Call& call, Queue& queue) {
  LstmNormCellGrad a = {};
  a.batch = call["B"], a.hidden = call["H"];
  const Chunks chunks = chunks_of(a.batch, 1, a.hidden);
  a.dh = call.in("dh"), a.dc_next = call.in("dc'"), a.pre = call.in("pre"), a.c = call.in("c");
  a.gamma = call.in("gamma"), a.beta = call.in("beta");
  a.statistics = queue.floats(2 * a.batch);
  a.partials = queue.floats(2 * chunks.count * a.hidden);
  a.dpre = output(call, "dpre"), a.dc = output(call, "dc"), a.places = places_of(call, 4);
  a.chunk = chunks.rows, a.chunks = chunks.count, a.eps = static_cast<float>(call.param("eps"));
  a.wide = wide(call.half(), a.hidden,
                {a.dh, a.dc_next, a.pre, a.c, a.gamma, a.beta, a.dpre.data, a.dc.data, a.partials});
  const bool half = call.half();
  queue.launch("lstm_norm_cell_grad_rows", half, grid_of_rows(a.batch), a);
  queue.launch("lstm_norm_cell_grad_columns", half, grid_of_columns(chunks.count, a.hidden, a.wide), a);
  sum_rows(queue, half, {a.partials, output(call, "dgamma"), 1, chunks.count, a.hidden, 0, a.hidden});
  const float* of_beta = a.partials + chunks.count * a.hidden;
  sum_rows(queue, half, {of_beta, output(call, "dbeta"), 1, chunks.count, a.hidden, 0, a.hidden});
}

void weighted_sum(const Call& call, Queue& queue) {
  WeightedSum a = {call.in("w"), call.in("values"), output(call, "out"), call["B"], call["T"], call["H"], 0};
  a.wide = wide(call.half(), a.hidden, {a.values, a.out.data});
  queue.launch("weighted_sum", call.half(), grid_of_columns(a.batch, a.hidden, a.wide), a);
}

void weighted_sum_grad(const Call& call, Queue& queue) {
  WeightedSumGrad a = {call.in("dout"),
                       call.in("w"),
                       call.in("values"),
                       output(call, "dw"),
                       output(call, "dvalues"),
                       call["B"],
                       call["T"],
                       call["H"],
                       0};
  a.wide = wide(call.half(), a.hidden, {a.dout, a.values, a.dvalues.data});
  queue.launch("weighted_sum_grad", call.half(), grid_of_rows(a.batch * a.steps), a);
}

void mlp_score(const Call& call, Queue& queue) {
  MlpScore a = {call.in("keys"),
                call.in("query"),
                call.in("v"),
                call.in("gamma"),
                call.in("beta"),
                output(call, "score"),
                call["B"],
                call["T"],
                call["H"],
                static_cast<float>(call.param("eps")),
                0};
  a.wide = wide(call.half(), a.hidden, {a.keys, a.query, a.v, a.gamma, a.beta});
  queue.launch("mlp_score", call.half(), grid_of_rows(a.batch * a.steps), a);
}

void mlp_score_grad(const Call& call, Queue& queue) {
  const Long batch = call["B"], steps = call["T"], hidden = call["H"];
  const Chunks chunks = chunks_of(steps, batch, hidden);
  const Long items = chunks.count * batch, part = items * hidden;
  MlpScoreGrad a = {};
  a.dscore = call.in("dscore"), a.keys = call.in("keys"), a.query = call.in("query"), a.v = call.in("v");
  a.gamma = call.in("gamma"), a.beta = call.in("beta");
  a.statistics = queue.floats(batch * steps * 4);
  a.partials = queue.floats(4 * part);
  a.dkeys = output(call, "dkeys");
  a.batch = batch, a.steps = steps, a.hidden = hidden, a.chunk = chunks.rows, a.chunks = chunks.count;
  a.eps = static_cast<float>(call.param("eps"));
  a.wide = wide(call.half(), hidden, {a.keys, a.query, a.v, a.gamma, a.beta, a.dkeys.data, a.partials});
  const bool half = call.half();
  if (a.gamma != nullptr) queue.launch("mlp_score_grad_rows", half, grid_of_rows(batch * steps), a);
  queue.launch("mlp_score_grad_columns", half, grid_of_columns(items, hidden, a.wide), a);
  sum_rows(queue, half, {a.partials, output(call, "dquery"), batch, chunks.count, hidden, hidden, batch * hidden});
  const char* shared[] = {"dv", "dgamma", "dbeta"};
  for (int g = 0; g < (a.gamma != nullptr ? 3 : 1); ++g) {
    sum_rows(queue, half, {a.partials + (g + 1) * part, output(call, shared[g]), 1, items, hidden, 0, hidden});
  }
}

void layer_norm(const Call& call, Queue& queue) {
  LayerNorm a = {call.in("x"),
                 call.in("gamma"),
                 call.in("beta"),
                 output(call, "y"),
                 call["N"],
                 call["H"],
                 static_cast<float>(call.param("eps")),
                 0};
  a.wide = wide(call.half(), a.hidden, {a.x, a.gamma, a.beta, a.y.data});
  queue.launch("layer_norm", call.half(), grid_of_rows(a.rows), a);
}

void layer_norm_grad(const Call& call, Queue& queue) {
  const Long rows = call["N"], hidden = call["H"];
  const Chunks chunks = chunks_of(rows, 1, hidden);
  float* statistics = queue.floats(2 * rows);
  float* partials = queue.floats(2 * chunks.count * hidden);
  LayerNormGrad a = {call.in("dy"),
                     call.in("x"),
                     call.in("gamma"),
                     statistics,
                     partials,
                     output(call, "dx"),
                     rows,
                     hidden,
                     chunks.rows,
                     chunks.count,
                     static_cast<float>(call.param("eps")),
                     0};
  a.wide = wide(call.half(), hidden, {a.dy, a.x, a.gamma, a.dx.data, partials});
  const bool half = call.half();
  const Output dgamma = output(call, "dgamma"), dbeta = output(call, "dbeta");
  queue.launch("layer_norm_grad_rows", half, grid_of_rows(rows), a);
  if (dgamma.data == nullptr && dbeta.data == nullptr) return;
  queue.launch("layer_norm_grad_columns", half, grid_of_columns(chunks.count, hidden, a.wide), a);
  sum_rows(queue, half, {partials, dgamma, 1, chunks.count, hidden, 0, hidden});
  sum_rows(queue, half, {partials + chunks.count * hidden, dbeta, 1, chunks.count, hidden, 0, hidden});
}

const CudaKernel kLstmNormCell("lstm_norm_cell", lstm_norm_cell);
const CudaKernel kLstmNormCellGrad("lstm_norm_cell_grad", lstm_norm_cell_grad);
const CudaKernel kMlpScore("mlp_score", mlp_score);
const CudaKernel kMlpScoreGrad("mlp_score_grad", mlp_score_grad);
const CudaKernel kWeightedSum("weighted_sum", weighted_sum);
const CudaKernel kWeightedSumGrad("weighted_sum_grad", weighted_sum_grad);
const CudaKernel kLayerNorm("layer_norm", layer_norm);
const CudaKernel kLayerNormGrad("layer_norm_grad", layer_norm_grad);

}  // namespace
}  // namespace echo_cuda
