#include "graph_walk.h"

#include <new>
#include <stdexcept>

#include "mxnet_api.h"

namespace echo {

NodePtr node_like(const RawNode& node) {
  void* memory = ::operator new(sizeof(RawNode));
  auto* copy = static_cast<RawNode*>(memory);
  api().copy_attrs(&copy->attrs, node.attrs);
  new (&copy->inputs) std::vector<RawEntry>();
  new (&copy->control_deps) std::vector<NodePtr>();
  copy->info = RawAny{};
  copy->attrs.name += "_echo";
  return NodePtr(copy, [](RawNode* raw) {
    api().destroy_node(raw);
    ::operator delete(raw);
  });
}

NodePtr node_like(const RawNode& node, const std::string& key, const std::string& value) {
  std::vector<const char*> keys{key.c_str()}, values{value.c_str()};
  const auto* attribute = static_cast<const MapNode<std::string>*>(node.attrs.dict.first);
  for (; attribute; attribute = attribute->next) {
    if (attribute->key == key) continue;
    keys.push_back(attribute->key.c_str());
    values.push_back(attribute->value.c_str());
  }
  RawSymbol* symbol = nullptr;
  if (api().new_symbol(node.attrs.op, static_cast<std::uint32_t>(keys.size()), keys.data(), values.data(), &symbol))
    throw std::runtime_error("echo: node '" + node.attrs.name + "': MXNet does not take its attributes again");
  NodePtr copy = symbol->outputs.at(0).node;
  api().free_symbol(symbol);
  copy->attrs.name = node.attrs.name + "_echo";
  return copy;
}

}  // namespace echo
