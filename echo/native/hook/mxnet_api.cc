#include "mxnet_api.h"

#include <dlfcn.h>

#include <algorithm>

namespace echo {

static MxnetApi g_api;

const MxnetApi& api() { return g_api; }

template <typename Function>
static bool resolve(void* lib, const char* symbol, Function* out, std::string* missing) {
  *out = reinterpret_cast<Function>(dlsym(lib, symbol));
  if (!*out && missing->empty()) *missing = symbol;
  return *out != nullptr;
}

bool load_api(void* lib, MxnetApi* out, std::string* missing) {
  missing->clear();
  bool ok = resolve(lib, "_ZN4dmlc8RegistryIN4nnvm15PassFunctionRegEE3GetEv", &out->pass_registry, missing);
  ok &= resolve(lib, "_ZN4nnvm2Op10GetAttrMapERKSs", &out->op_attr_map, missing);
  ok &= resolve(lib, "_ZN4nnvm2Op3GetERKSs", &out->op_get, missing);
  ok &= resolve(lib, "_ZN4nnvm9NodeAttrsC1ERKS0_", &out->copy_attrs, missing);
  ok &= resolve(lib, "_ZN4nnvm4NodeD1Ev", &out->destroy_node, missing);
  ok &= resolve(lib, "_ZN4nnvm5GraphD1Ev", &out->destroy_graph, missing);
  ok &= resolve(lib, "_ZNK4nnvm4Node11num_outputsEv", &out->num_outputs, missing);
  ok &= resolve(lib, "_ZNK4nnvm5Graph13indexed_graphEv", &out->indexed_graph, missing);
  ok &= resolve(lib, "NNSymbolCreateAtomicSymbol", &out->new_symbol, missing);
  ok &= resolve(lib, "NNSymbolFree", &out->free_symbol, missing);
  ok &= resolve(lib, "_ZN5mxnet7NDArrayD1Ev", &out->destroy_array, missing);
  std::string without_onednn;
  bool onednn = resolve(lib, "_ZNK5mxnet7NDArray15Reorder2DefaultEv", &out->plain_array, &without_onednn);
  onednn &= resolve(lib, "_ZNK5mxnet7NDArray13GetMKLDNNDataEv", &out->memory_of, &without_onednn);
  onednn &= resolve(lib, "_ZN5mxnet7NDArrayC1ERKN4dnnl6memory4descE", &out->new_array, &without_onednn);
  onednn &= resolve(lib, "_ZN5mxnet7NDArray8CopyFromERKN4dnnl6memoryE", &out->copy_array, &without_onednn);
  if (!onednn) out->plain_array = nullptr;
  std::string without_allocation;
  resolve(lib, "_ZNK5mxnet7NDArray13CheckAndAllocEv", &out->allocate, &without_allocation);
  std::string without_openmp;
  bool openmp = resolve(lib, "GOMP_parallel", &out->in_threads, &without_openmp);
  openmp &= resolve(lib, "omp_get_num_threads", &out->thread_count, &without_openmp);
  openmp &= resolve(lib, "omp_get_thread_num", &out->thread_number, &without_openmp);
  if (!openmp) out->in_threads = nullptr;
  if (ok) g_api = *out;
  return ok;
}

const RawFunction* function_of(const char* attribute, std::size_t op) {
  const RawAny* any = api().op_attr_map(attribute);
  if (!any || !any->type) return nullptr;
  const auto& data = static_cast<const RawOpMap<InplaceOption>*>(any->heap_value)->data;
  return op < data.size() && data[op].second ? reinterpret_cast<const RawFunction*>(&data[op].first) : nullptr;
}

const RawFunction* attribute_of(const char* attribute, const char* op) {
  return function_of(attribute, api().op_get(op)->index);
}

bool is_random(const RawAttrs& attrs) {
  // every operator of an extension library asks for random numbers; echo's, which draw none, are not to be held back by it
  for (const char* own : {"_echo_", "_backward__echo_"})
    if (attrs.op->name.compare(0, std::char_traits<char>::length(own), own) == 0) return false;
  const auto* request = op_attr<ResourceRequest>("FResourceRequest", attrs.op);
  if (request) {
    const auto kinds = (*request)(attrs);
    constexpr int temp_space = 1;  // mxnet::ResourceRequest::kTempSpace; every other kind draws random numbers
    if (std::any_of(kinds.begin(), kinds.end(), [](int kind) { return kind != temp_space; })) return true;
  }
  if (attrs.op->name == "Dropout") return true;  // asks through FResourceRequestEx, which depends on the device
  const std::string* act_type = map_find<std::string>(attrs.dict, "act_type");
  return attrs.op->name == "LeakyReLU" && act_type && *act_type == "rrelu";  // asks for it in secret
}

bool is_stateful(const RawAttrs& attrs) {
  // the function's signature is not needed: only whether the operator registered one
  return op_attr<std::function<void()>>("FCreateOpState", attrs.op) != nullptr;
}

bool mutates(const RawAttrs& attrs) {
  const auto* mutate = op_attr<MutateInputs>("FMutateInputs", attrs.op);
  return mutate && !(*mutate)(attrs).empty();
}

std::vector<std::uint32_t> shape_only_inputs(const RawAttrs& attrs) {
  const auto* ignore = op_attr<IgnoreInputs>("FIgnoreInputs", attrs.op);
  return ignore ? (*ignore)(attrs) : std::vector<std::uint32_t>();
}

}  // namespace echo
