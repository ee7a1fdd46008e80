// MXNet's BatchNorm with a ReLU keeps the signs of what it normalizes as bits, in the order in which oneDNN has its input
// in the forward pass. Its gradient takes them for signs in the order that the input has then, or the output's gradient:
// where these differ, it is wrong, or it fails. An input may change its order in between, as where a Reshape works in
// place over it. For the nodes of plans, the order is noted after the signs, for which MXNet allocates at least twice
// the bytes that they take; the gradient then reads the input in that order, and the output's gradient in that one or
// plain.
#include "batch_norm.h"

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
constexpr std::size_t kLeastBytes = 2048;  // of an input: what is noted takes less than half of it
constexpr std::size_t kInputs = 5, kOutputs = 4, kGradientInputs = 9;
constexpr std::size_t kSigns = 3, kGradient = 0, kInput = 3, kGradientSigns = 8;  // positions among these
constexpr int kAxes = 12;

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

Invoker g_forward = nullptr, g_backward = nullptr;

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
static_assert(2 * sizeof(Note) < kLeastBytes, "the signs need the rest");

Note* note_of(const RawAttrs& attrs, const RawArray& signs) {
  const std::size_t bytes = bytes_of(signs);
  if (bytes < kLeastBytes)
    throw std::runtime_error("echo: node '" + attrs.name + "': expected an input of " + std::to_string(kLeastBytes) +
                             " bytes or more, got " + std::to_string(bytes));
  return reinterpret_cast<Note*>(static_cast<char*>(signs.chunk->data) + signs.byte_offset + bytes - sizeof(Note));
}

void forward(const void* functor, const RawAttrs& attrs, const RawContext& context, const RawArrays& inputs,
             const void* requests, const RawArrays& outputs) {
  g_forward(functor, attrs, context, inputs, requests, outputs);
  if (!map_find<std::string>(attrs.dict, kSignsAttribute)) return;
  const Note note{context.is_training ? kWritten : 0, Order(at(inputs, 0, kInputs))};
  std::memcpy(note_of(attrs, at(outputs, kSigns, kOutputs)), &note, sizeof note);
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
  if (!map_find<std::string>(attrs.dict, kSignsAttribute)) {
    g_backward(functor, attrs, context, inputs, requests, outputs);
    return;
  }
  const Order input(at(inputs, kInput, kGradientInputs)), gradient(at(inputs, kGradient, kGradientInputs));
  Note note{0, input};
  std::memcpy(&note, note_of(attrs, at(inputs, kGradientSigns, kGradientInputs)), sizeof note);
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

RawFunction* compute_of(const char* name) {
  const RawOp* op = api().op_get(name);
  return const_cast<RawFunction*>(function_of(kCompute, op->index));
}

void wrap(const char* name, Invoker replacement, Invoker* original) {
  RawFunction* function = compute_of(name);
  if (!function || !function->manager) return;
  *original = reinterpret_cast<Invoker>(function->invoker);
  __atomic_store_n(&function->invoker, reinterpret_cast<void*>(replacement), __ATOMIC_SEQ_CST);
}

void unwrap(const char* name, Invoker replacement, Invoker original) {
  RawFunction* function = original ? compute_of(name) : nullptr;
  if (function && function->invoker == reinterpret_cast<void*>(replacement))
    __atomic_store_n(&function->invoker, reinterpret_cast<void*>(original), __ATOMIC_SEQ_CST);
}

}  // namespace

void wrap_batch_norm() {
  if (!api().plain_array) return;  // a build without oneDNN
  wrap(kForward, forward, &g_forward);
  wrap(kBackward, backward, &g_backward);
}

void unwrap_batch_norm() {
  unwrap(kForward, forward, g_forward);
  unwrap(kBackward, backward, g_backward);
}

}  // namespace echo
