// MXNet's BatchNorm with a ReLU keeps the signs of what it normalizes as bits, in the order in which oneDNN has its input
// in the forward pass. Its gradient takes them for signs in the order that the input has then, or the output's gradient:
// where these differ, it is wrong, or it fails. An input may change its order in between, as where a Reshape works in
// place over it. For the nodes of plans, the order is noted after the signs; the gradient then reads the input in that
// order, and the output's gradient in that one or plain. MXNet allocates a float for each sign, these nodes a byte.
//
// MXNet's ReLU multiplies gradients by zero where its output is zero, which makes NaNs of infinities and NaNs. oneDNN's
// BatchNorm leaves these out, so a step that overflowed might look sound: such an element counts as positive, and is NaN.
#include "batch_norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "array.h"
#include "finite.h"
#include "mxnet_api.h"
#include "order.h"

namespace echo {
namespace {

const char kForward[] = "_contrib_BatchNormWithReLU";
const char kBackward[] = "_backward_contrib_BatchNormWithReLU";
const char kInferShape[] = "FInferShape";
constexpr std::size_t kInputs = 5, kOutputs = 4, kGradientInputs = 9;
constexpr std::size_t kSigns = 3, kGradient = 0, kInput = 3, kGradientSigns = 8;  // positions among these
constexpr std::int64_t kMostBlock = 16;  // channels in one of oneDNN's blocks

using ShapeInvoker = bool (*)(const void* functor, const RawAttrs&, std::vector<RawShape>* inputs,
                              std::vector<RawShape>* outputs);

ComputeInvoker g_forward = nullptr, g_backward = nullptr;
ShapeInvoker g_infer_shape = nullptr;

// What is noted at the end of the signs.
struct Note {
  std::uint64_t written;  // kBits or kBytes for each element, in the order of the input; else there are none
  Order order;
};
constexpr std::uint64_t kBits = 0x6563686f62697473, kBytes = 0x6563686f62797465;  // "echobits", "echobyte"

unsigned char* data_of(const RawArray& array) {
  return static_cast<unsigned char*>(array.chunk->data) + array.byte_offset;
}

float* values_of(const RawArray& array) { return reinterpret_cast<float*>(data_of(array)); }

unsigned char* note_of(const RawArray& signs) { return data_of(signs) + bytes_of(signs) - sizeof(Note); }

// Whether signs of an output are bits rather than bytes: with AVX2 and in blocks. A few elements tell, unless all are zero.
bool has_bits(const RawArray& output, const RawArray& signs, const Order& order) {
  if (order.is_plain || !(Order(output) == order)) return !order.is_plain;
  const float* values = values_of(output);
  const unsigned char* found = data_of(signs);
  const auto room = static_cast<std::int64_t>(bytes_of(signs) - sizeof(Note));
  const std::int64_t size = std::min(order.size(), room);
  for (std::int64_t index = 0; index < size; ++index) {
    if (std::isnan(values[index])) continue;
    const bool is_positive = values[index] > 0;
    if ((found[index] != 0) != is_positive) return true;
    if ((found[index / 8] >> index % 8 & 1) != is_positive) return false;
  }
  return true;
}

bool is_marked(const RawAttrs& attrs) { return map_find<std::string>(attrs.dict, kSignsAttribute) != nullptr; }

// oneDNN keeps a bit or a byte for each element, those that fill up its blocks too.
bool infer_shape(const void* functor, const RawAttrs& attrs, std::vector<RawShape>* inputs,
                 std::vector<RawShape>* outputs) {
  const bool is_known = g_infer_shape(functor, attrs, inputs, outputs);
  if (!is_known || !is_marked(attrs)) return is_known;
  const RawShape& shape = (*inputs)[0];
  if (shape.ndim != 4) return is_known;
  const std::int64_t* sizes = shape.begin();
  const std::int64_t channels = std::min(4 * sizes[1], (sizes[1] + kMostBlock - 1) / kMostBlock * kMostBlock);
  const std::int64_t bytes = sizes[0] * channels * sizes[2] * sizes[3];
  RawShape* signs = &(*outputs)[kSigns];
  signs->ndim = 1;
  signs->stack[0] = (bytes + 8) / 8 * 2 + static_cast<std::int64_t>(sizeof(Note) / sizeof(float));
  return is_known;
}

void forward(const void* functor, const RawAttrs& attrs, const RawContext& context, const RawArrays& inputs,
             const RawRequests& requests, const RawArrays& outputs) {
  g_forward(functor, attrs, context, inputs, requests, outputs);
  if (!is_marked(attrs)) return;
  const Order order(at(inputs, 0, kInputs));
  const RawArray& signs = at(outputs, kSigns, kOutputs);
  const std::uint64_t written = has_bits(at(outputs, 0, kOutputs), signs, order) ? kBits : kBytes;
  const Note note{context.is_training ? written : 0, order};
  std::memcpy(note_of(signs), &note, sizeof note);
}

// The inputs of a gradient, some of them copied into another order. MXNet's functions copy what they keep of them.
class Reordered {
 public:
  explicit Reordered(const RawArrays& arrays) : original_(arrays), bytes_(arrays.first, arrays.end) {}
  ~Reordered() {
    for (const std::size_t position : made_) api().destroy_array(slot(position));
  }
  Reordered(const Reordered&) = delete;
  Reordered& operator=(const Reordered&) = delete;

  void bring(std::size_t position, const Order& order) {
    const RawArray& array = at(original_, position, kGradientInputs);
    if (order.is_plain) {
      api().plain_array(slot(position), &array);
    } else {
      api().new_array(slot(position), &order.desc);
      api().copy_array(slot(position), api().memory_of(&array));  // done when MXNet's function is
    }
    made_.push_back(position);
  }

  // The elements of a copy in this order, to write to.
  float* copy(std::size_t position, const Order& order) {
    const RawArray& array = at(original_, position, kGradientInputs);
    api().new_array(slot(position), &order.desc);
    made_.push_back(position);
    float* values = values_of(at(arrays(), position, kGradientInputs));
    Order(array).copy(values_of(array), values, order);
    return values;
  }
  RawArrays arrays() const { return {bytes_.data(), bytes_.data() + bytes_.size(), bytes_.data() + bytes_.size()}; }

 private:
  void* slot(std::size_t position) { return bytes_.data() + position * (bytes_.size() / kGradientInputs); }

  RawArrays original_;
  std::vector<char> bytes_;
  std::vector<std::size_t> made_;
};

// While this lives, infinities and NaNs in a gradient count wherever they are: as NaN where there was no sign.
class CountedNaNs {
 public:
  CountedNaNs(float* gradient, unsigned char* signs, const Note& note)
      : signs_(signs), has_bits_(note.written == kBits) {
    const std::int64_t size = note.order.size();
    for (std::int64_t index = 0; index < size; ++index) {
      if (is_finite(gradient + index) || has_sign(index)) continue;
      gradient[index] = std::numeric_limits<float>::quiet_NaN();
      flip(index);
      changed_.push_back(index);
    }
  }
  ~CountedNaNs() {
    for (const std::int64_t index : changed_) flip(index);
  }
  CountedNaNs(const CountedNaNs&) = delete;
  CountedNaNs& operator=(const CountedNaNs&) = delete;

 private:
  bool has_sign(std::int64_t index) const { return has_bits_ ? signs_[index / 8] >> index % 8 & 1 : signs_[index]; }
  void flip(std::int64_t index) { signs_[has_bits_ ? index / 8 : index] ^= has_bits_ ? 1 << index % 8 : 1; }

  unsigned char* signs_;
  bool has_bits_;
  std::vector<std::int64_t> changed_;
};

void backward(const void* functor, const RawAttrs& attrs, const RawContext& context, const RawArrays& inputs,
              const RawRequests& requests, const RawArrays& outputs) {
  if (!is_marked(attrs)) {
    g_backward(functor, attrs, context, inputs, requests, outputs);
    return;
  }
  const RawArray &dy = at(inputs, kGradient, kGradientInputs), &signs = at(inputs, kGradientSigns, kGradientInputs);
  const Order input(at(inputs, kInput, kGradientInputs)), gradient(dy);
  Note note{0, input};
  std::memcpy(&note, note_of(signs), sizeof note);
  if (note.written != kBits && note.written != kBytes)
    throw std::runtime_error("echo: node '" + attrs.name + "': no forward pass in training wrote its signs");
  const Order& noted = note.order;
  Reordered reordered(inputs);
  if (!(input == noted)) reordered.bring(kInput, noted);
  std::optional<CountedNaNs> nans;
  if (!are_finite(values_of(dy), gradient.size())) {
    nans.emplace(reordered.copy(kGradient, noted), data_of(signs), note);
  } else if (!gradient.is_plain && !(gradient == noted)) {
    reordered.bring(kGradient, noted);
  }
  const RawArrays arrays = reordered.arrays();
  g_backward(functor, attrs, context, arrays, requests, outputs);
}

}  // namespace

void wrap_batch_norm() {
  if (!api().plain_array) return;  // a build without oneDNN
  wrap_function(attribute_of(kCompute, kForward), forward, &g_forward);
  wrap_function(attribute_of(kCompute, kBackward), backward, &g_backward);
  wrap_function(attribute_of(kInferShape, kForward), infer_shape, &g_infer_shape);
}

void unwrap_batch_norm() {
  unwrap_function(attribute_of(kInferShape, kForward), infer_shape, g_infer_shape);
  unwrap_function(attribute_of(kCompute, kForward), forward, g_forward);
  unwrap_function(attribute_of(kCompute, kBackward), backward, g_backward);
}

}  // namespace echo
