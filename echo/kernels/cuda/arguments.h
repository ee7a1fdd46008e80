// What each CUDA kernel takes: one struct, by value. The launcher fills them, the device code reads them.
//
// places: for each gate of a cell four bits, the lowest for the first, which part of its array it is.
//
// Floating arrays are float32 or float16, as the kernel's name ends in _f32 or _f16; float* is always float32. "wide"
// is 1 where rows start on a boundary of four elements and have a multiple of four: then arrays are read four at a
// time.
#ifndef ECHO_KERNELS_CUDA_ARGUMENTS_H_
#define ECHO_KERNELS_CUDA_ARGUMENTS_H_

namespace echo_cuda {

typedef long long Long;

struct Output {
  void* data;  // null: not wanted
  int add;     // 1: add to what is there
};

enum { kThreads = 256 };       // of every block
enum { kWarps = kThreads / 32 };
enum { kTile = 64 };           // rows and columns of a small matrix tile
enum { kBigTile = 128 };
enum { kInOrder = 0x3210 };    // places of gates
enum { kDepth = 16 };          // terms of a product that a tile, or a warp of a layer's step, takes at a time
// Batch rows and hidden units that a block of a layer's step handles at a time: forward on many multiprocessors, for
// small batches, and on fewer multiprocessors; backward.
enum { kStepRows = 64, kStepUnits = 4 };
enum { kSmallRows = 32, kSmallUnits = 4 };
enum { kWideRows = 32, kWideUnits = 8 };
enum { kBackRows = 64, kBackUnits = 8 };

// Shared memory of a block of steps in front of its weights: a slice of [term][row] for each warp, rows padded to a
// stride, later the warps' sums of [row][column].
template <int rows, int columns>
struct StepRoom {
  enum { kStride = rows + 4, kSlices = kWarps * kDepth * kStride, kSums = kWarps * rows * columns };
  enum { kFloats = kSlices > kSums ? kSlices : kSums };
};

struct LstmCell {
  const void *pre, *c;
  Output h, c_next;
  Long batch, hidden;
  int wide, places;
};

struct LstmCellGrad {
  const void *dh, *dc_next, *pre, *c;
  Output dpre, dc;
  Long batch, hidden;
  int wide, places;
};

struct LstmNormCell {
  const void *pre, *c, *gamma, *beta;
  Output h, c_next;
  Long batch, hidden;
  float eps;
  int wide, places;
};

struct LstmNormCellGrad {
  const void *dh, *dc_next, *pre, *c, *gamma, *beta;
  float* statistics;  // [batch, 2]: mean, 1 / deviation
  float* partials;    // [2, chunks, hidden]: sums over a chunk of rows for gamma, beta
  Output dpre, dc;
  Long batch, hidden, chunk, chunks;
  float eps;
  int wide, places;
};

struct GruCell {
  const void *x, *s, *h;
  Output h_next;
  Long batch, hidden;
  int wide, places;
};

struct GruCellGrad {
  const void *dh_next, *x, *s, *h;
  Output dx, ds, dh;
  Long batch, hidden;
  int wide, places;
};

struct GruReset {
  const void *pre, *h;
  Output rh, u;
  Long batch, hidden;
  float sign;  // of z in the weight of the new state
  int wide, places;
};

struct GruResetGrad {
  const void *drh, *du, *pre, *h;
  Output dpre, dh;
  Long batch, hidden;
  float sign;
  int wide, places;
};

struct GruMix {
  const void *h, *u, *pre;
  Output h_next;
  Long batch, hidden;
  int wide;
};

struct GruMixGrad {
  const void *dh_next, *h, *u, *pre;
  Output dh, du, dpre;
  Long batch, hidden;
  int wide;
};

struct MlpScore {
  const void *keys, *query, *v, *gamma, *beta;
  Output score;
  Long batch, steps, hidden;
  float eps;
  int wide;
};

struct MlpScoreGrad {
  const void *dscore, *keys, *query, *v, *gamma, *beta;
  float* statistics;  // [batch, steps, 4], with gamma: mean, 1 / deviation, means of gradient and gradient * value
  float* partials;    // [4, chunks, batch, hidden]: sums over a chunk of steps for query, v, gamma, beta
  Output dkeys;
  Long batch, steps, hidden, chunk, chunks;
  float eps;
  int wide;
};

struct WeightedSum {
  const void *w, *values;
  Output out;
  Long batch, steps, hidden;
  int wide;
};

struct WeightedSumGrad {
  const void *dout, *w, *values;
  Output dw, dvalues;
  Long batch, steps, hidden;
  int wide;
};

struct LayerNorm {
  const void *x, *gamma, *beta;
  Output y;
  Long rows, hidden;
  float eps;
  int wide;
};

struct LayerNormGrad {
  const void *dy, *x, *gamma;
  float* statistics;  // [rows, 2]: mean, 1 / deviation
  float* partials;    // [2, chunks, hidden]: sums over a chunk of rows for gamma, beta
  Output dx;
  Long rows, hidden, chunk, chunks;
  float eps;
  int wide;
};

struct BiasAct {
  const void *x, *b;
  Output y;
  Long rows, hidden;
  int act, wide;
};

struct BiasActGrad {
  const void *dy, *y;  // y: null where act is none
  float* partials;     // [chunks, hidden]; null: the sums are not wanted
  Output dx;
  Long rows, hidden, chunk, chunks;
  int act, wide;
};

// out[g, j] = sum over r of in[g * group_stride + r * row_stride + j]
struct SumRows {
  const float* in;
  Output out;
  Long groups, rows, columns, group_stride, row_stride;
};

struct SequenceReverse {
  const void *x, *lengths;
  Output y;
  Long steps, batch, rest;
  int lengths_type, wide;
};

struct Dropout {
  const void* x;
  Output y;
  unsigned char* bits;
  Long size;
  unsigned long long seed, offset;
  float keep, scale;  // scale: 1 / keep
  int wide;
};

struct Relu {
  const void* x;
  Output y;
  unsigned char* bits;
  Long size;
  int wide;
};

// y = x * factor where the bit is 1, else x * 0; the factor is *scale, or constant where scale is null.
struct ApplyMask {
  const void* x;
  const unsigned char* bits;
  const float* scale;
  Output y;
  Long size;
  float constant;
  int wide;
};

// A bit for each element that is not 0, and the first of those elements; either may be null.
struct PackMask {
  const void* mask;
  unsigned char* bits;
  float* scale;
  Long size;
  int wide;
};

// What scores and weights are made of: lengths of items, or of queries; a mask [batches, heads, rows, keys], of which a
// stride is 0 where it is the same for all; dropout, as bits and a factor.
enum { kMaskAdds = 0, kMaskSelects = 1, kMaskMultiplies = 2 };

struct Attention {
  enum { kMasked = 1 };
  const void *q, *k, *v, *lengths, *mask;
  const unsigned char* bits;
  const float* factor;
  Output out, lse;
  Long items, queries, keys, depth, value_depth, heads;
  Long batch_stride, head_stride, row_stride;  // of the mask
  float scale, fill;
  int masking, lengths_type, per_query, wide;
};

struct AttentionGrad {
  enum { kMasked = 1 };
  const void *q, *k, *v, *lengths, *mask;
  const unsigned char* bits;
  const float* factor;
  const void *dout, *out;
  const float* lse;
  float* statistics;  // [items, queries, 4]: lse, the logarithm of the sum of the weights that it gives, dout . out
  Output dq, dk, dv;
  Long items, queries, keys, depth, value_depth, heads;
  Long batch_stride, head_stride, row_stride;
  float scale, fill;
  int masking, lengths_type, per_query, wide;
};

// The same of calls that have no mask, no dropout and no lengths of queries.
struct AttentionPlain : Attention {
  enum { kMasked = 0 };
};

struct AttentionGradPlain : AttentionGrad {
  enum { kMasked = 0 };
};

// The bits of a Dropout. first [1] is that of its first element: 1 where nothing is dropped.
struct DrawMask {
  const void* first;
  unsigned char* bits;
  float* factor;
  Long size;
  unsigned long long seed, offset;
  float keep;
};

// Probabilities of rows of scores, which may be the same memory.
struct SoftmaxOutput {
  const float* scores;
  Output prob;
  Long rows, classes;
  int wide;
};

struct SoftmaxOutputLabels {
  const void* label;
  int* targets;  // [rows]: the class of the label; kNoTarget: none; kIgnored: the row has no gradient
  float* factor;  // grad_scale by the number of labels that are not ignore_label; null: not wanted
  Long rows, classes;
  float grad_scale, ignore_label;
  int label_type, use_ignore;
};

enum { kNoTarget = -1, kIgnored = -2 };

// log softmax of scores: at the label, and summed over the classes.
struct CrossEntropy {
  const void *x, *label;
  Output logp, sum;
  float *most, *logsum;  // [rows]; null where prob is kept
  Output prob;  // of the type of the call
  Long rows, classes;
  int label_type, wide;
};

// The gradient of a row's scores: slope * p + rest, and `hit` more at the target, where p are the probabilities.
struct CrossEntropyRow {
  float slope, rest, hit;
  int target;
};

struct CrossEntropyGrad {
  const void *dlogp, *dsum, *x, *label;
  const float *most, *logsum;
  CrossEntropyRow* of_rows;  // not null: these are all that is wanted
  float* unit;               // the largest of their numbers, 1 where all are 0; null: not wanted
  Output dx;
  Long rows, classes;
  int label_type, wide;
};

// The gradient of a score: (prob + hit) * factor at the label, (prob + miss) * factor elsewhere.
struct SoftmaxOutputGrad {
  const void *x, *w, *prob;
  const int* targets;   // [rows]
  const CrossEntropyRow* of_rows;  // [rows]; after a cross entropy, instead of targets and the numbers below
  const float* factor;  // null: it is `constant`
  float* partials;      // [chunks, ...]: sums over chunks, of classes for dx and of rows for db; null: dx itself
  Output dx, dw;
  Long rows, inputs, classes, chunk, chunks;
  float constant, hit, miss;
  int wide, x_wide, w_wide;  // the first of prob
};

// A part of the gradients of scores as an array, of the type of the call: rows of `stride` numbers. They are multiplied
// by `times`, and divided by *unit where that is not null.
struct ScoreGradientPart : SoftmaxOutputGrad {
  void* to;
  const float* unit;
  Long first_row, part_rows, first_class, part_classes, stride;
  float times;
};

// out = in * constant, and * *factor where that is not null.
struct PutScaled {
  const float* in;
  const float* factor;
  Output out;
  Long size;
  float constant;
  int wide;
};

// c[m, n] = a b (+ bias + bias2, of n elements each, null where there is none); strides in elements.
struct Gemm {
  const void *a, *b, *bias, *bias2;
  Output c;
  Long m, n, k, a_stride, b_stride, c_stride;
  int a_wide, b_wide;
};

// Steps of a layer in the order of time (or against it): one, or many with a grid barrier.
struct LayerSteps {
  const float* gates;  // [steps, batch, gates] of this call: x wi' + bi, and bh but of a GRU
  const void *wh, *h_start;
  const void *bh, *start;        // bh: of a GRU; start: the first cells (of a GRU states), null after the first call
  float* cells;                  // [batch, hidden]: c, or h of a GRU, after the last step; none of a vanilla RNN
  void* y;                       // [all steps, batch, hidden]
  Output pre, h_last, c_last;    // the last two: null but in the last call
  Long first, steps, direction;  // of time; gates are those of times from min(first, last) on
  Long batch, hidden;
  unsigned* barrier;  // 0 before the call; null: one step only
  int wide, relu;     // relu: a vanilla RNN's, instead of tanh
  int places;         // of gates
};

struct LstmCells {
  const void *pre, *c0;
  float* cells;  // [steps, batch, hidden]
  Long steps, batch, hidden;
  int reverse, places;
};

// Steps of the gradient, in the order in which they are computed. A step before the first of the layer gives dh0 and
// dc0.
struct LayerBackSteps {
  const void *dy, *dh_last, *dc_last, *wh, *pre, *y;
  const void* start;          // c0, or h0 of a GRU
  const float* cells;         // of an LSTM, [all steps, batch, hidden]
  float* dinputs;  // of a GRU, [steps, batch, hidden] of this call: the input's part of n, then its gradient
  float* dgates;  // [steps, batch, gates] of this call, of the products with the state
  const float* dgates_after;  // [batch, gates] of the step computed before this call; null: the first call
  float* past;  // [batch, hidden]: dc, or what goes past the gates of a GRU to the state before
  Output dh0, dc0;  // null but in the last call
  Long first, steps, direction, all_steps;
  Long batch, hidden;
  unsigned* barrier;
  int finish, wide, relu, places;  // finish: compute dh0 and dc0 after the steps
};

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_ARGUMENTS_H_
