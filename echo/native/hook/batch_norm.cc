// MXNet's BatchNorm with a ReLU keeps the signs of what it normalizes as bits, in the order in which oneDNN has its input
// in the forward pass. Its gradient takes them for signs in the order that the input has then, or the output's gradient:
// where these differ, it is wrong, or it fails. An input may change its order in between, as where a Reshape works in
// place over it. For the nodes of plans, the order is noted after the signs; the gradient then reads the input in that
// order, and the output's gradient in that one or plain. MXNet allocates a float for each sign, these nodes a byte.
#include "batch_norm.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "array.h"
#include "mxnet_api.h"

namespace echo {
namespace {

const char kForward[] = "_contrib_BatchNormWithReLU";
const char kBackward[] = "_backward_contrib_BatchNormWithReLU";
const char kCompute[] = "FComputeEx<cpu>";
const char kInferShape[] = "FInferShape";
constexpr std::size_t kInputs = 5, kOutputs = 4, kGradientInputs = 9;
constexpr std::size_t kSigns = 3, kGradient = 0, kInput = 3, kGradientSigns = 8;  // positions among these
constexpr int kAxes = 12;
constexpr std::int64_t kMostBlock = 16;  // channels in one of oneDNN's blocks

// std::vector<mxnet::NDArray>, whose elements are longer than a RawArray.
struct RawArrays {
  const char *first, *end, *capacity;
};

struct RawMemoryDesc {  // dnnl_memory_desc_t
  std::int32_t ndim;
  std::int64_t shape[kAxes];
  std::int32_t type;
  std::int64_t padded_shape[kAxes], padded_offsets[kAxes], offset;
  std::int32_t kind;
  std::int64_t strides[kAxes];
  std::int32_t block_count;
  std::int64_t blocks[kAxes], block_axes[kAxes];
  unsigned char rest[80];
};
static_assert(sizeof(RawMemoryDesc) == 696, "dnnl_memory_desc_t");

struct RawOrdered {  // mxnet::MKLDNNMemory
  std::shared_ptr<void> memory;
  RawMemoryDesc desc;
};

// The order in which an array has its elements. MXNet's plain operators leave the description of an earlier array.
struct Order {
  std::int64_t is_plain;
  RawMemoryDesc desc;  // if it is not plain

  explicit Order(const RawArray& array) : is_plain(1), desc{} {
    const auto* ordered = static_cast<const RawOrdered*>(array.chunk->layout);
    if (!ordered) return;
    for (int axis = 1; axis < ordered->desc.ndim; ++axis)
      if (ordered->desc.strides[axis - 1] < ordered->desc.strides[axis]) is_plain = 0;
    if (ordered->desc.block_count) is_plain = 0;
    if (!is_plain) desc = ordered->desc;
  }

  bool operator==(const Order& other) const {
    if (is_plain || other.is_plain) return is_plain == other.is_plain;
    auto same = [](const std::int64_t* mine, const std::int64_t* theirs, int count) {
      return std::equal(mine, mine + count, theirs);
    };
    return desc.ndim == other.desc.ndim && same(desc.strides, other.desc.strides, desc.ndim) &&
           desc.block_count == other.desc.block_count && same(desc.blocks, other.desc.blocks, desc.block_count) &&
           same(desc.block_axes, other.desc.block_axes, desc.block_count);
  }
};

struct RawContext {  // mxnet::OpContext, up to its mode
  bool needs_gradient, is_training;
};

using Invoker = void (*)(const void* functor, const RawAttrs&, const RawContext&, const RawArrays& inputs,
                         const void* requests, const RawArrays& outputs);

using ShapeInvoker = bool (*)(const void* functor, const RawAttrs&, std::vector<RawShape>* inputs,
                              std::vector<RawShape>* outputs);

Invoker g_forward = nullptr, g_backward = nullptr;
ShapeInvoker g_infer_shape = nullptr;

const RawArray& at(const RawArrays& arrays, std::size_t position, std::size_t count) {
  const std::size_t size = (arrays.end - arrays.first) / count;
  return *reinterpret_cast<const RawArray*>(arrays.first + position * size);
}

// What is noted at the end of the signs.
struct Note {
  std::uint64_t is_written;
  Order order;
};
constexpr std::uint64_t kWritten = 0x6563686f7369676e;  // "echosign"

Note* note_of(const RawArray& signs) {
  return reinterpret_cast<Note*>(static_cast<char*>(signs.chunk->data) + signs.byte_offset + bytes_of(signs) -
                                 sizeof(Note));
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
             const void* requests, const RawArrays& outputs) {
  g_forward(functor, attrs, context, inputs, requests, outputs);
  if (!is_marked(attrs)) return;
  const Note note{context.is_training ? kWritten : 0, Order(at(inputs, 0, kInputs))};
  std::memcpy(note_of(at(outputs, kSigns, kOutputs)), &note, sizeof note);
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
      api().copy_array(slot(position), api().memory_of(&array));
    }
    made_.push_back(position);
  }
  RawArrays arrays() const { return {bytes_.data(), bytes_.data() + bytes_.size(), bytes_.data() + bytes_.size()}; }

 private:
  void* slot(std::size_t position) { return bytes_.data() + position * (bytes_.size() / kGradientInputs); }

  RawArrays original_;
  std::vector<char> bytes_;
  std::vector<std::size_t> made_;
};

void backward(const void* functor, const RawAttrs& attrs, const RawContext& context, const RawArrays& inputs,
              const void* requests, const RawArrays& outputs) {
  if (!is_marked(attrs)) {
    g_backward(functor, attrs, context, inputs, requests, outputs);
    return;
  }
  const Order input(at(inputs, kInput, kGradientInputs)), gradient(at(inputs, kGradient, kGradientInputs));
  Note note{0, input};
  std::memcpy(&note, note_of(at(inputs, kGradientSigns, kGradientInputs)), sizeof note);
  if (note.is_written != kWritten)
    throw std::runtime_error("echo: node '" + attrs.name + "': no forward pass in training wrote its signs");
  const Order& noted = note.order;
  Reordered reordered(inputs);
  if (!(input == noted)) reordered.bring(kInput, noted);
  if (!gradient.is_plain && !(gradient == noted)) {
    Order plain = gradient;
    plain.is_plain = 1;
    reordered.bring(kGradient, plain);  // MXNet then brings it into the input's
  }
  const RawArrays arrays = reordered.arrays();
  g_backward(functor, attrs, context, arrays, requests, outputs);
}

const RawFunction* attribute_of(const char* attribute, const char* op) {
  return function_of(attribute, api().op_get(op)->index);
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
