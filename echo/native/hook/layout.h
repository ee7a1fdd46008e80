// The few NNVM structures that the hook reads and writes, as the MXNet 1.9.1 wheels lay them out.
//
// The wheels were built by GCC 4.8.5: std::string is the old reference-counted one (this library is compiled with
// _GLIBCXX_USE_CXX11_ABI=0), vector, shared_ptr and std::function match today's libstdc++, and std::unordered_map is
// 48 bytes instead of 56. So NNVM's own headers cannot be used; maps are walked as linked lists and never modified.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace echo {

struct RawMap {  // std::unordered_map as of GCC 4.8
  void* buckets;
  std::size_t bucket_count;
  void* first;
  std::size_t size;
  unsigned char rest[16];
};
static_assert(sizeof(RawMap) == 48, "unordered_map of the wheels");

template <typename Value>
struct MapNode {  // an element of such a map
  MapNode* next;
  std::string key;
  Value value;
};

struct RawAny {  // dmlc::any: up to 24 bytes are stored inline, larger values on the heap
  const void* type;
  union {
    unsigned char inline_value[24];
    void* heap_value;
  };
};
static_assert(sizeof(RawAny) == 32, "dmlc::any");

struct RawOp {
  std::string name;
  std::string description;
  unsigned char arguments[24];
  std::uint32_t num_inputs, num_outputs, support_level;
  alignas(8) unsigned char functions[3][32];  // get_num_outputs, get_num_inputs, attr_parser
  std::uint32_t index;
};
static_assert(offsetof(RawOp, index) == 152, "nnvm::Op::index_");

struct RawNode;
struct RawEntry {
  std::shared_ptr<RawNode> node;
  std::uint32_t index, version;
};
static_assert(sizeof(RawEntry) == 24, "nnvm::NodeEntry");

struct RawAttrs {
  const RawOp* op;
  std::string name;
  RawMap dict;  // string -> string
  RawAny parsed;
  std::vector<std::shared_ptr<void>> subgraphs;
};
static_assert(sizeof(RawAttrs) == 120, "nnvm::NodeAttrs");

struct RawNode {
  RawAttrs attrs;
  std::vector<RawEntry> inputs;
  std::vector<std::shared_ptr<RawNode>> control_deps;
  RawAny info;
};
static_assert(sizeof(RawNode) == 200, "nnvm::Node");

struct RawSymbol {  // nnvm::Symbol
  std::vector<RawEntry> outputs;
};

struct RawGraph {
  std::vector<RawEntry> outputs;
  RawMap attrs;  // string -> shared_ptr<any>
  std::shared_ptr<const void> indexed_graph;
};
static_assert(sizeof(RawGraph) == 88, "nnvm::Graph");

struct IndexedEntry {
  std::uint32_t node, index, version;
};
template <typename T>
struct ArrayView {
  const T* data;
  std::size_t size;
};
struct IndexedNode {
  const RawNode* source;
  ArrayView<IndexedEntry> inputs;
  ArrayView<std::uint32_t> control_deps;
  std::weak_ptr<RawNode> weak;
};
static_assert(sizeof(IndexedNode) == 56, "nnvm::IndexedGraph::Node");

struct RawIndexedGraph {
  std::vector<IndexedNode> nodes;
  std::vector<std::uint32_t> input_nodes;
  unsigned char mutable_input_nodes[48];
  std::vector<IndexedEntry> outputs;
  RawMap node_to_index;
  std::vector<std::size_t> entry_offsets;
};

struct RawShape {  // mxnet::TShape
  std::int32_t ndim, heap_capacity;
  std::int64_t stack[4];
  std::int64_t* heap;
  const std::int64_t* begin() const { return ndim <= 4 ? stack : heap; }
};
static_assert(sizeof(RawShape) == 48, "mxnet::TShape");

struct RawPass {  // nnvm::PassFunctionReg, up to its body
  std::string name;
  std::string description;
  unsigned char arguments[24];
  alignas(8) unsigned char body_functor[16];
  void* body_manager;
  void* body_invoker;  // (return slot, functor, Graph*)
};
static_assert(offsetof(RawPass, body_invoker) == 64, "nnvm::PassFunctionReg::body");

struct RawPassRegistry {  // dmlc::Registry<nnvm::PassFunctionReg>
  std::vector<RawPass*> entries;
};

template <typename Value>
struct RawOpMap {  // nnvm::OpMap<Value>, the heap value of an operator attribute
  std::string name;
  std::vector<std::pair<Value, int>> data;

  const Value* find(const RawOp* op) const {
    return op->index < data.size() && data[op->index].second ? &data[op->index].first : nullptr;
  }
};

template <typename Value>
const Value* map_find(const RawMap& map, const char* key) {
  for (auto* node = static_cast<const MapNode<Value>*>(map.first); node; node = node->next)
    if (node->key == key) return &node->value;
  return nullptr;
}

template <typename T>
const T* graph_attr(const RawGraph& graph, const char* key) {
  const auto* value = map_find<std::shared_ptr<RawAny>>(graph.attrs, key);
  if (!value || !*value) return nullptr;
  return reinterpret_cast<const T*>((*value)->inline_value);
}

template <typename T>
const T& required_attr(const RawGraph& graph, const char* key) {
  const T* value = graph_attr<T>(graph, key);
  if (!value) throw std::runtime_error(std::string("echo: MXNet's training graph has no attribute ") + key);
  return *value;
}

}  // namespace echo
