// The fused kernels as operators of MXNet 1.9: an extension library, as mx.library.load takes it. Operator _echo_NAME is
// the kernel NAME, _backward__echo_NAME the kernel NAME_grad.
//
// MXNet finds an extension by the C functions below and hands their answers back to it as opaque pointers, so no header
// of MXNet's is needed. Attributes of an operator: `present`, which of the kernel's inputs there are ("11100"; without it
// those that are not optional), `out`, the shape of the first output where there is a choice, the kernel's parameters.
//
// MXNet never says whether a result is to be added to what is there: the hook in its gradient pass sees to that.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "check.h"
#include "echo_kernels.h"
#include "mxnet/shapes.h"
#include "table.h"

#define MXNET_CALLS extern "C" __attribute__((visibility("default")))

namespace echo {
namespace kernels {
namespace {

constexpr int kVersion = 11;  // of MXNet 1.9's extension interface
constexpr int kFirst = 10900, kAfter = 11000;  // MXNet 1.9
constexpr std::size_t kAlignment = 64;

struct Operator;
struct Run {  // what MXNet calls a function
  const Operator* op;
  bool backward, cuda;
};

struct Operator {
  std::string name;
  const Kernel *forward, *gradient;
  Run runs[2][2];  // forward and backward, on the CPU and on CUDA devices
  void* functions[2][2];  // the same, as MXNet wants them
};

std::deque<Operator> make_operators() {
  std::deque<Operator> made;  // whose elements stay where they are: MXNet keeps pointers to them
  for (const Kernel& kernel : all_kernels()) {
    if (kernel.is_grad || kernel.name == "dropout") continue;  // graphs keep MXNet's Dropout, which draws
    made.emplace_back();
    Operator& op = made.back();
    op.name = "_echo_" + kernel.name;
    op.forward = &kernel;
    op.gradient = find_kernel((kernel.name + "_grad").c_str());
    for (const bool backward : {false, true})
      for (const bool cuda : {false, true}) {
        op.runs[backward][cuda] = {&op, backward, cuda};
        op.functions[backward][cuda] = &op.runs[backward][cuda];
      }
  }
  return made;
}

std::deque<Operator>& operators() {
  static auto* all = new std::deque<Operator>(make_operators());
  return *all;
}

thread_local std::string t_message;

// Runs something for MXNet: 1, or 0 with a message.
template <typename Action>
int answer(const Action& action) {
  t_message.clear();
  if (guard(action) == 0) return 1;
  t_message = echo_kernels_error();
  return 0;
}

EchoTensor tensor(const std::vector<int64_t>& shape, int dtype, void* data) {
  EchoTensor made{};
  made.data = data;
  made.dtype = dtype;
  made.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), made.shape);
  return made;
}

}  // namespace

// The tensors of one call of MXNet's, in the kernel's order and shapes.
struct Tensors {
  std::vector<EchoTensor> in, out;
  std::vector<int32_t> req;
  std::vector<double> params;
};

struct Arrays {  // as MXNet hands them over
  const int64_t* const* shapes;
  const int* dims;
  void* const* data;
  const int* types;
  int count;
};

static int type_of(const TensorSpec& spec, int floating) {
  return spec.type == Type::kUint8 ? ECHO_UINT8 : spec.type == Type::kFloating ? floating : ECHO_FLOAT32;
}

static void append(const TensorSpec& spec, const Sizes& sizes, const Arrays& arrays, int position, bool there,
                   std::vector<EchoTensor>* to) {
  const std::vector<int64_t> shape = sizes.shape_of(spec);
  if (there)
    to->push_back(tensor(shape, arrays.types[position], arrays.data[position]));
  else  // every kernel's first array is a floating one
    to->push_back(tensor(shape, type_of(spec, arrays.types[0]), nullptr));
}

static Tensors tensors_of(const Run& run, const Attributes& attrs, const Arrays& in, const Arrays& out) {
  const Kernel& forward = *run.op->forward;
  const Kernel& kernel = run.backward ? *run.op->gradient : forward;
  const std::vector<bool> present = attrs.present(forward);
  const int gradients = run.backward ? static_cast<int>(forward.outputs.size()) : 0;
  // what a gradient does not read has been exchanged for other arrays, but the gradients have the shapes of the inputs
  const Arrays& known = run.backward ? out : in;
  Sizes sizes(forward);
  for (int i = 0, given = 0; i < static_cast<int>(forward.inputs.size()); ++i)
    if (present[i]) {
      sizes.learn(forward.inputs[i],
                  std::vector<int64_t>(known.shapes[given], known.shapes[given] + known.dims[given]));
      ++given;
    }
  sizes.solve();
  Tensors made;
  int position = 0;
  for (std::size_t i = 0; i < kernel.inputs.size(); ++i) {
    const int source = static_cast<int>(i) - gradients;
    const bool there = source < 0 || source >= static_cast<int>(forward.inputs.size()) || present[source];
    const TensorSpec& spec = kernel.inputs[i];
    append(spec, sizes, in, position, there && (!run.backward || spec.read), &made.in);
    position += there;
  }
  if (position != in.count)
    throw WrongCall(kernel.name + ": expected " + std::to_string(position) + " arrays to read, got " +
                    std::to_string(in.count));
  position = 0;
  for (std::size_t i = 0; i < kernel.outputs.size(); ++i) {
    const bool there = !run.backward || present[i];
    append(kernel.outputs[i], sizes, out, position, there, &made.out);
    made.req.push_back(there && out.data[position] ? ECHO_WRITE : ECHO_SKIP);
    position += there;
  }
  for (const std::string& name : kernel.params) made.params.push_back(attrs.number(name));
  return made;
}

static void* aligned(void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

using Allocate = void* (*)(void*, int);

static void run_kernel(const Run& run, const Tensors& given, Allocate allocate, void* allocator, void* stream,
                       void* random) {
  EchoCall call{};
  call.kernel = (run.backward ? run.op->gradient : run.op->forward)->name.c_str();
  call.in = given.in.data();
  call.out = given.out.data();
  call.req = given.req.data();
  call.params = given.params.data();
  call.num_in = static_cast<int32_t>(given.in.size());
  call.num_out = static_cast<int32_t>(given.out.size());
  call.num_params = static_cast<int32_t>(given.params.size());
  call.stream = stream;
  call.random = random;
  const std::size_t bytes = run.cuda ? echo_cuda_workspace(&call) : echo_cpu_workspace(&call);
  if (bytes == SIZE_MAX) throw WrongCall(echo_kernels_error());
  if (bytes > static_cast<std::size_t>(INT32_MAX) - kAlignment)
    throw WrongCall(std::string(call.kernel) + ": a workspace of " + std::to_string(bytes) +
                    " bytes is more than MXNet gives");
  if (bytes) {
    call.workspace = aligned(allocate(allocator, static_cast<int>(bytes + kAlignment)));
    call.workspace_bytes = bytes;
  }
  if ((run.cuda ? echo_cuda_call(&call) : echo_cpu_call(&call)) != 0) throw WrongCall(echo_kernels_error());
}

}  // namespace kernels
}  // namespace echo

using namespace echo::kernels;
using Texts = const char* const*;

MXNET_CALLS int initialize(int version) {
  return answer([&] {
    if (version < kFirst || version >= kAfter)
      throw WrongCall("echo's kernels are for MXNet 1.9, got version " + std::to_string(version));
  });
}
MXNET_CALLS int _opVersion() { return kVersion; }
MXNET_CALLS int _msgSize() { return t_message.empty() ? 0 : 1; }
MXNET_CALLS void _msgGet(int, const char** message) { *message = t_message.c_str(); }
MXNET_CALLS void _opCallFree(void* memory) { std::free(memory); }
MXNET_CALLS int _opRegSize() { return static_cast<int>(operators().size()); }
MXNET_CALLS int _partRegSize() { return 0; }
MXNET_CALLS int _passRegSize() { return 0; }

MXNET_CALLS void _opRegGet(int index, const char** name, int* is_subgraph, const char*** forward_contexts,
                           void*** forward, int* forward_count, const char*** backward_contexts, void*** backward,
                           int* backward_count, const char*** create_contexts, void*** create, int* create_count,
                           void** parse, void** type, void** storage, void** shape, void** mutate) {
  static const char* contexts[] = {"cpu", "gpu"};
  Operator& op = operators()[index];
  *name = op.name.c_str();
  *is_subgraph = 0;
  *forward_contexts = *backward_contexts = contexts;
  *forward = op.functions[0];
  *backward = op.functions[1];
  *forward_count = *backward_count = 2;
  *create_contexts = nullptr;
  *create = nullptr;
  *create_count = 0;
  *parse = *type = *shape = &op;
  *storage = *mutate = nullptr;
}

MXNET_CALLS int _opCallParseAttrs(void* token, Texts keys, Texts values, int count, int* num_in, int* num_out) {
  const auto& op = *static_cast<const Operator*>(token);
  return answer([&] {
    *num_in = 0;
    for (const bool there : Attributes(keys, values, count).present(*op.forward)) *num_in += there;
    *num_out = static_cast<int>(op.forward->outputs.size());
  });
}

MXNET_CALLS int _opCallInferType(void* token, Texts keys, Texts values, int count, int* in, int num_in, int* out,
                                 int num_out) {
  const auto& op = *static_cast<const Operator*>(token);
  return answer([&] { infer_types(*op.forward, Attributes(keys, values, count), in, num_in, out, num_out); });
}

// Arrays that MXNet frees with _opCallFree.
static void hand_over(const std::vector<std::vector<int64_t>>& shapes, unsigned*** sizes, int** dims) {
  *sizes = static_cast<unsigned**>(std::malloc((shapes.size() + 1) * sizeof(unsigned*)));
  *dims = static_cast<int*>(std::malloc((shapes.size() + 1) * sizeof(int)));
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    (*dims)[i] = static_cast<int>(shapes[i].size());
    (*sizes)[i] = static_cast<unsigned*>(std::malloc((shapes[i].size() + 1) * sizeof(unsigned)));
    std::transform(shapes[i].begin(), shapes[i].end(), (*sizes)[i],
                   [](int64_t size) { return static_cast<unsigned>(size); });
  }
}

MXNET_CALLS int _opCallInferShape(void* token, Texts keys, Texts values, int count, unsigned** in, int* dims,
                                  int num_in, unsigned*** found, int** found_dims, unsigned*** out, int** out_dims,
                                  int) {
  const auto& op = *static_cast<const Operator*>(token);
  return answer([&] {
    std::vector<std::vector<int64_t>> shapes(num_in);
    for (int i = 0; i < num_in; ++i)  // an unknown size is -1, or in another mode of MXNet's 0
      for (int axis = 0; axis < dims[i]; ++axis) shapes[i].push_back(static_cast<int32_t>(in[i][axis]));
    const auto outputs = infer_shapes(*op.forward, Attributes(keys, values, count), &shapes);
    hand_over(shapes, found, found_dims);
    hand_over(outputs, out, out_dims);
  });
}

MXNET_CALLS int _opCallFCompute(void* token, Texts keys, Texts values, int count, const int64_t** in_shapes,
                                int* in_dims, void** in_data, int* in_types, size_t*, const char**, int*, int num_in,
                                const int64_t** out_shapes, int* out_dims, void** out_data, int* out_types, size_t*,
                                const char**, int*, int num_out, Allocate cpu_malloc, void* cpu_alloc,
                                Allocate gpu_malloc, void* gpu_alloc, void* stream, void*, void*, int*, int*, void**,
                                void**, void**, void**, int64_t*, int64_t*, int64_t*, int64_t*, void* cpu_states,
                                void*) {
  const Run& run = *static_cast<const Run*>(token);
  return answer([&] {
    const Tensors tensors = tensors_of(run, Attributes(keys, values, count),
                                       {in_shapes, in_dims, in_data, in_types, num_in},
                                       {out_shapes, out_dims, out_data, out_types, num_out});
    run_kernel(run, tensors, run.cuda ? gpu_malloc : cpu_malloc, run.cuda ? gpu_alloc : cpu_alloc, stream,
               run.cuda ? nullptr : cpu_states);
  });
}

// MXNet looks all of these up, and calls none of them: no operator here has a state, a storage type or inputs to change,
// and there are neither partitioners nor passes.
MXNET_CALLS int _opCallInferSType() { return 0; }
MXNET_CALLS int _opCallMutateInputs() { return 0; }
MXNET_CALLS int _opCallCreateOpState() { return 0; }
MXNET_CALLS void _opCallDestroyOpState() {}
MXNET_CALLS int _opCallFStatefulCompute() { return 0; }
MXNET_CALLS int _partRegGetCount() { return 0; }
MXNET_CALLS void _partRegGet() {}
MXNET_CALLS int _partCallSupportedOps() { return 0; }
MXNET_CALLS int _partCallCreateSelector() { return 0; }
MXNET_CALLS void _partCallSelect() {}
MXNET_CALLS void _partCallSelectInput() {}
MXNET_CALLS void _partCallSelectOutput() {}
MXNET_CALLS void _partCallFilter() {}
MXNET_CALLS void _partCallReset() {}
MXNET_CALLS int _partCallReviewSubgraph() { return 0; }
MXNET_CALLS void _passRegGet() {}
MXNET_CALLS int _passCallGraphPass() { return 0; }
