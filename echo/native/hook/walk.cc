#include "walk.h"

#include <new>

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

}  // namespace echo
