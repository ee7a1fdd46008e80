#include "check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "table.h"

namespace echo {
namespace kernels {
namespace {

const int64_t kMostElements = int64_t{1} << 48;
const double kMostInteger = 9007199254740992.0;  // 2^53: beyond it doubles skip integers

thread_local std::string last_error;

const char* dtype_name(int dtype) {
  switch (dtype) {
    case ECHO_FLOAT32: return "float32";
    case ECHO_FLOAT16: return "float16";
    case ECHO_UINT8: return "uint8";
    case ECHO_INT32: return "int32";
    default: return "an unknown type";
  }
}

// Throws WrongCall with all its arguments after the kernel's name.
template <typename... Parts>
[[noreturn]] void fail(const Kernel& kernel, const Parts&... parts) {
  std::ostringstream text(std::ios_base::out);
  text << kernel.name << ": ";
  (text << ... << parts);
  throw WrongCall(text.str());
}

std::string shape_text(const EchoTensor& tensor) {
  std::ostringstream text(std::ios_base::out);
  text << "(";
  for (int axis = 0; axis < tensor.ndim; ++axis) text << (axis ? ", " : "") << tensor.shape[axis];
  text << (tensor.ndim == 1 ? ",)" : ")");
  return text.str();
}

// "[B,4H] with B=3 H=5": what is known of the dimensions.
std::string expected_text(const Kernel& kernel, const TensorSpec& spec, const std::vector<int64_t>& dims) {
  std::string known;
  for (const Axis& axis : spec.axes) {
    std::vector<int> symbols = axis.times;
    if (axis.symbol >= 0) symbols.insert(symbols.begin(), axis.symbol);
    for (const int symbol : symbols) {
      if (dims[symbol] >= 0) known += " " + kernel.symbols[symbol] + "=" + std::to_string(dims[symbol]);
    }
  }
  return known.empty() ? spec.shape : spec.shape + " with" + known;
}

bool type_fits(Type type, int dtype) {
  switch (type) {
    case Type::kFloat32: return dtype == ECHO_FLOAT32;
    case Type::kUint8: return dtype == ECHO_UINT8;
    case Type::kLengths: return dtype == ECHO_FLOAT32 || dtype == ECHO_FLOAT16 || dtype == ECHO_INT32;
    default: return dtype == ECHO_FLOAT32 || dtype == ECHO_FLOAT16;
  }
}

const char* type_text(Type type) {
  switch (type) {
    case Type::kFloat32: return "float32";
    case Type::kUint8: return "uint8";
    case Type::kLengths: return "float32, float16 or int32";
    default: return "float32 or float16";
  }
}

// The product of an axis' symbols; -1 where one is not known, or it is too large.
int64_t product_of(const Axis& axis, const std::vector<int64_t>& dims) {
  int64_t product = dims[axis.symbol];
  for (const int symbol : axis.times) {
    const int64_t size = dims[symbol];
    if (product < 0 || size < 0 || product > kMostElements / std::max<int64_t>(size, 1)) return -1;
    product *= size;
  }
  return product;
}

// Whether one axis fits; learns its dimension where that is not known yet.
bool axis_fits(const Axis& axis, int64_t size, std::vector<int64_t>* dims) {
  if (axis.symbol < 0) return size == axis.factor;
  int64_t& dim = (*dims)[axis.symbol];
  if (size < 0 || size > kMostElements) return false;
  if (axis.bits) {
    const int64_t count = product_of(axis, *dims);
    return count < 0 || size == (count + 7) / 8;
  }
  if (size % axis.factor != 0) return false;
  if (dim < 0) dim = size / axis.factor;
  return size == dim * axis.factor;
}

void check_shape(const Kernel& kernel, const TensorSpec& spec, const EchoTensor& tensor, std::vector<int64_t>* dims) {
  if (tensor.ndim < 0 || tensor.ndim > ECHO_MOST_AXES) {
    fail(kernel, spec.name, " has ", tensor.ndim, " axes, expected ", spec.axes.size(), ": ", spec.shape);
  }
  bool fits = tensor.ndim == static_cast<int>(spec.axes.size());
  for (size_t axis = 0; fits && axis < spec.axes.size(); ++axis) {
    fits = axis_fits(spec.axes[axis], tensor.shape[axis], dims);
  }
  if (!fits) {
    fail(kernel, spec.name, " has shape ", shape_text(tensor), ", expected ", expected_text(kernel, spec, *dims));
  }
  int64_t count = 1;
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    if (tensor.shape[axis] > kMostElements / (count > 0 ? count : 1)) {
      fail(kernel, spec.name, " of shape ", shape_text(tensor), " is too large");
    }
    count *= tensor.shape[axis];
  }
}

void check_dtype(const Kernel& kernel, const TensorSpec& spec, const EchoTensor& tensor, int* floating) {
  if (!type_fits(spec.type, tensor.dtype)) {
    fail(kernel, spec.name, " has type ", dtype_name(tensor.dtype), " (", tensor.dtype, "), expected ",
         type_text(spec.type));
  }
  if (spec.type != Type::kFloating) return;
  if (*floating < 0) *floating = tensor.dtype;
  if (tensor.dtype != *floating) {
    fail(kernel, spec.name, " has type ", dtype_name(tensor.dtype), ", expected ", dtype_name(*floating),
         " as the tensors before it");
  }
}

void check_data(const Kernel& kernel, const TensorSpec& spec, const EchoTensor& tensor, bool required) {
  if (tensor.data == nullptr) {
    if (required && (tensor.ndim == 0 || element_count(tensor) > 0)) {
      fail(kernel, spec.name, spec.shape, " is needed, got no data");
    }
    return;
  }
  const size_t bytes = dtype_bytes(tensor.dtype);
  if (reinterpret_cast<uintptr_t>(tensor.data) % bytes != 0) {
    fail(kernel, spec.name, " is at ", tensor.data, ", expected a multiple of the ", bytes, " bytes of a ",
         dtype_name(tensor.dtype));
  }
}

void check_req(const Kernel& kernel, const TensorSpec& spec, const EchoTensor& tensor, int req) {
  if (req == ECHO_SKIP || req == ECHO_WRITE) return;
  if (req != ECHO_ADD) fail(kernel, spec.name, " has req ", req, ", expected 0 (skip), 1 (write) or 3 (add)");
  const bool floating = tensor.dtype == ECHO_FLOAT32 || tensor.dtype == ECHO_FLOAT16;
  if (!kernel.is_grad || !floating) fail(kernel, spec.name, " cannot be added to: only floating gradients can");
}

// Of how many gates a cell or layer has arrays.
int64_t gates_of(const Kernel& kernel) {
  int64_t most = 1;
  for (const TensorSpec& spec : kernel.inputs) {
    for (const Axis& axis : spec.axes) most = std::max(most, axis.factor);
  }
  return most;
}

void check_param(const Kernel& kernel, const std::string& name, double value) {
  const bool whole = value == std::floor(value);
  bool fits = std::isfinite(value);
  const char* expected = "a finite number";
  if (name == "eps") {
    fits = fits && value >= 0;
    expected = "a finite number that is not negative";
  } else if (name == "act") {
    fits = whole && value >= 0 && value <= 4;
    expected = "0 relu, 1 sigmoid, 2 tanh, 3 softrelu or 4 none";
  } else if (name == "keep") {
    fits = value > 0 && value <= 1 && static_cast<float>(value) > 0;
    expected = "a probability above 0";
  } else if (name == "seed" || name == "offset") {
    fits = whole && value >= 0 && value < kMostInteger;
    expected = "an integer from 0 to 2^53 - 1";
  } else if (name == "masking") {
    fits = whole && value >= 0 && value <= 2;
    expected = "0 to add, 1 to select or 2 to select and multiply";
  } else if (name == "fill") {
    fits = !std::isnan(value);
    expected = "a number";
  } else if (name == "order") {
    const int64_t gates = gates_of(kernel);
    fits = whole && value >= 0 && value < (gates == 2 ? 2 : gates == 3 ? 6 : 24);
    expected = gates == 2   ? "the number of an order of 2 gates, 0 or 1"
               : gates == 3 ? "the number of an order of 3 gates, 0 to 5"
                            : "the number of an order of 4 gates, 0 to 23";
  } else if (name == "reverse" || name == "root" || name == "keeps") {
    fits = value == 0 || value == 1;
    expected = "0 or 1";
  }
  if (!fits) fail(kernel, name, " is ", value, ", expected ", expected);
}

void check_counts(const Kernel& kernel, const EchoCall& call) {
  const auto check = [&kernel](const char* what, int got, size_t expected, const void* data) {
    if (got != static_cast<int>(expected)) fail(kernel, "expected ", expected, " ", what, ", got ", got);
    if (expected > 0 && data == nullptr) fail(kernel, "expected ", expected, " ", what, ", got a null pointer");
  };
  check("inputs", call.num_in, kernel.inputs.size(), call.in);
  check("outputs", call.num_out, kernel.outputs.size(), call.out);
  check("outputs' reqs", call.num_out, kernel.outputs.size(), call.req);
  const bool least = call.num_params == static_cast<int>(kernel.least_params);
  check("parameters", call.num_params, least ? kernel.least_params : kernel.params.size(), call.params);
}

void check_together(const Kernel& kernel, const EchoCall& call) {
  for (size_t i = 0; i < kernel.inputs.size(); ++i) {
    for (size_t j = 0; j < kernel.inputs.size(); ++j) {
      const bool partners = kernel.inputs[j].name == kernel.inputs[i].together;
      if (partners && call.in[i].data != nullptr && call.in[j].data == nullptr && element_count(call.in[i]) > 0) {
        fail(kernel, kernel.inputs[i].name, " came without ", kernel.inputs[j].name, ", expected both or neither");
      }
    }
  }
}

const Kernel& known(const EchoCall& call) {
  const Kernel* kernel = call.kernel == nullptr ? nullptr : find_kernel(call.kernel);
  if (kernel == nullptr) {
    throw WrongCall(std::string("there is no kernel ") + (call.kernel == nullptr ? "NULL" : call.kernel));
  }
  return *kernel;
}

size_t position(const std::vector<TensorSpec>& specs, const char* name) {
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) return i;
  }
  throw std::logic_error(std::string("no tensor has the name ") + name);
}

size_t position(const std::vector<std::string>& names, const char* name) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return i;
  }
  throw std::logic_error(std::string("no dimension or parameter has the name ") + name);
}

}  // namespace

Call::Call(const EchoCall& call, bool with_data)
    : kernel_(known(call)), call_(call), dims_(kernel_.symbols.size(), -1) {
  check_counts(kernel_, call);
  int floating = -1;
  for (int i = 0; i < call.num_in; ++i) {
    const TensorSpec& spec = kernel_.inputs[i];
    const EchoTensor& tensor = call.in[i];
    if (tensor.data != nullptr || tensor.ndim != 0) {
      check_shape(kernel_, spec, tensor, &dims_);
      if (spec.read) check_dtype(kernel_, spec, tensor, &floating);
    }
    if (with_data && spec.read) check_data(kernel_, spec, tensor, !spec.optional);
  }
  for (int i = 0; i < call.num_out; ++i) {
    const TensorSpec& spec = kernel_.outputs[i];
    const EchoTensor& tensor = call.out[i];
    check_req(kernel_, spec, tensor, call.req[i]);
    if (tensor.data != nullptr || tensor.ndim != 0) {
      check_shape(kernel_, spec, tensor, &dims_);
      if (call.req[i] != ECHO_SKIP) check_dtype(kernel_, spec, tensor, &floating);
    }
    if (with_data && call.req[i] != ECHO_SKIP) check_data(kernel_, spec, tensor, !spec.optional);
  }
  for (int i = 0; i < call.num_params; ++i) check_param(kernel_, kernel_.params[i], call.params[i]);
  if (with_data) check_together(kernel_, call);
  half_ = floating == ECHO_FLOAT16;
  for (int64_t& dim : dims_) dim = dim < 0 ? 0 : dim;
}

int64_t Call::operator[](const char* symbol) const { return dims_[position(kernel_.symbols, symbol)]; }

double Call::param(const char* name) const {
  const size_t at = position(kernel_.params, name);
  return at < static_cast<size_t>(call_.num_params) ? call_.params[at] : 0;
}

Places Call::places(int gates) const {
  Places found{0, 1, 2, 3};
  const int order = static_cast<int>(param("order"));
  for (int i = 0; i < order; ++i) std::next_permutation(found.begin(), found.begin() + gates);
  return found;
}

const void* Call::in(const char* name) const { return call_.in[position(kernel_.inputs, name)].data; }

int Call::in_dtype(const char* name) const { return call_.in[position(kernel_.inputs, name)].dtype; }

void* Call::out(const char* name) const {
  const size_t at = position(kernel_.outputs, name);
  return call_.req[at] == ECHO_SKIP ? nullptr : call_.out[at].data;
}

int Call::out_dtype(const char* name) const { return call_.out[position(kernel_.outputs, name)].dtype; }

bool Call::skips(const char* name) const { return call_.req[position(kernel_.outputs, name)] == ECHO_SKIP; }

bool Call::adds(const char* name) const { return call_.req[position(kernel_.outputs, name)] == ECHO_ADD; }

bool Call::zero_gradient() const {
  bool reads = false;
  for (size_t i = 0; i < kernel_.inputs.size(); ++i) {
    if (!kernel_.inputs[i].gradient || !kernel_.inputs[i].read) continue;
    reads = true;
    if (call_.in[i].data != nullptr) return false;
  }
  return reads;
}

void Call::write_zeros(const char* name) const {
  const size_t at = position(kernel_.outputs, name);
  const EchoTensor& tensor = call_.out[at];
  if (call_.req[at] != ECHO_WRITE || tensor.data == nullptr) return;
  std::memset(tensor.data, 0, element_count(tensor) * dtype_bytes(tensor.dtype));
}

void Call::require_workspace(size_t bytes) const {
  if (bytes == 0) return;
  if (call_.workspace == nullptr || call_.workspace_bytes < bytes) {
    throw WrongCall(std::string(name()) + ": expected a workspace of " + std::to_string(bytes) + " bytes, got " +
                    (call_.workspace == nullptr ? "none" : std::to_string(call_.workspace_bytes)));
  }
  if (reinterpret_cast<uintptr_t>(call_.workspace) % 64 != 0) {
    throw WrongCall(std::string(name()) + ": the workspace is not aligned to 64 bytes");
  }
}

void Call::write_zeros() const {
  for (const TensorSpec& spec : kernel_.outputs) write_zeros(spec.name.c_str());
}

int64_t element_count(const EchoTensor& tensor) {
  int64_t count = 1;
  for (int axis = 0; axis < tensor.ndim; ++axis) count *= tensor.shape[axis];
  return count;
}

size_t dtype_bytes(int dtype) {
  switch (dtype) {
    case ECHO_FLOAT32:
    case ECHO_INT32: return 4;
    case ECHO_FLOAT16: return 2;
    case ECHO_UINT8: return 1;
    default: return 0;
  }
}

void set_error(const std::string& message) { last_error = message; }

}  // namespace kernels
}  // namespace echo

const char* echo_kernels_error(void) { return echo::kernels::last_error.c_str(); }
