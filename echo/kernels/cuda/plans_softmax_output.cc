// softmax_output, cross_entropy, linear_cross_entropy. Scores are computed where the probabilities will be; those of
// float16 in a bounded buffer, for some rows at a time. Gradients of the scores are in such a buffer, for some classes at
// a time, where cuBLAS multiplies them; else products in tiles make them where they need them. There, what is summed over
// many classes is split between blocks where rows are few.
#include <algorithm>

#include "plans.h"

namespace echo_cuda {
namespace {

#ifndef ECHO_SCORES_BYTES  // tests make it small
#define ECHO_SCORES_BYTES (32 << 20)
#endif
const Long kMostClasses = (1ll << 31) - kBigTile;  // whose numbers, and those of tiles after them, are int
const Long kScoresBytes = ECHO_SCORES_BYTES;
const Long kEnoughBlocks = 256, kLeastClasses = 1024;  // of a part of dx: its sums are few against what it reads
const Long kLeastAtOnce = 256;  // classes of a part for cuBLAS, which reads all of x, and adds to all of dx, for each
// Gradients of float16 scores are kept by their unit, so many times as large: they are as exact as the probabilities.
const float kHalfTimes = 4096;

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

// Sums of dx over chunks of classes, by blocks of their own.
struct InputChunks {
  explicit InputChunks(const Sizes& size) {
    const Long tiles = std::max<Long>(1, over(size.rows, kTile) * over(size.inputs, kTile));
    const Long parts = std::max<Long>(1, std::min(kEnoughBlocks / tiles, size.classes / kLeastClasses));
    classes = std::max<Long>(1, over(over(size.classes, parts), kDepth)) * kDepth;
    count = std::max<Long>(1, over(size.classes, classes));
    bytes = count > 1 ? count * size.rows * size.inputs * 4 : 0;
  }
  Long classes, count, bytes;
};

// Parts of the scores' gradients, with all rows where these leave a part enough classes, and the room that they need.
struct Parts {
  explicit Parts(const Sizes& size) {
    const Long of_one = size.bytes(1), padded = std::max<Long>(1, over(size.classes, 8)) * 8;
    const Long least = std::min(padded, kLeastAtOnce);
    rows = std::max<Long>(1, std::min(size.rows, kScoresBytes / (least * of_one)));
    // of float16, dw has float32 sums: as many numbers as classes by inputs, where rows are few
    const Long of_class = std::max(rows * of_one, size.half ? size.inputs * 4 : 0);
    classes = std::min(padded, std::max(least, kScoresBytes / of_class / kTile * kTile));
    dx_at = over(size.bytes(rows * classes), 256) * 256;
    dw_at = dx_at + (size.half ? over(size.rows * size.inputs * 4, 256) * 256 : 0);
    bytes = dw_at + (size.half ? classes * size.inputs * 4 : 0);
  }
  Long rows, classes;  // of a part, at most; classes are a multiple of 8
  Long dx_at, dw_at;  // of float32 sums, after the part
  Long bytes;
};

// What the gradients of scores of a call are made of.
struct ScoreGradients {
  std::string kernels;  // their names, but for the ends
  SoftmaxOutputGrad products;
  // Of float16: what products leave out, and multiply their results by.
  const float* unit;  // that of a cross entropy's rows
  float constant;
};

// dx and dw of a call by cuBLAS, part after part.
class PartsByBlas {
 public:
  PartsByBlas(const Call& call, Queue& queue, const Sizes& size, const ScoreGradients& of, char* room, void* blas_room)
      : queue_(queue),
        size_(size),
        parts_(size),
        of_(of),
        scores_(room),
        blas_room_(blas_room),
        dx_(output(call, "dx")),
        dw_(output(call, "dw")),
        dx_sums_(size.half ? Output{room + parts_.dx_at, 0} : dx_),
        dw_sums_(size.half ? Output{room + parts_.dw_at, 0} : dw_) {}

  // Nothing of what is empty.
  bool takes() const {
    const Long rows = std::min(parts_.rows, size_.rows), classes = std::min(parts_.classes, size_.classes);
    return queue_.takes(to_inputs(), size_.half, dx_of(0, rows, 0, classes)) &&
           queue_.takes(to_weights(), size_.half, dw_of(0, rows, 0, classes));
  }

  void run() const {
    if (dx_.data == nullptr && dw_.data == nullptr) return;
    for (Long first = 0; first < size_.classes; first += parts_.classes) {
      const Long classes = std::min(parts_.classes, size_.classes - first);
      for (Long row = 0; row < size_.rows; row += parts_.rows) {
        const Long rows = std::min(parts_.rows, size_.rows - row);
        put_scores(row, rows, first, classes);
        if (dw_.data != nullptr) {
          multiply(queue_, to_weights(), size_.half, dw_of(row, rows, first, classes), blas_room_);
        }
        if (dx_.data != nullptr) {
          multiply(queue_, to_inputs(), size_.half, dx_of(row, rows, first, classes), blas_room_);
        }
      }
      if (size_.half) put_sums(dw_sums_, dw_, first * size_.inputs, classes * size_.inputs);
    }
    if (size_.half) put_sums(dx_sums_, dx_, 0, size_.rows * size_.inputs);
  }

 private:
  const GemmKernel& to_inputs() const { return size_.half ? kGemmScoreInputs : kGemmGates; }
  const GemmKernel& to_weights() const { return size_.half ? kGemmScoreWeights : kGemmWeights; }
  static Long stride(Long classes) { return over(classes, 8) * 8; }
  const char* at(const void* array, Long elements) const {
    return static_cast<const char*>(array) + size_.bytes(elements);
  }
  static Output moved(Output sums, Long floats, bool add) {
    return {sums.data == nullptr ? nullptr : static_cast<float*>(sums.data) + floats, add || sums.add != 0 ? 1 : 0};
  }

  void put_scores(Long row, Long rows, Long first, Long classes) const {
    ScoreGradientPart part = {};
    static_cast<SoftmaxOutputGrad&>(part) = of_.products;
    part.to = scores_, part.times = 1;
    part.first_row = row, part.part_rows = rows, part.first_class = first, part.part_classes = classes;
    part.stride = stride(classes);
    if (size_.half) part.factor = nullptr, part.constant = 1, part.unit = of_.unit, part.times = kHalfTimes;
    queue_.launch(of_.kernels + "_ds", size_.half, grid_of_columns(rows, classes, part.wide), part);
  }

  Gemm dx_of(Long row, Long rows, Long first, Long classes) const {
    Gemm g = {};
    g.a = scores_, g.b = at(of_.products.w, first * size_.inputs);
    g.c = moved(dx_sums_, row * size_.inputs, first > 0);
    g.m = rows, g.n = size_.inputs, g.k = classes;
    return with_strides(g, classes);
  }

  Gemm dw_of(Long row, Long rows, Long first, Long classes) const {
    Gemm g = {};
    g.a = scores_, g.b = at(of_.products.x, row * size_.inputs);
    g.c = moved(dw_sums_, size_.half ? 0 : first * size_.inputs, row > 0);
    g.m = classes, g.n = size_.inputs, g.k = rows;
    return with_strides(g, classes);
  }

  Gemm with_strides(Gemm g, Long classes) const {
    g.a_stride = stride(classes), g.b_stride = g.c_stride = size_.inputs;
    g.a_wide = 1, g.b_wide = wide(size_.half, size_.inputs, {g.b});
    return g;
  }

  void put_sums(Output from, Output to, Long first, Long count) const {
    if (to.data == nullptr) return;
    PutScaled a = {};
    a.in = static_cast<const float*>(from.data), a.out = {const_cast<char*>(at(to.data, first)), to.add};
    a.factor = of_.unit != nullptr ? of_.unit : of_.products.factor;
    a.constant = of_.constant / kHalfTimes;
    a.size = count, a.wide = wide(true, count, {a.in, a.out.data});
    queue_.launch("put_scaled", true, grid_of_elements(count), a);
  }

  Queue& queue_;
  const Sizes& size_;
  const Parts parts_;
  const ScoreGradients& of_;
  char* const scores_;
  void* const blas_room_;
  const Output dx_, dw_, dx_sums_, dw_sums_;
};

void by_tiles(const Call& call, Queue& queue, const Sizes& size, const ScoreGradients& of, void* room) {
  SoftmaxOutputGrad a = of.products;
  a.dw = output(call, "dw");
  if (a.dw.data != nullptr) launch_tiles(queue, of.kernels + "_dw", size.half, size.classes, size.inputs, 1, a);
  a.dx = output(call, "dx");
  if (a.dx.data == nullptr) return;
  const InputChunks chunks(size);
  a.chunk = chunks.classes, a.chunks = chunks.count;
  a.partials = a.chunks > 1 ? static_cast<float*>(room) : nullptr;
  launch_tiles(queue, of.kernels + "_dx", size.half, size.rows, size.inputs, a.chunks, a);
  const Long elements = size.rows * size.inputs;
  if (a.chunks > 1) sum_rows(queue, size.half, {a.partials, a.dx, 1, a.chunks, elements, 0, elements});
}

void bias_gradient(const Call& call, Queue& queue, const Sizes& size, const ScoreGradients& of) {
  SoftmaxOutputGrad a = of.products;
  const Chunks chunks = chunks_of(size.rows, 1, size.classes);
  a.chunk = chunks.rows, a.chunks = chunks.count;
  a.partials = queue.floats(chunks.count * size.classes);
  const Output db = output(call, "db");
  if (db.data == nullptr) return;
  queue.launch(of.kernels + "_db", size.half, grid_of_columns(chunks.count, size.classes, a.wide), a);
  sum_rows(queue, size.half, {a.partials, db, 1, chunks.count, size.classes, 0, size.classes});
}

// The gradients of x, w and b. Whether there is a cuBLAS changes nothing about the room: one may be loaded at any time.
void write_gradients(const Call& call, Queue& queue, const Sizes& size, const ScoreGradients& of) {
  void* const blas_room = queue.room(kBlasBytes);
  char* const room = static_cast<char*>(queue.room(std::max(Parts(size).bytes, InputChunks(size).bytes)));
  if (!queue.measures()) {
    const PartsByBlas parts(call, queue, size, of, room, blas_room);
    if (parts.takes())
      parts.run();
    else
      by_tiles(call, queue, size, of, room);
  }
  bias_gradient(call, queue, size, of);
  put_zeros(call, queue, "dlabel", size.rows);
}

void softmax_output_grad(const Call& call, Queue& queue) {
  const Sizes size(call);
  const SoftmaxOutputGrad a = gradient_of(call, queue, size);
  write_gradients(call, queue, size, {"softmax_output", a, nullptr, a.factor != nullptr ? 1 : a.constant});
}

void linear_cross_entropy_grad(const Call& call, Queue& queue) {
  const Sizes size(call);
  CrossEntropyGrad of_loss = entropy_gradient_of(call);
  of_loss.of_rows = static_cast<CrossEntropyRow*>(queue.room(size.rows * sizeof(CrossEntropyRow)));
  of_loss.unit = size.half ? queue.floats(1) : nullptr;
  Grid grid;
  grid.x = size.half ? 1 : over(size.rows, kThreads);
  queue.launch("cross_entropy_rows", size.half, grid, of_loss);
  SoftmaxOutputGrad a = products_of(call, size);
  a.of_rows = of_loss.of_rows;
  write_gradients(call, queue, size, {"linear_cross_entropy", a, of_loss.unit, 1});
}

const CudaKernel kSoftmaxOutput("softmax_output", softmax_output);
const CudaKernel kSoftmaxOutputGrad("softmax_output_grad", softmax_output_grad);
const CudaKernel kCrossEntropy("cross_entropy", cross_entropy);
const CudaKernel kCrossEntropyGrad("cross_entropy_grad", cross_entropy_grad);
const CudaKernel kLinearCrossEntropy("linear_cross_entropy", linear_cross_entropy);
const CudaKernel kLinearCrossEntropyGrad("linear_cross_entropy_grad", linear_cross_entropy_grad);

}  // namespace
}  // namespace echo_cuda
