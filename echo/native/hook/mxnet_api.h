// The functions of libmxnet.so that the hook calls, found by their exported (mangled) names at load time.
#pragma once
#include <string>

#include "array.h"
#include "layout.h"

namespace echo {

struct MxnetApi {
  RawPassRegistry* (*pass_registry)();
  const RawAny* (*op_attr_map)(const std::string&);
  const RawOp* (*op_get)(const std::string&);
  void (*copy_attrs)(RawAttrs*, const RawAttrs&);
  void (*destroy_node)(RawNode*);
  void (*destroy_graph)(RawGraph*);
  std::uint32_t (*num_outputs)(const RawNode*);
  const RawIndexedGraph* (*indexed_graph)(const RawGraph*);
  int (*new_symbol)(const RawOp*, std::uint32_t count, const char** keys, const char** values, RawSymbol** symbol);
  int (*free_symbol)(RawSymbol*);
  // nullptr in a build without oneDNN
  void (*plain_array)(void* result, const RawArray* array);     // NDArray::Reorder2Default
  const void* (*memory_of)(const RawArray* array);              // NDArray::GetMKLDNNData
  void (*new_array)(void* result, const void* memory_desc);     // NDArray(const dnnl::memory::desc&)
  void (*copy_array)(void* array, const void* memory);          // NDArray::CopyFrom(const dnnl::memory&)
  void (*destroy_array)(void* array);
  void (*allocate)(const RawArray* array);  // NDArray::CheckAndAlloc; nullptr where MXNet does not export it
  // MXNet's own OpenMP; nullptr in a build without it
  void (*in_threads)(void (*function)(void*), void* argument, unsigned threads, unsigned flags);  // GOMP_parallel
  int (*thread_count)();
  int (*thread_number)();
};

// Fills the table from an already loaded libmxnet; on failure returns false and names the missing symbol in *missing.
bool load_api(void* libmxnet, MxnetApi* api, std::string* missing);

const MxnetApi& api();  // valid after load_api succeeded

using InplaceOption = std::function<std::vector<std::pair<int, int>>(const RawAttrs&)>;
using InplaceIdentity = std::function<std::vector<bool>(const RawAttrs&)>;
using IgnoreInputs = std::function<std::vector<std::uint32_t>(const RawAttrs&)>;
using MutateInputs = std::function<std::vector<std::uint32_t>(const RawAttrs&)>;
using ResourceRequest = std::function<std::vector<int>(const RawAttrs&)>;

template <typename Function>
const Function* op_attr(const char* key, const RawOp* op) {
  const RawAny* any = api().op_attr_map(key);
  if (!any || !any->type) return nullptr;
  return static_cast<const RawOpMap<Function>*>(any->heap_value)->find(op);
}

// As the wheels lay out a std::function.
struct RawFunction {
  unsigned char functor[16];
  void* manager;
  void* invoker;
};
static_assert(sizeof(RawFunction) == sizeof(InplaceOption), "std::function");

// The function of an attribute for the operator of this number, or this name; nullptr where it has none.
const RawFunction* function_of(const char* attribute, std::size_t op);
const RawFunction* attribute_of(const char* attribute, const char* op);

constexpr char kCompute[] = "FComputeEx<cpu>";

struct RawContext {  // mxnet::OpContext, up to its mode
  bool needs_gradient, is_training;
};

using RawRequests = std::vector<std::int32_t>;  // mxnet::OpReqType: zero where an output is not wanted
using ComputeInvoker = void (*)(const void* functor, const RawAttrs&, const RawContext&, const RawArrays& inputs,
                                const RawRequests& requests, const RawArrays& outputs);

// Replaces the invoker of a function, if there is one, and keeps the original.
template <typename Invoker>
void wrap_function(const RawFunction* function, Invoker replacement, Invoker* original) {
  if (!function || !function->manager) return;
  *original = reinterpret_cast<Invoker>(function->invoker);
  __atomic_store_n(&const_cast<RawFunction*>(function)->invoker, reinterpret_cast<void*>(replacement),
                   __ATOMIC_SEQ_CST);
}

// Puts the original invoker back, unless another library has replaced it since.
template <typename Invoker>
void unwrap_function(const RawFunction* function, Invoker replacement, Invoker original) {
  if (original && function && function->invoker == reinterpret_cast<void*>(replacement))
    __atomic_store_n(&const_cast<RawFunction*>(function)->invoker, reinterpret_cast<void*>(original), __ATOMIC_SEQ_CST);
}

bool is_random(const RawAttrs& attrs);    // asks MXNet for random numbers, Dropout included
bool is_stateful(const RawAttrs& attrs);  // keeps a state object between forward and backward
bool mutates(const RawAttrs& attrs);      // writes into one of its inputs (BatchNorm's moving statistics)
std::vector<std::uint32_t> shape_only_inputs(const RawAttrs& attrs);  // read for their shape only

}  // namespace echo
