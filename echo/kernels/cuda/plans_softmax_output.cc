// softmax_output: products in tiles. Scores are computed where the probabilities will be; those of float16 in a bounded
// buffer, for some rows at a time. What is summed over many classes is split between blocks where rows are few.
#include <algorithm>

#include "plans.h"

namespace echo_cuda {
namespace {

#ifndef ECHO_SCORES_BYTES  // tests make it small
#define ECHO_SCORES_BYTES (32 << 20)
#endif
const Long kMostClasses = (1ll << 31) - kBigTile;  // whose numbers, and those of tiles behind them, are int
const Long kScoresBytes = ECHO_SCORES_BYTES;
const Long kEnoughBlocks = 256, kLeastClasses = 1024;  // of a part of dx: its sums are few against what it reads

struct Sizes {
  explicit Sizes(const Call& call) : rows(call["N"]), inputs(call["I"]), classes(call["V"]), half(call.half()) {
    if (classes < kMostClasses) return;
    throw echo::kernels::WrongCall(std::string(call.name()) + ": " + std::to_string(classes) +
                                   " classes are more than a device counts, expected fewer than 2^31 - 128");
  }
  const Long rows, inputs, classes;
  const bool half;

  Long bytes(Long elements) const { return elements * (half ? 2 : 4); }
  // Rows whose scores fit the buffer: whole tiles of them, one at least.
  Long at_once() const {
    const Long tiles = kScoresBytes / (std::max<Long>(1, classes) * 4 * kTile);
    return half ? std::min(rows, std::max<Long>(1, tiles) * kTile) : rows;
  }
};

void scores_of(const Call& call, Queue& queue, const Sizes& size, Long first, Long rows, float* scores,
               void* blas_room) {
  Gemm g = {};
  g.a = static_cast<const char*>(call.in("x")) + size.bytes(first * size.inputs), g.b = call.in("w"),
  g.bias = call.in("b");
  g.c = {scores, 0};
  g.m = rows, g.n = size.classes, g.k = size.inputs;
  g.a_stride = g.b_stride = size.inputs, g.c_stride = size.classes;
  g.a_wide = wide(size.half, size.inputs, {g.a}), g.b_wide = wide(size.half, size.inputs, {g.b});
  multiply(queue, kGemmInputs, size.half, g, blas_room);
}

void softmax_output(const Call& call, Queue& queue) {
  const Sizes size(call);
  const Long at_once = size.at_once();
  void* const blas_room = queue.room(kBlasBytes);
  float* const buffer = size.half ? queue.floats(at_once * size.classes) : nullptr;
  const Output prob = output(call, "prob");
  if (prob.data == nullptr) return;
  for (Long first = 0; first < size.rows; first += at_once) {
    SoftmaxOutput a = {};
    a.rows = std::min(at_once, size.rows - first), a.classes = size.classes;
    a.prob.data = static_cast<char*>(prob.data) + size.bytes(first * size.classes);
    float* const scores = size.half ? buffer : static_cast<float*>(a.prob.data);
    a.scores = scores;
    a.wide = wide(size.half, size.classes, {a.prob.data});
    scores_of(call, queue, size, first, a.rows, scores, blas_room);
    Grid grid;
    grid.x = a.rows;
    grid.block_x = a.classes > 1024 ? kThreads : 32;
    queue.launch("softmax_output", size.half, grid, a);
  }
}

// The constants of the score's gradients, and what they need of the labels.
SoftmaxOutputGrad gradient_of(const Call& call, Queue& queue, const Sizes& size) {
  int* const targets = static_cast<int*>(queue.room(size.rows * sizeof(int)));
  float* const factor = call.param("normalization") == 2 ? queue.floats(1) : nullptr;
  const float scale = static_cast<float>(call.param("grad_scale"));
  const SoftmaxOutputLabels labels = {call.in("label"),
                                      targets,
                                      factor,
                                      size.rows,
                                      size.classes,
                                      scale,
                                      static_cast<float>(call.param("ignore_label")),
                                      call.in_dtype("label"),
                                      call.param("use_ignore") != 0};
  Grid grid;
  grid.x = factor != nullptr ? 1 : over(size.rows, kThreads);
  queue.launch("softmax_output_labels", false, grid, labels);
  SoftmaxOutputGrad a = {};
  const double smooth = call.param("smooth_alpha");
  const Long count = call.param("normalization") == 1 ? std::max<Long>(1, size.rows) : 1;
  a.targets = targets, a.factor = factor;
  a.constant = static_cast<float>(call.param("grad_scale") / static_cast<double>(count));
  a.hit = static_cast<float>(smooth) - 1.f;
  a.miss = size.classes > 1 ? -static_cast<float>(smooth) / static_cast<float>(size.classes - 1) : 0.f;
  a.x = call.in("x"), a.w = call.in("w"), a.prob = call.in("prob");
  a.rows = size.rows, a.inputs = size.inputs, a.classes = size.classes;
  a.wide = wide(size.half, size.classes, {a.prob});
  a.x_wide = wide(size.half, size.inputs, {a.x}), a.w_wide = wide(size.half, size.inputs, {a.w});
  return a;
}

void input_gradient(const Call& call, Queue& queue, const Sizes& size, SoftmaxOutputGrad a) {
  const Long tiles = std::max<Long>(1, over(size.rows, kTile) * over(size.inputs, kTile));
  const Long parts = std::max<Long>(1, std::min(kEnoughBlocks / tiles, size.classes / kLeastClasses));
  a.chunk = std::max<Long>(1, over(over(size.classes, parts), kDepth)) * kDepth;
  a.chunks = std::max<Long>(1, over(size.classes, a.chunk));
  const Long elements = size.rows * size.inputs;
  a.partials = a.chunks > 1 ? queue.floats(a.chunks * elements) : nullptr;
  a.dx = output(call, "dx");
  if (a.dx.data == nullptr) return;
  launch_tiles(queue, "softmax_output_dx", size.half, size.rows, size.inputs, a.chunks, a);
  if (a.chunks > 1) sum_rows(queue, size.half, {a.partials, a.dx, 1, a.chunks, elements, 0, elements});
}

void bias_gradient(const Call& call, Queue& queue, const Sizes& size, SoftmaxOutputGrad a) {
  const Chunks chunks = chunks_of(size.rows, 1, size.classes);
  a.chunk = chunks.rows, a.chunks = chunks.count;
  a.partials = queue.floats(chunks.count * size.classes);
  const Output db = output(call, "db");
  if (db.data == nullptr) return;
  queue.launch("softmax_output_db", size.half, grid_of_columns(chunks.count, size.classes, a.wide), a);
  sum_rows(queue, size.half, {a.partials, db, 1, chunks.count, size.classes, 0, size.classes});
}

void softmax_output_grad(const Call& call, Queue& queue) {
  const Sizes size(call);
  SoftmaxOutputGrad a = gradient_of(call, queue, size);
  a.dw = output(call, "dw");
  if (a.dw.data != nullptr) launch_tiles(queue, "softmax_output_dw", size.half, size.classes, size.inputs, 1, a);
  input_gradient(call, queue, size, a);
  bias_gradient(call, queue, size, a);
  put_zeros(call, queue, "dlabel", size.rows);
}

const CudaKernel kSoftmaxOutput("softmax_output", softmax_output);
const CudaKernel kSoftmaxOutputGrad("softmax_output_grad", softmax_output_grad);

}  // namespace
}  // namespace echo_cuda
