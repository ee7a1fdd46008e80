// By oneDNN, MXNet's gradient of a Deconvolution writes that of the weight to where its array will be, allocated or not.
// Outside of executors, arrays are allocated when they are first written: of a weight that several layers share, whose
// gradients are added, that is the null pointer, unless an array that was there before had the same memory.
#include "deconvolution.h"

#include "array.h"
#include "mxnet_api.h"

namespace echo {
namespace {

const char kBackward[] = "_backward_Deconvolution";
constexpr std::size_t kWeight = 1;

ComputeInvoker g_backward = nullptr;

void backward(const void* functor, const RawAttrs& attrs, const RawContext& context, const RawArrays& inputs,
              const RawRequests& requests, const RawArrays& outputs) {
  if (kWeight < requests.size() && requests[kWeight]) api().allocate(&at(outputs, kWeight, requests.size()));
  g_backward(functor, attrs, context, inputs, requests, outputs);
}

}  // namespace

void wrap_deconvolution() {
  if (api().allocate) wrap_function(attribute_of(kCompute, kBackward), backward, &g_backward);
}

void unwrap_deconvolution() { unwrap_function(attribute_of(kCompute, kBackward), backward, g_backward); }

}  // namespace echo
