// MXNet's BatchNorm with a ReLU keeps the signs of what it normalizes as bits, in the order in which oneDNN has its input.
// Its gradient takes them for signs in the order of the output's gradient: where one of the two is blocked and the other
// is not, it is wrong, and where both are blocked in two ways, it fails. For the nodes of plans, the output's gradient is
// made plain first, which MXNet then brings into the input's order; the order of the forward pass is noted after the
// signs, for which MXNet allocates 32 times the bytes that they take.
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
const char kSignsAttribute[] = "__echo_signs__";
constexpr std::size_t kInputs = 5, kOutputs = 4, kGradientInputs = 9;
constexpr std::size_t kSigns = 3, kGradient = 0, kInput = 3, kGradientSigns = 8;  // positions among these
constexpr int kAxes = 12;

// std::vector<mxnet::NDArray>, whose elements are longer than a RawArray.
struct RawArrays {
  const char *first, *end, *capacity;
};

struct RawMemoryDesc {  // dnnl_memory_desc_t, up to the description of its blocks
  std::int32_t ndim;
  std::int64_t shape[kAxes];
  std::int32_t type;
  std::int64_t padded_shape[kAxes], padded_offsets[kAxes], offset;
  std::int32_t kind;
  std::int64_t strides[kAxes];
  std::int32_t block_count;
  std::int64_t blocks[kAxes], block_axes[kAxes];
};
static_assert(sizeof(RawMemoryDesc) == 616, "dnnl_memory_desc_t");

struct RawOrdered {  // mxnet::MKLDNNMemory
  std::shared_ptr<void> memory;
  RawMemoryDesc desc;
};

using Invoker = void (*)(const void* functor, const RawAttrs&, const void* context, const RawArrays& inputs,
                         const void* requests, const RawArrays& outputs);

Invoker g_forward = nullptr, g_backward = nullptr;

const RawArray& at(const RawArrays& arrays, std::size_t position, std::size_t count) {
  const std::size_t size = (arrays.end - arrays.first) / count;
  return *reinterpret_cast<const RawArray*>(arrays.first + position * size);
}

using Order = std::vector<std::int64_t>;  // strides, then blocks with their axes

Order plain_order(const RawArray& array) {
  Order order(array.shape.ndim, 1);
  for (int axis = array.shape.ndim - 1; axis > 0; --axis) order[axis - 1] = order[axis] * array.shape.begin()[axis];
  return order;
}

Order order_of(const RawArray& array) {
  const auto* ordered = static_cast<const RawOrdered*>(array.chunk->layout);
  if (!ordered) return plain_order(array);
  const RawMemoryDesc& desc = ordered->desc;
  Order order(desc.strides, desc.strides + desc.ndim);
  for (int i = 0; i < desc.block_count; ++i) order.insert(order.end(), {desc.blocks[i], desc.block_axes[i]});
  return order;
}

std::uint64_t number_of(const Order& order) {
  std::uint64_t number = 14695981039346656037U;  // FNV-1a
  for (const std::int64_t each : order) number = (number ^ static_cast<std::uint64_t>(each)) * 1099511628211U;
  return number;
}

char* end_of(const RawArray& signs) {
  return static_cast<char*>(signs.chunk->data) + signs.byte_offset + bytes_of(signs);
}

void forward(const void* functor, const RawAttrs& attrs, const void* context, const RawArrays& inputs,
             const void* requests, const RawArrays& outputs) {
  g_forward(functor, attrs, context, inputs, requests, outputs);
  if (!map_find<std::string>(attrs.dict, kSignsAttribute)) return;
  const std::uint64_t order = number_of(order_of(at(inputs, 0, kInputs)));
  std::memcpy(end_of(at(outputs, kSigns, kOutputs)) - sizeof order, &order, sizeof order);
}

// The inputs of a gradient with another array instead of the first. MXNet's functions read them, and copy what they keep.
class Replaced {
 public:
  explicit Replaced(const RawArrays& arrays) : bytes_(arrays.first, arrays.end) {
    api().plain_array(bytes_.data(), reinterpret_cast<const RawArray*>(arrays.first));
  }
  ~Replaced() { api().destroy_array(bytes_.data()); }
  Replaced(const Replaced&) = delete;
  Replaced& operator=(const Replaced&) = delete;
  RawArrays arrays() const { return {bytes_.data(), bytes_.data() + bytes_.size(), bytes_.data() + bytes_.size()}; }

 private:
  std::vector<char> bytes_;
};

void backward(const void* functor, const RawAttrs& attrs, const void* context, const RawArrays& inputs,
              const void* requests, const RawArrays& outputs) {
  if (!map_find<std::string>(attrs.dict, kSignsAttribute)) {
    g_backward(functor, attrs, context, inputs, requests, outputs);
    return;
  }
  const Order order = order_of(at(inputs, kInput, kGradientInputs));
  std::uint64_t noted = 0;
  std::memcpy(&noted, end_of(at(inputs, kGradientSigns, kGradientInputs)) - sizeof noted, sizeof noted);
  if (noted != number_of(order))
    throw std::runtime_error("echo: the input of node '" + attrs.name +
                             "' is in another order than in the forward pass, please report it (fuse=False avoids it)");
  const RawArray& gradient = at(inputs, kGradient, kGradientInputs);
  const Order gradient_order = order_of(gradient);
  if (gradient_order == order || gradient_order == plain_order(gradient)) {
    g_backward(functor, attrs, context, inputs, requests, outputs);
    return;
  }
  const Replaced replaced(inputs);
  const RawArrays arrays = replaced.arrays();
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
  wrap(kForward, forward, &g_forward);
  wrap(kBackward, backward, &g_backward);
}

void unwrap_batch_norm() {
  unwrap(kForward, forward, g_forward);
  unwrap(kBackward, backward, g_backward);
}

}  // namespace echo
