// softmax_output, cross_entropy, linear_cross_entropy: products in tiles. Scores are computed where the probabilities will be; those of float16 in a bounded
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
  // Rows whose scores fit a buffer: whole tiles of them, one at least.
  Long at_once() const {
    const Long tiles = kScoresBytes / (std::max<Long>(1, classes) * 4 * kTile);
    return std::min(rows, std::max<Long>(1, tiles) * kTile);
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

// A block for each row of scores.
Grid grid_of_scores(Long rows, Long classes) {
  Grid grid;
  grid.x = rows;
  grid.block_x = classes > 1024 ? kThreads : 32;
  return grid;
}

// finish(first, rows, scores, prob) makes probabilities of the scores of so many rows from the first on.
template <typename Finish>
void each_scores(const Call& call, Queue& queue, const Finish& finish) {
  const Sizes size(call);
  const bool apart = size.half || call.skips("prob");  // scores are not where the probabilities will be
  const Long at_once = apart ? size.at_once() : size.rows;
  void* const blas_room = queue.room(kBlasBytes);
  float* const buffer = apart ? queue.floats(at_once * size.classes) : nullptr;
  char* const prob = static_cast<char*>(call.out("prob"));
  for (Long first = 0; first < size.rows; first += at_once) {
    const Long rows = std::min(at_once, size.rows - first);
    void* const part = prob == nullptr ? nullptr : prob + size.bytes(first * size.classes);
    float* const scores = apart ? buffer : static_cast<float*>(part);
    scores_of(call, queue, size, first, rows, scores, blas_room);
    finish(first, rows, scores, part);
  }
}

void softmax_output(const Call& call, Queue& queue) {
  const Sizes size(call);
  each_scores(call, queue, [&](Long, Long rows, const float* scores, void* prob) {
    SoftmaxOutput a = {scores, {prob, 0}, rows, size.classes, wide(size.half, size.classes, {prob})};
    queue.launch("softmax_output", size.half, grid_of_scores(rows, size.classes), a);
  });
}

// The outputs of a cross entropy that are one number for each row, from row `first` on.
CrossEntropy entropy_of(const Call& call, bool half, Long first, Long rows) {
  const auto moved = [&](const char* name) {
    Output to = output(call, name);
    if (to.data != nullptr) to.data = static_cast<char*>(to.data) + first * (half ? 2 : 4);
    return to;
  };
  CrossEntropy a = {};
  a.label_type = call.in_dtype("label");
  a.label = static_cast<const char*>(call.in("label")) + first * (a.label_type == 2 ? 2 : 4);
  a.logp = moved("logp"), a.sum = moved("sum");
  a.rows = rows, a.classes = call["V"];
  return a;
}

void cross_entropy(const Call& call, Queue& queue) {
  if (call["V"] == 0) {
    for (const char* name : {"logp", "sum", "most", "logsum"}) put_zeros(call, queue, name, call["N"]);
    return;
  }
  CrossEntropy a = entropy_of(call, call.half(), 0, call["N"]);
  a.x = call.in("x");
  a.most = static_cast<float*>(call.out("most")), a.logsum = static_cast<float*>(call.out("logsum"));
  a.wide = wide(call.half(), a.classes, {a.x});
  queue.launch("cross_entropy", call.half(), grid_of_scores(a.rows, a.classes), a);
}

void linear_cross_entropy(const Call& call, Queue& queue) {
  const Sizes size(call);
  if (size.classes == 0) {
    put_zeros(call, queue, "logp", size.rows);
    return put_zeros(call, queue, "sum", size.rows);
  }
  each_scores(call, queue, [&](Long first, Long rows, const float* scores, void* prob) {
    CrossEntropy a = entropy_of(call, size.half, first, rows);
    a.x = scores, a.prob.data = prob;
    a.wide = wide(size.half, size.classes, {prob});
    queue.launch("linear_cross_entropy", size.half, grid_of_scores(rows, size.classes), a);
  });
}

CrossEntropyGrad entropy_gradient_of(const Call& call) {
  CrossEntropyGrad a = {};
  a.dlogp = call.in("dlogp"), a.dsum = call.in("dsum"), a.label = call.in("label");
  a.rows = call["N"], a.classes = call["V"], a.label_type = call.in_dtype("label");
  return a;
}

void cross_entropy_grad(const Call& call, Queue& queue) {
  CrossEntropyGrad a = entropy_gradient_of(call);
  a.x = call.in("x"), a.dx = output(call, "dx");
  a.most = static_cast<const float*>(call.in("most")), a.logsum = static_cast<const float*>(call.in("logsum"));
  a.wide = wide(call.half(), a.classes, {a.x, a.dx.data});
  put_zeros(call, queue, "dlabel", a.rows);
  if (a.dx.data == nullptr || a.classes == 0) return;
  queue.launch("cross_entropy_grad", call.half(), grid_of_scores(a.rows, a.classes), a);
}

// What the products of the gradients read.
SoftmaxOutputGrad products_of(const Call& call, const Sizes& size) {
  SoftmaxOutputGrad a = {};
  a.x = call.in("x"), a.w = call.in("w"), a.prob = call.in("prob");
  a.rows = size.rows, a.inputs = size.inputs, a.classes = size.classes;
  a.wide = wide(size.half, size.classes, {a.prob});
  a.x_wide = wide(size.half, size.inputs, {a.x}), a.w_wide = wide(size.half, size.inputs, {a.w});
  return a;
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
  SoftmaxOutputGrad a = products_of(call, size);
  const double smooth = call.param("smooth_alpha");
  const Long count = call.param("normalization") == 1 ? std::max<Long>(1, size.rows) : 1;
  a.targets = targets, a.factor = factor;
  a.constant = static_cast<float>(call.param("grad_scale") / static_cast<double>(count));
  a.hit = static_cast<float>(smooth) - 1.f;
  a.miss = size.classes > 1 ? -static_cast<float>(smooth) / static_cast<float>(size.classes - 1) : 0.f;
  return a;
}

void input_gradient(const std::string& kernel, const Call& call, Queue& queue, const Sizes& size, SoftmaxOutputGrad a) {
  const Long tiles = std::max<Long>(1, over(size.rows, kTile) * over(size.inputs, kTile));
  const Long parts = std::max<Long>(1, std::min(kEnoughBlocks / tiles, size.classes / kLeastClasses));
  a.chunk = std::max<Long>(1, over(over(size.classes, parts), kDepth)) * kDepth;
  a.chunks = std::max<Long>(1, over(size.classes, a.chunk));
  const Long elements = size.rows * size.inputs;
  a.partials = a.chunks > 1 ? queue.floats(a.chunks * elements) : nullptr;
  a.dx = output(call, "dx");
  if (a.dx.data == nullptr) return;
  launch_tiles(queue, kernel + "_dx", size.half, size.rows, size.inputs, a.chunks, a);
  if (a.chunks > 1) sum_rows(queue, size.half, {a.partials, a.dx, 1, a.chunks, elements, 0, elements});
}

void bias_gradient(const std::string& kernel, const Call& call, Queue& queue, const Sizes& size, SoftmaxOutputGrad a) {
  const Chunks chunks = chunks_of(size.rows, 1, size.classes);
  a.chunk = chunks.rows, a.chunks = chunks.count;
  a.partials = queue.floats(chunks.count * size.classes);
  const Output db = output(call, "db");
  if (db.data == nullptr) return;
  queue.launch(kernel + "_db", size.half, grid_of_columns(chunks.count, size.classes, a.wide), a);
  sum_rows(queue, size.half, {a.partials, db, 1, chunks.count, size.classes, 0, size.classes});
}

// The gradients of x, w and b by the kernels of this name.
void write_gradients(const std::string& kernel, const Call& call, Queue& queue, const Sizes& size,
                     SoftmaxOutputGrad a) {
  a.dw = output(call, "dw");
  if (a.dw.data != nullptr) launch_tiles(queue, kernel + "_dw", size.half, size.classes, size.inputs, 1, a);
  input_gradient(kernel, call, queue, size, a);
  bias_gradient(kernel, call, queue, size, a);
  put_zeros(call, queue, "dlabel", size.rows);
}

void softmax_output_grad(const Call& call, Queue& queue) {
  const Sizes size(call);
  write_gradients("softmax_output", call, queue, size, gradient_of(call, queue, size));
}

void linear_cross_entropy_grad(const Call& call, Queue& queue) {
  const Sizes size(call);
  CrossEntropyGrad of_loss = entropy_gradient_of(call);
  of_loss.of_rows = static_cast<CrossEntropyRow*>(queue.room(size.rows * sizeof(CrossEntropyRow)));
  Grid grid;
  grid.x = over(size.rows, kThreads);
  queue.launch("cross_entropy_rows", size.half, grid, of_loss);
  SoftmaxOutputGrad a = products_of(call, size);
  a.of_rows = of_loss.of_rows;
  write_gradients("linear_cross_entropy", call, queue, size, a);
}

const CudaKernel kSoftmaxOutput("softmax_output", softmax_output);
const CudaKernel kSoftmaxOutputGrad("softmax_output_grad", softmax_output_grad);
const CudaKernel kCrossEntropy("cross_entropy", cross_entropy);
const CudaKernel kCrossEntropyGrad("cross_entropy_grad", cross_entropy_grad);
const CudaKernel kLinearCrossEntropy("linear_cross_entropy", linear_cross_entropy);
const CudaKernel kLinearCrossEntropyGrad("linear_cross_entropy_grad", linear_cross_entropy_grad);

}  // namespace
}  // namespace echo_cuda
