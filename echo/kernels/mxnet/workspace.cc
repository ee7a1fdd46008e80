// The workspace of an operator before it runs: what planning asks, with the shapes and attributes that MXNet will hand
// over (boundary.cc). Every output is wanted, as in a training graph.
#include <algorithm>
#include <string>
#include <vector>

#include "check.h"
#include "echo_kernels.h"
#include "mxnet/shapes.h"
#include "table.h"

namespace echo {
namespace kernels {
namespace {

alignas(64) char g_somewhere[64];  // tensors that are there need an address, which nothing reads

struct Tensors {
  std::vector<EchoTensor> all;

  void add(const TensorSpec& spec, const Sizes& sizes, int floating, bool there) {
    const std::vector<int64_t> shape = sizes.shape_of(spec);
    EchoTensor tensor{};
    tensor.data = there ? g_somewhere : nullptr;
    tensor.dtype = spec.type == Type::kUint8 ? ECHO_UINT8 : spec.type == Type::kFloating ? floating : ECHO_FLOAT32;
    tensor.ndim = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor.shape);
    all.push_back(tensor);
  }
};

std::size_t bytes_of(const Kernel& kernel, const Sizes& sizes, const Attributes& attrs,
                     const std::vector<bool>& present, int floating, bool cuda) {
  Tensors in, out;
  const int inputs = static_cast<int>(present.size());
  const int gradients = kernel.is_grad ? static_cast<int>(kernel.inputs.size()) - inputs : 0;
  const int first = gradients / 2;  // where forward inputs begin: after the outputs' gradients, before the outputs
  for (int i = 0; i < static_cast<int>(kernel.inputs.size()); ++i) {
    const int source = i - first;
    in.add(kernel.inputs[i], sizes, floating, source < 0 || source >= inputs || present[source]);
  }
  for (std::size_t i = 0; i < kernel.outputs.size(); ++i)
    out.add(kernel.outputs[i], sizes, floating, !kernel.is_grad || present[i]);
  std::vector<int32_t> req;
  for (const EchoTensor& tensor : out.all) req.push_back(tensor.data ? ECHO_WRITE : ECHO_SKIP);
  std::vector<double> params;
  for (const std::string& name : kernel.params) params.push_back(attrs.number(name));
  EchoCall call{};
  call.kernel = kernel.name.c_str();
  call.in = in.all.data();
  call.out = out.all.data();
  call.req = req.data();
  call.params = params.data();
  call.num_in = static_cast<int32_t>(in.all.size());
  call.num_out = static_cast<int32_t>(out.all.size());
  call.num_params = static_cast<int32_t>(params.size());
  const std::size_t bytes = cuda ? echo_cuda_workspace(&call) : echo_cpu_workspace(&call);
  if (bytes == SIZE_MAX) throw WrongCall(echo_kernels_error());
  return bytes;
}

std::size_t most_bytes(const Kernel& forward, const Attributes& attrs, const int64_t* const* shapes, const int* dims,
                       int count, int floating, bool cuda) {
  const std::vector<bool> present = attrs.present(forward);
  Sizes sizes(forward);
  int given = 0;
  for (std::size_t i = 0; i < present.size(); ++i) {
    if (!present[i]) continue;
    if (given == count) throw WrongCall(forward.name + ": got " + std::to_string(count) + " inputs, expected more");
    sizes.learn(forward.inputs[i], std::vector<int64_t>(shapes[given], shapes[given] + dims[given]));
    ++given;
  }
  sizes.solve();
  const std::size_t bytes = bytes_of(forward, sizes, attrs, present, floating, cuda);
  const Kernel* gradient = find_kernel((forward.name + "_grad").c_str());
  return gradient ? std::max(bytes, bytes_of(*gradient, sizes, attrs, present, floating, cuda)) : bytes;
}

}  // namespace
}  // namespace kernels
}  // namespace echo

// Bytes that an operator NAME, or its gradient, needs as workspace, whichever needs more; SIZE_MAX where it cannot have
// such inputs. `floating` is the type of its floating tensors, as in echo_kernels.h.
extern "C" __attribute__((visibility("default"))) std::size_t echo_operator_workspace(
    const char* name, const char* const* keys, const char* const* values, int count, const int64_t* const* shapes,
    const int* dims, int num_in, int floating, int cuda) {
  using namespace echo::kernels;
  std::size_t bytes = 0;
  const int failed = guard([&] {
    const Kernel* kernel = find_kernel(name);
    if (!kernel) throw WrongCall(std::string("there is no kernel ") + name);
    bytes = most_bytes(*kernel, Attributes(keys, values, count), shapes, dims, num_in, floating, cuda != 0);
  });
  return failed ? SIZE_MAX : bytes;
}
