// lstm_cell, gru_cell, gru_reset, gru_mix, bias_act, sequence_reverse, dropout, draw_mask, relu, pack_mask, apply_mask.
#include <algorithm>

#include "plans.h"

namespace echo_cuda {
namespace {

void lstm_cell(const Call& call, Queue& queue) {
  LstmCell a = {call.in("pre"),    call.in("c"), output(call, "h"), output(call, "c'"), call["B"], call["H"], 0,
                places_of(call, 4)};
  a.wide = wide(call.half(), a.hidden, {a.pre, a.c, a.h.data, a.c_next.data});
  queue.launch("lstm_cell", call.half(), grid_of_columns(a.batch, a.hidden, a.wide), a);
}

void lstm_cell_grad(const Call& call, Queue& queue) {
  LstmCellGrad a = {call.in("dh"),
                    call.in("dc'"),
                    call.in("pre"),
                    call.in("c"),
                    output(call, "dpre"),
                    output(call, "dc"),
                    call["B"],
                    call["H"],
                    0,
                    places_of(call, 4)};
  a.wide = wide(call.half(), a.hidden, {a.dh, a.dc_next, a.pre, a.c, a.dpre.data, a.dc.data});
  queue.launch("lstm_cell_grad", call.half(), grid_of_columns(a.batch, a.hidden, a.wide), a);
}

void gru_cell(const Call& call, Queue& queue) {
  GruCell a = {call.in("x"),      call.in("s"), call.in("h"), output(call, "h'"), call["B"], call["H"], 0,
               places_of(call, 3)};
  a.wide = wide(call.half(), a.hidden, {a.x, a.s, a.h, a.h_next.data});
  queue.launch("gru_cell", call.half(), grid_of_columns(a.batch, a.hidden, a.wide), a);
}

void gru_cell_grad(const Call& call, Queue& queue) {
  GruCellGrad a = {call.in("dh'"),     call.in("x"),       call.in("s"), call.in("h"), output(call, "dx"),
                   output(call, "ds"), output(call, "dh"), call["B"],    call["H"],    0,
                   places_of(call, 3)};
  a.wide = wide(call.half(), a.hidden, {a.dh_next, a.x, a.s, a.h, a.dx.data, a.ds.data, a.dh.data});
  queue.launch("gru_cell_grad", call.half(), grid_of_columns(a.batch, a.hidden, a.wide), a);
}

float sign_of_update(const Call& call) { return call.param("keeps") == 0 ? 1.f : -1.f; }

void gru_reset(const Call& call, Queue& queue) {
  GruReset a = {call.in("pre"),    call.in("h"), output(call, "rh"),   output(call, "u"),
                call["B"],         call["H"],    sign_of_update(call), 0,
                places_of(call, 2)};
  a.wide = wide(call.half(), a.hidden, {a.pre, a.h, a.rh.data, a.u.data});
  queue.launch("gru_reset", call.half(), grid_of_columns(a.batch, a.hidden, a.wide), a);
}

void gru_reset_grad(const Call& call, Queue& queue) {
  GruResetGrad a = {call.in("drh"),     call.in("du"), call.in("pre"), call.in("h"),         output(call, "dpre"),
                    output(call, "dh"), call["B"],     call["H"],      sign_of_update(call), 0,
                    places_of(call, 2)};
  a.wide = wide(call.half(), a.hidden, {a.drh, a.du, a.pre, a.h, a.dpre.data, a.dh.data});
  queue.launch("gru_reset_grad", call.half(), grid_of_columns(a.batch, a.hidden, a.wide), a);
}

void gru_mix(const Call& call, Queue& queue) {
  GruMix a = {call.in("h"), call.in("u"), call.in("pre"), output(call, "h'"), call["B"], call["H"], 0};
  a.wide = wide(call.half(), a.hidden, {a.h, a.u, a.pre, a.h_next.data});
  queue.launch("gru_mix", call.half(), grid_of_columns(a.batch, a.hidden, a.wide), a);
}

void gru_mix_grad(const Call& call, Queue& queue) {
  GruMixGrad a = {call.in("dh'"),     call.in("h"),         call.in("u"), call.in("pre"), output(call, "dh"),
                  output(call, "du"), output(call, "dpre"), call["B"],    call["H"],      0};
  a.wide = wide(call.half(), a.hidden, {a.dh_next, a.h, a.u, a.pre, a.dh.data, a.du.data, a.dpre.data});
  queue.launch("gru_mix_grad", call.half(), grid_of_columns(a.batch, a.hidden, a.wide), a);
}

void bias_act(const Call& call, Queue& queue) {
  BiasAct a = {
      call.in("x"), call.in("b"), output(call, "y"), call["N"], call["H"], static_cast<int>(call.param("act")), 0};
  a.wide = wide(call.half(), a.hidden, {a.x, a.b, a.y.data});
  queue.launch("bias_act", call.half(), grid_of_columns(a.rows, a.hidden, a.wide), a);
}

void bias_act_grad(const Call& call, Queue& queue) {
  const Long rows = call["N"], hidden = call["H"];
  const Chunks chunks = chunks_of(rows, 1, hidden);
  float* partials = queue.floats(chunks.count * hidden);
  BiasActGrad a = {call.in("dy"),
                   call.in("y"),
                   partials,
                   output(call, "dx"),
                   rows,
                   hidden,
                   chunks.rows,
                   chunks.count,
                   static_cast<int>(call.param("act")),
                   0};
  a.wide = wide(call.half(), hidden, {a.dy, a.y, a.dx.data, partials});
  queue.launch("bias_act_grad", call.half(), grid_of_columns(chunks.count, hidden, a.wide), a);
  sum_rows(queue, call.half(), {partials, output(call, "db"), 1, chunks.count, hidden, 0, hidden});
}

void reverse(const Call& call, Queue& queue, const void* x, Output y) {
  SequenceReverse a = {x, call.in("lengths"), y, call["T"], call["B"], call["R"], call.in_dtype("lengths"), 0};
  a.wide = wide(call.half(), a.rest, {a.x, a.y.data});
  if (y.data != nullptr) {
    queue.launch("sequence_reverse", call.half(), grid_of_columns(a.steps * a.batch, a.rest, a.wide), a);
  }
}

// Through the mask, times what is at `scale`, or times a constant.
void mask(const Call& call, Queue& queue, const void* x, Output y, const void* scale, double constant) {
  ApplyMask a = {x,
                 static_cast<const unsigned char*>(call.in("bits")),
                 static_cast<const float*>(scale),
                 y,
                 call["n"],
                 static_cast<float>(constant),
                 0};
  a.wide = wide(call.half(), 4, {a.x, a.y.data});
  queue.launch("apply_mask", call.half(), grid_of_elements(a.size), a);
}

void sequence_reverse(const Call& call, Queue& queue) { reverse(call, queue, call.in("x"), output(call, "y")); }

void sequence_reverse_grad(const Call& call, Queue& queue) {
  reverse(call, queue, call.in("dy"), output(call, "dx"));
  put_zeros(call, queue, "dlengths", call["B"]);
}

void dropout(const Call& call, Queue& queue) {
  Dropout a = {};
  a.x = call.in("x");
  a.y = output(call, "y");
  a.bits = static_cast<unsigned char*>(call.out("bits"));
  a.size = call["n"];
  a.seed = static_cast<unsigned long long>(call.param("seed"));
  a.offset = static_cast<unsigned long long>(call.param("offset"));
  a.keep = static_cast<float>(call.param("keep"));
  a.scale = static_cast<float>(1 / call.param("keep"));
  a.wide = wide(call.half(), 4, {a.x, a.y.data});
  queue.launch("dropout", call.half(), grid_of_elements(a.size), a);
}

void dropout_grad(const Call& call, Queue& queue) {
  mask(call, queue, call.in("dy"), output(call, "dx"), nullptr, 1 / call.param("keep"));
}

void relu(const Call& call, Queue& queue) {
  Relu a = {call.in("x"), output(call, "y"), static_cast<unsigned char*>(call.out("bits")), call["n"], 0};
  a.wide = wide(call.half(), 4, {a.x, a.y.data});
  queue.launch("relu", call.half(), grid_of_elements(a.size), a);
}

void relu_grad(const Call& call, Queue& queue) { mask(call, queue, call.in("dy"), output(call, "dx"), nullptr, 1); }

void pack_mask(const Call& call, Queue& queue) {
  PackMask a = {call.in("mask"), static_cast<unsigned char*>(call.out("bits")), static_cast<float*>(call.out("scale")),
                call["n"], 0};
  if (a.size == 0) return put_zeros(call, queue, "scale", 1);
  a.wide = wide(call.half(), 4, {a.mask});
  queue.launch("pack_mask", call.half(), grid_of_elements(a.size), a);
}

void pack_mask_grad(const Call& call, Queue& queue) { put_zeros(call, queue, "dmask", call["n"]); }

void apply_mask(const Call& call, Queue& queue) {
  mask(call, queue, call.in("x"), output(call, "y"), call.in("scale"), 0);
}

void apply_mask_grad(const Call& call, Queue& queue) {
  const Output dx = output(call, "dx");
  if (dx.data != nullptr) mask(call, queue, call.in("dy"), dx, call.in("scale"), 0);
  put_zeros(call, queue, "dbits", (call["n"] + 7) / 8);
  put_zeros(call, queue, "dscale", 1);
}

void draw_mask(const Call& call, Queue& queue) {
  DrawMask a = {};
  a.first = call.in("first");
  a.bits = static_cast<unsigned char*>(call.out("bits"));
  a.factor = static_cast<float*>(call.out("factor"));
  a.size = call["N"] * call["Tq"] * call["Tk"];
  a.seed = static_cast<unsigned long long>(call.param("seed"));
  a.offset = static_cast<unsigned long long>(call.param("offset"));
  a.keep = static_cast<float>(call.param("keep"));
  queue.launch("draw_mask", call.half(), grid_of_elements(std::max<Long>(a.size, 1)), a);
}

void draw_mask_grad(const Call& call, Queue& queue) {
  put_zeros(call, queue, "dfirst", 1);
  put_zeros(call, queue, "ditems", call["N"]);
  put_zeros(call, queue, "drows", call["Tq"]);
  put_zeros(call, queue, "dcolumns", call["Tk"]);
}

const CudaKernel kDrawMask("draw_mask", draw_mask);
const CudaKernel kDrawMaskGrad("draw_mask_grad", draw_mask_grad);
const CudaKernel kLstmCell("lstm_cell", lstm_cell);
const CudaKernel kLstmCellGrad("lstm_cell_grad", lstm_cell_grad);
const CudaKernel kGruCell("gru_cell", gru_cell);
const CudaKernel kGruCellGrad("gru_cell_grad", gru_cell_grad);
const CudaKernel kGruReset("gru_reset", gru_reset);
const CudaKernel kGruResetGrad("gru_reset_grad", gru_reset_grad);
const CudaKernel kGruMix("gru_mix", gru_mix);
const CudaKernel kGruMixGrad("gru_mix_grad", gru_mix_grad);
const CudaKernel kBiasAct("bias_act", bias_act);
const CudaKernel kBiasActGrad("bias_act_grad", bias_act_grad);
const CudaKernel kSequenceReverse("sequence_reverse", sequence_reverse);
const CudaKernel kSequenceReverseGrad("sequence_reverse_grad", sequence_reverse_grad);
const CudaKernel kDropout("dropout", dropout);
const CudaKernel kDropoutGrad("dropout_grad", dropout_grad);
const CudaKernel kRelu("relu", relu);
const CudaKernel kReluGrad("relu_grad", relu_grad);
const CudaKernel kPackMask("pack_mask", pack_mask);
const CudaKernel kPackMaskGrad("pack_mask_grad", pack_mask_grad);
const CudaKernel kApplyMask("apply_mask", apply_mask);
const CudaKernel kApplyMaskGrad("apply_mask_grad", apply_mask_grad);

}  // namespace
}  // namespace echo_cuda
