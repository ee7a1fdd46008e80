#include "table.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace echo {
namespace kernels {
namespace {

// A tensor is NAME[AXES]:TYPE?TOGETHER. Without a type it is floating, of the one type that all these have in a call;
// "lengths" are float32, float16 or int32. "?" makes it optional, there exactly when TOGETHER is. The last parameter may
// be left out where it ends in "?": then it is 0.
struct Row {
  const char *name, *inputs, *outputs, *params;
  const char* reads;  // what NAME_grad reads
};

// What is said here in a few words is NAME in tests/support/reference/ in full.
const Row kRows[] = {
    // Gates i f g o: c' = sigmoid(f) c + sigmoid(i) tanh(g); h = sigmoid(o) tanh(c'). order: number n has the n-th
    // permutation of their places, lexicographically; 0 is i f g o. Of a GRU it is that of r z n.
    {"lstm_cell", "pre[B,4H] c[B,H]", "h[B,H] c'[B,H]", "order?", "dh dc' pre c"},
    // lstm_cell with h = sigmoid(o) tanh(norm(c')), norm the layer norm over H.
    {"lstm_norm_cell", "pre[B,4H] c[B,H] gamma[H] beta[H]", "h[B,H] c'[B,H]", "eps order?", "dh dc' pre c gamma beta"},
    // x from the input, s from the state, gates r z n: n = tanh(x_n + sigmoid(x_r + s_r) s_n); h' = (1 - z) n + z h,
    // z = sigmoid(x_z + s_z).
    {"gru_cell", "x[B,3H] s[B,3H] h[B,H]", "h'[B,H]", "order?", "dh' x s h"},
    // A GRU whose reset gate stands in front of the product, gates r z. What that product takes: rh = sigmoid(r) h. The
    // weight of the new state: u = sigmoid(z), with keeps 1 sigmoid(-z). order: that of r z.
    {"gru_reset", "pre[B,2H] h[B,H]", "rh[B,H] u[B,H]", "keeps order?", "drh du pre h"},
    // After the product: h' = (1 - u) h + u tanh(pre).
    {"gru_mix", "h[B,H] u[B,H] pre[B,H]", "h'[B,H]", "", "dh' h u pre"},
    // v . tanh(norm(keys + query)), norm the layer norm over H where gamma is there.
    {"mlp_score", "keys[B,T,H] query[B,H] v[H] gamma[H]?beta beta[H]?gamma", "score[B,T]", "eps",
     "dscore keys query v gamma beta"},
    // The sum over T of w values.
    {"weighted_sum", "w[B,T] values[B,T,H]", "out[B,H]", "", "dout w values"},
    // softmax(scores) v, scores scale q k', over the first lengths[n] keys, or lengths[n * Tq + t] of them (all where
    // absent; 0: out is 0, lse -inf). root 1: scores are divided by the root of D. Item n is batch n / heads, head n %
    // heads; Gb, Gh and R may be 1 instead of batches, heads and Tq. The mask: masking 0 is added to the scores; 1 and 2 put fill in their place where
    // it is 0, and with 2 the weights are multiplied by it. Weights then count factor times where their bit is 1, else
    // nothing: dropout. lse: the logarithm of the softmax's denominator. No gradient for what comes after v (0).
    {"attention",
     "q[N,Tq,D] k[N,Tk,D] v[N,Tk,Dv] lengths[L]:lengths? mask[Gb,Gh,R,Tk]? bits[(N*Tq*Tk+7)/8]:uint8?factor "
     "factor[1]:float32?bits",
     "out[N,Tq,Dv] lse[N,Tq]:float32", "scale masking fill root", "dout q k v lengths mask bits factor out lse"},
    // The bits of a Dropout of N Tq Tk elements, and its factor 1 / keep; first is that Dropout of a single one, which is
    // also the first bit. Where it is 1 nothing is dropped and the factor is 1. Other bits are drawn as in dropout.
    // items, rows and columns give sizes alone. No gradient (zeros).
    {"draw_mask", "first[1] items[N] rows[Tq] columns[Tk]", "bits[(N*Tq*Tk+7)/8]:uint8 factor[1]:float32",
     "keep seed offset", ""},
    {"layer_norm", "x[N,H] gamma[H] beta[H]", "y[N,H]", "eps", "dy x gamma"},
    // act(x + b), act 0 relu, 1 sigmoid, 2 tanh, 3 softrelu, 4 none.
    {"bias_act", "x[N,H] b[H]", "y[N,H]", "act", "dy y"},
    // y[t,b] = x[lengths[b]-1-t, b] where t < lengths[b], else x[t,b]; all T where absent. The gradient does that to dy.
    {"sequence_reverse", "x[T,B,R] lengths[B]:lengths?", "y[T,B,R]", "", "dy lengths"},
    // y = x / keep where the bit is 1, else 0 x. Bit i of byte j is element 8j+i. On the CPU with random != NULL draws
    // are those of MXNet's Dropout (mt19937 states), otherwise of Philox4x32-10 from seed and offset.
    {"dropout", "x[n]", "y[n] bits[(n+7)/8]:uint8", "keep seed offset", "dy bits"},
    // The bit is x > 0; a NaN stays a NaN, as in MXNet.
    {"relu", "x[n]", "y[n] bits[(n+7)/8]:uint8", "", "dy bits"},
    // A mask of 0 and one other value, as MXNet's Dropout of ones is: the bit is mask != 0; scale the first element that
    // is not 0, or 0. No gradient (zeros).
    {"pack_mask", "mask[n]", "bits[(n+7)/8]:uint8 scale[1]:float32", "", ""},
    // y = scale x where the bit is 1, else 0 x. No gradient for bits and scale (0).
    {"apply_mask", "x[n] bits[(n+7)/8]:uint8 scale[1]:float32", "y[n]", "", "dy bits scale"},
    // pre[t] = x[t] wi' + bi + h[t-1] wh' + bh, then lstm_cell; reverse 1 goes from T-1 to 0.
    {"lstm_layer", "x[T,B,I] wi[4H,I] bi[4H] wh[4H,H] bh[4H] h0[B,H] c0[B,H]", "y[T,B,H] hT[B,H] cT[B,H] pre[T,B,4H]",
     "reverse order?", "dy dhT dcT x wi bi wh bh h0 c0 y pre"},
    // The same for gru_cell; pre: x_r + s_r, x_z + s_z and s_n.
    {"gru_layer", "x[T,B,I] wi[3H,I] bi[3H] wh[3H,H] bh[3H] h0[B,H]", "y[T,B,H] hT[B,H] pre[T,B,3H]", "reverse",
     "dy dhT x wi bi wh h0 y pre"},
    // y[t] = act(x[t] wi' + bi + y[t-1] wh' + bh), act 0 relu, 2 tanh.
    {"rnn_layer", "x[T,B,I] wi[H,I] bi[H] wh[H,H] bh[H] h0[B,H]", "y[T,B,H] hT[B,H]", "act reverse",
     "dy dhT x wi wh h0 y"},
    // softmax(x w' + b) and, whatever the gradient of prob, the gradient of MXNet's SoftmaxOutput: (prob - target) *
    // grad_scale / count; the target 1 - smooth_alpha at the label and smooth_alpha / (V - 1) elsewhere; with
    // use_ignore nothing where the label is ignore_label; count 1 (normalization 0), N (1), or how many labels are not
    // ignore_label (2).
    {"softmax_output", "x[N,I] w[V,I] b[V]? label[N]:lengths", "prob[N,V]",
     "grad_scale use_ignore ignore_label normalization smooth_alpha", "x w label prob"},
    // log softmax(x) at the label (towards 0, and into 0..V-1, as MXNet's pick has it), and its sum over all classes. most:
    // the largest score; logsum: the logarithm of the sum of exponentials below it.
    {"cross_entropy", "x[N,V] label[N]:lengths", "logp[N] sum[N] most[N]:float32 logsum[N]:float32", "",
     "dlogp dsum x label most logsum"},
    // The same of x w' + b, whose softmax is prob.
    {"linear_cross_entropy", "x[N,I] w[V,I] b[V]? label[N]:lengths", "logp[N] sum[N] prob[N,V]", "",
     "dlogp dsum x w label prob"},
};

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> found;
  for (std::string word; stream >> word;) found.push_back(word);
  return found;
}

Axis parse_axis(const std::string& text, std::vector<std::string>* symbols) {
  Axis axis;
  axis.bits = text[0] == '(';
  size_t begin = axis.bits ? 1 : 0, end = begin;
  while (std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
  if (end > begin) axis.factor = std::stoll(text.substr(begin, end - begin));
  for (begin = end; begin < text.size() && std::isalpha(static_cast<unsigned char>(text[begin])); begin = end + 1) {
    for (end = begin; end < text.size() && std::isalpha(static_cast<unsigned char>(text[end]));) ++end;
    const std::string symbol = text.substr(begin, end - begin);
    auto at = std::find(symbols->begin(), symbols->end(), symbol);
    if (at == symbols->end()) at = symbols->insert(at, symbol);
    (axis.symbol < 0 ? axis.symbol : axis.times.emplace_back()) = static_cast<int>(at - symbols->begin());
    if (end == text.size() || text[end] != '*') break;
  }
  return axis;
}

TensorSpec parse_tensor(const std::string& text, std::vector<std::string>* symbols) {
  TensorSpec spec;
  const size_t open = text.find('['), close = text.find(']');
  spec.name = text.substr(0, open);
  spec.shape = text.substr(open, close - open + 1);
  std::istringstream axes(text.substr(open + 1, close - open - 1));
  for (std::string axis; std::getline(axes, axis, ',');) spec.axes.push_back(parse_axis(axis, symbols));
  const std::string rest = text.substr(close + 1);
  const size_t mark = rest.find('?');
  if (mark != std::string::npos) {
    spec.optional = true;
    spec.together = rest.substr(mark + 1);
  }
  const std::string type = rest.substr(0, mark);
  if (type == ":float32") spec.type = Type::kFloat32;
  if (type == ":uint8") spec.type = Type::kUint8;
  if (type == ":lengths") spec.type = Type::kLengths;
  return spec;
}

Kernel forward_of(const Row& row) {
  Kernel kernel;
  kernel.name = row.name;
  kernel.params = words(row.params);
  if (!kernel.params.empty() && kernel.params.back().back() == '?') {
    kernel.params.back().pop_back();
    kernel.least_params = kernel.params.size() - 1;
  } else {
    kernel.least_params = kernel.params.size();
  }
  for (const std::string& text : words(row.inputs)) kernel.inputs.push_back(parse_tensor(text, &kernel.symbols));
  for (const std::string& text : words(row.outputs)) kernel.outputs.push_back(parse_tensor(text, &kernel.symbols));
  return kernel;
}

// Gradients of the outputs, inputs, outputs; the gradients of the inputs.
Kernel backward_of(const Row& row, const Kernel& forward) {
  Kernel kernel = forward;
  kernel.name += "_grad";
  kernel.is_grad = true;
  kernel.inputs.clear();
  kernel.outputs.clear();
  for (TensorSpec spec : forward.outputs) {
    spec.name = "d" + spec.name;
    spec.optional = spec.gradient = true;
    kernel.inputs.push_back(spec);
  }
  for (const TensorSpec& spec : forward.inputs) kernel.inputs.push_back(spec);
  for (const TensorSpec& spec : forward.outputs) kernel.inputs.push_back(spec);
  const std::vector<std::string> reads = words(row.reads);
  for (TensorSpec& spec : kernel.inputs) spec.read = std::count(reads.begin(), reads.end(), spec.name) != 0;
  for (TensorSpec spec : forward.inputs) {
    spec.name = "d" + spec.name;
    spec.optional = true;
    spec.together.clear();
    kernel.outputs.push_back(spec);
  }
  return kernel;
}

std::vector<Kernel> build() {
  std::vector<Kernel> kernels;
  for (const Row& row : kRows) {
    const Kernel forward = forward_of(row);
    kernels.push_back(forward);
    kernels.push_back(backward_of(row, forward));
  }
  return kernels;
}

}  // namespace

const std::vector<Kernel>& all_kernels() {
  static const std::vector<Kernel> kernels = build();
  return kernels;
}

const Kernel* find_kernel(const char* name) {
  const std::vector<Kernel>& kernels = all_kernels();
  const auto is_it = [name](const Kernel& kernel) { return kernel.name == name; };
  const auto at = std::find_if(kernels.begin(), kernels.end(), is_it);
  return at == kernels.end() ? nullptr : &*at;
}

}  // namespace kernels
}  // namespace echo
