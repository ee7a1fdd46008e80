#include "unused_outputs.h"

#include <cstdlib>
#include <cstring>

#include "gradient_sums.h"
#include "mxnet_api.h"

namespace echo {

namespace {

constexpr int kNeverRead = -2;                           // as MXNet says it in storage_inplace_index
constexpr int kFloat32 = 0, kOnCpu = 1, kComputeEx = 1;  // a type flag, a device mask, a DispatchMode

struct Leaves {
  const char* op;
  std::uint32_t outputs;  // the first so many of its gradients, where nothing reads them
  int most_axes;          // oneDNN computes it where the incoming gradient has no more
};

// As tests/native/test_unused_outputs.py finds them: convolutions touch the gradient of a frozen weight, RNN touches
// that of its parameters.
constexpr Leaves kLeaves[] = {{"_backward_Convolution", 1, 5},
                              {"_backward_Deconvolution", 2, 5},
                              {"_backward_FullyConnected", 2, 4},
                              {"_backward_RNN", 1, 3}};

const Leaves* leaves(const RawOp& op) {
  for (const Leaves& each : kLeaves)
    if (op.name == each.op) return &each;
  return nullptr;
}

bool rnn_by_onednn() {
  const char* wanted = std::getenv("MXNET_USE_MKLDNN_RNN");
  return !wanted || std::strcmp(wanted, "0") != 0;
}

void find_unread(const RawGraph& graph, const RawIndexedGraph& indexed, std::vector<Untouched>* found) {
  const auto& shapes = required_attr<std::vector<RawShape>>(graph, "shape");
  const auto& dtypes = required_attr<std::vector<int>>(graph, "dtype");
  const auto& inplace = required_attr<std::vector<int>>(graph, "storage_inplace_index");
  const auto& storage = required_attr<std::vector<int>>(graph, "storage_id");
  const auto* devices = graph_attr<std::vector<int>>(graph, "dev_mask");
  const auto* modes = graph_attr<std::vector<int>>(graph, "dispatch_mode");
  if (!devices || !modes || devices->size() != indexed.nodes.size() || modes->size() != devices->size()) return;
  const bool rnn = rnn_by_onednn();
  for (std::size_t number = 0; number < indexed.nodes.size(); ++number) {
    const IndexedNode& node = indexed.nodes[number];
    const Leaves* each = node.source->attrs.op ? leaves(*node.source->attrs.op) : nullptr;
    if (!each || (*devices)[number] != kOnCpu || (*modes)[number] != kComputeEx || node.inputs.size == 0) continue;
    if (!rnn && std::strcmp(each->op, "_backward_RNN") == 0) continue;
    const std::size_t incoming = indexed.entry_offsets[node.inputs.data[0].node] + node.inputs.data[0].index;
    if (shapes[incoming].ndim > each->most_axes) continue;
    const std::size_t first = indexed.entry_offsets[number], end = indexed.entry_offsets[number + 1];
    for (std::size_t entry = first; entry < end && entry < first + each->outputs; ++entry)
      if (inplace[entry] == kNeverRead && storage[entry] >= 0 && dtypes[entry] == kFloat32) (*found)[entry] = kUnread;
  }
}

}  // namespace

std::vector<Untouched> untouched(const RawGraph& graph, bool adds_in_place) {
  const RawIndexedGraph& indexed = *api().indexed_graph(&graph);
  const auto& storage = required_attr<std::vector<int>>(graph, "storage_id");
  std::vector<Untouched> found(storage.size(), kTouched);
  find_unread(graph, indexed, &found);
  if (!adds_in_place) return found;
  for (const GradientSum& sum : gradient_sums(indexed, storage)) {
    const std::size_t term = indexed.entry_offsets[sum.term.node] + sum.term.index;
    if (sum.in_place && storage[term] >= 0) found[term] = kAdded;
  }
  return found;
}

}  // namespace echo
