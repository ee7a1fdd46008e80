#include "mxnet/shapes.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "echo_kernels.h"

namespace echo {
namespace kernels {

static std::string in_brackets(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) text += (axis ? "," : "") + std::to_string(shape[axis]);
  return text + ")";
}

static std::string where(const Kernel& kernel, const TensorSpec& spec) {
  return "_echo_" + kernel.name + ": " + spec.name + spec.shape;
}

const char* Attributes::text(const char* name) const {
  for (int i = 0; i < count_; ++i)
    if (std::strcmp(keys_[i], name) == 0) return values_[i];
  return nullptr;
}

double Attributes::number(const std::string& name) const {
  const char* found = text(name.c_str());
  return found ? std::strtod(found, nullptr) : 0;
}

std::vector<bool> Attributes::present(const Kernel& kernel) const {
  const char* given = text("present");
  std::vector<bool> found;
  for (const TensorSpec& spec : kernel.inputs) found.push_back(!spec.optional);
  if (!given) return found;
  bool right = std::strlen(given) == found.size();
  for (std::size_t i = 0; right && i < found.size(); ++i) {
    right = given[i] == '1' || (given[i] == '0' && !found[i]);
    found[i] = given[i] == '1';
  }
  if (!right)
    throw WrongCall("_echo_" + kernel.name + ": present: expected 1 or 0 for each of " + std::to_string(found.size()) +
                    " inputs, 1 where it is not optional, got '" + given + "'");
  return found;
}

void Sizes::learn(const TensorSpec& spec, std::vector<int64_t> shape) {
  learned_.emplace_back(&spec, std::move(shape));
}

int64_t Sizes::size_of(const Axis& axis) const {
  int64_t size = axis.symbol < 0 ? 1 : sizes_[axis.symbol];
  for (const int symbol : axis.times) size = sizes_[symbol] < 0 ? -1 : size * sizes_[symbol];
  if (size < 0) return -1;
  return axis.bits ? (size + 7) / 8 : size * axis.factor;
}

void Sizes::set(const TensorSpec& spec, const Axis& axis, int64_t size, const std::vector<int64_t>& shape) {
  if (axis.bits || axis.symbol < 0) return;  // they say too little, or nothing
  int64_t& known = sizes_[axis.symbol];
  if (size % axis.factor || (known >= 0 && known != size / axis.factor))
    throw WrongCall(where(kernel_, spec) + " cannot have the shape " + in_brackets(shape));
  known = size / axis.factor;
}

static bool is_known(const std::vector<int64_t>& shape) {
  return std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size > 0; });
}

// A shape with other axes than the kernel's: its number of elements tells the one size that is not known yet.
void Sizes::solve_one(const TensorSpec& spec, const std::vector<int64_t>& shape) {
  int64_t total = 1, known = 1;
  for (const int64_t size : shape) total *= size;
  const Axis* open = nullptr;
  int unknown = 0;
  for (const Axis& axis : spec.axes) {
    const int64_t size = size_of(axis);
    if (size >= 0)
      known *= size;
    else
      open = &axis, ++unknown;
  }
  if (unknown > 1) return;
  if (known == 0 || total % known || (!open && total != known))
    throw WrongCall(where(kernel_, spec) + " cannot have the shape " + in_brackets(shape));
  if (open) set(spec, *open, total / known, shape);
}

void Sizes::solve() {
  for (const auto& [spec, shape] : learned_)
    if (shape.size() == spec->axes.size())
      for (std::size_t axis = 0; axis < shape.size(); ++axis)
        if (shape[axis] > 0) set(*spec, spec->axes[axis], shape[axis], shape);
  for (std::size_t round = 0; round < kernel_.symbols.size(); ++round)
    for (const auto& [spec, shape] : learned_)
      if (shape.size() != spec->axes.size() && is_known(shape)) solve_one(*spec, shape);
}

bool Sizes::knows(const TensorSpec& spec) const {
  return std::all_of(spec.axes.begin(), spec.axes.end(), [&](const Axis& axis) { return size_of(axis) >= 0; });
}

std::vector<int64_t> Sizes::shape_of(const TensorSpec& spec) const {
  std::vector<int64_t> shape;
  for (const Axis& axis : spec.axes) {
    // what belongs to optional inputs that are not there alone
    shape.push_back(std::max<int64_t>(0, size_of(axis)));
  }
  return shape;
}

// The shape of the first output in MXNet, where it is not the kernel's.
static std::vector<int64_t> first_output(const Kernel& kernel, const Attributes& attrs, std::vector<int64_t> shape,
                                         const std::vector<int64_t>& first_input) {
  if (kernel.outputs[0].shape == kernel.inputs[0].shape) return first_input;
  const char* out = attrs.text("out");
  if (!out || shape.size() != 2) return shape;
  if (std::strcmp(out, "BT1") == 0) return {shape[0], shape[1], 1};
  if (std::strcmp(out, "B1H") == 0) return {shape[0], 1, shape[1]};
  if (std::strcmp(out, "rows") == 0) return {shape[0] * shape[1], 1};
  return shape;
}

std::vector<std::vector<int64_t>> infer_shapes(const Kernel& kernel, const Attributes& attrs,
                                               std::vector<std::vector<int64_t>>* in) {
  const std::vector<bool> present = attrs.present(kernel);
  Sizes sizes(kernel);
  std::size_t position = 0;
  for (std::size_t i = 0; i < kernel.inputs.size(); ++i)
    if (present[i]) sizes.learn(kernel.inputs[i], (*in)[position++]);
  sizes.solve();
  position = 0;
  for (std::size_t i = 0; i < kernel.inputs.size(); ++i) {
    if (!present[i]) continue;
    std::vector<int64_t>& shape = (*in)[position++];
    if (is_known(shape)) continue;
    if (!sizes.knows(kernel.inputs[i]) || shape.size() != kernel.inputs[i].axes.size())
      throw WrongCall(where(kernel, kernel.inputs[i]) + " has the unknown shape " + in_brackets(shape));
    shape = sizes.shape_of(kernel.inputs[i]);
  }
  std::vector<std::vector<int64_t>> out;
  for (const TensorSpec& spec : kernel.outputs) out.push_back(sizes.shape_of(spec));
  out[0] = first_output(kernel, attrs, out[0], (*in)[0]);
  const char* const axes = attrs.text("out");
  if (axes && std::strcmp(axes, "leading") == 0)  // one number for each row of x, which may have any axes in front
    for (std::size_t i = 0; i < out.size(); ++i)
      if (kernel.outputs[i].shape == "[N]") out[i].assign((*in)[0].begin(), (*in)[0].end() - 1);
  return out;
}

void infer_types(const Kernel& kernel, const Attributes& attrs, int* in, int num_in, int* out, int num_out) {
  const std::vector<bool> present = attrs.present(kernel);
  int floating = -1, position = 0;
  for (std::size_t i = 0; i < kernel.inputs.size(); ++i)
    if (present[i]) {
      if (kernel.inputs[i].type == Type::kFloating && floating < 0) floating = in[position];
      ++position;
    }
  for (int i = 0; floating < 0 && i < num_out; ++i)
    if (kernel.outputs[i].type == Type::kFloating) floating = out[i];
  position = 0;
  for (std::size_t i = 0; i < kernel.inputs.size() && position < num_in; ++i)
    if (present[i]) {
      if (kernel.inputs[i].type == Type::kFloating && in[position] < 0) in[position] = floating;
      ++position;
    }
  for (int i = 0; i < num_out; ++i) {
    const Type type = kernel.outputs[i].type;
    out[i] = type == Type::kUint8 ? ECHO_UINT8 : type == Type::kFloat32 ? ECHO_FLOAT32 : floating;
  }
}

}  // namespace kernels
}  // namespace echo
