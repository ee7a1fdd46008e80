#include "storage.h"

#include <utility>

#include "../storage/assign.h"
#include "mxnet_api.h"
#include "unused_outputs.h"

namespace echo {

Reads reads_of(const RawGraph& graph) {
  Reads reads{{}, 0, static_cast<std::uint32_t>(api().indexed_graph(&graph)->nodes.size())};
  if (const auto* count = graph_attr<std::vector<std::uint32_t>>(graph, "ref_count")) reads.count = *count;
  if (const auto* range = graph_attr<std::pair<std::uint32_t, std::uint32_t>>(graph, "node_range")) {
    reads.first_node = range->first;
    reads.end_node = range->second;
  }
  return reads;
}

bool is_inference(const RawGraph& graph) {
  const Reads reads = reads_of(graph);
  if (reads.count.empty() || reads.first_node) return false;
  const RawIndexedGraph& indexed = *api().indexed_graph(&graph);
  std::vector<std::uint32_t> own(reads.count.size(), 0);
  const auto count = [&](const IndexedEntry& entry) { ++own.at(indexed.entry_offsets[entry.node] + entry.index); };
  for (const std::uint32_t node : indexed.input_nodes) ++own.at(indexed.entry_offsets[node]);
  for (const IndexedNode& node : indexed.nodes)
    for (std::size_t i = 0; i < node.inputs.size; ++i) count(node.inputs.data[i]);
  for (const IndexedEntry& output : indexed.outputs) count(output);
  return own == reads.count;
}

namespace {

class Assignment {
 public:
  Assignment(const Reads& reads, const RawGraph& graph)
      : reads_(reads),
        graph_(*api().indexed_graph(&graph)),
        shapes_(required_attr<std::vector<RawShape>>(graph, "shape")),
        inplace_(required_attr<std::vector<int>>(graph, "storage_inplace_index")),
        storage_(const_cast<std::vector<int>&>(required_attr<std::vector<int>>(graph, "storage_id"))),
        total_(const_cast<std::size_t&>(required_attr<std::size_t>(graph, "storage_allocated_bytes"))),
        block_of_(storage_.size(), -1),
        read_(storage_.size(), 0),
        untouched_(untouched(graph, reads.adds_in_place)) {}

  void run() {
    for (std::uint32_t node = reads_.first_node; node < reads_.end_node; ++node)
      if (graph_.nodes[node].source->attrs.op) visit(node);
    keep_what_is_read_later();
    std::vector<std::int32_t> chunk_of;
    total_ = static_cast<std::size_t>(assign_chunks(blocks_, INT64_MAX, &chunk_of));
    int chunks = 0;
    for (const std::int32_t chunk : chunk_of) chunks = std::max(chunks, chunk + 1);
    for (std::size_t entry = 0; entry < storage_.size(); ++entry) {
      if (block_of_[entry] >= 0) storage_[entry] = chunk_of[block_of_[entry]];
      if (untouched_[entry] == kAdded) storage_[entry] = kNoStorage;
      if (untouched_[entry] == kUnread) storage_[entry] = chunks;  // all of them are in one that is never allocated
    }
  }

 private:
  std::size_t id(const IndexedEntry& entry) const { return graph_.entry_offsets[entry.node] + entry.index; }
  std::int64_t bytes(std::size_t entry) const {
    std::int64_t elements = 1;
    for (int axis = 0; axis < shapes_[entry].ndim; ++axis) elements *= shapes_[entry].begin()[axis];
    return 4 * elements;  // as MXNet counts
  }

  void visit(std::uint32_t node) {
    const auto position = static_cast<std::int32_t>(node);
    const auto& inputs = graph_.nodes[node].inputs;
    for (std::size_t entry = graph_.entry_offsets[node]; entry < graph_.entry_offsets[node + 1]; ++entry) {
      if (storage_[entry] < 0 || untouched_[entry]) continue;
      if (inplace_[entry] >= 0) {
        block_of_[entry] = block_of_[id(inputs.data[inplace_[entry]])];
      } else {
        block_of_[entry] = static_cast<std::int32_t>(blocks_.size());
        blocks_.push_back({0, position, position});
      }
      Block& block = blocks_[block_of_[entry]];
      block.bytes = std::max(block.bytes, bytes(entry));
      block.last = position;
    }
    for (std::size_t i = 0; i < inputs.size; ++i) {
      const std::size_t entry = id(inputs.data[i]);
      ++read_[entry];
      if (block_of_[entry] >= 0) blocks_[block_of_[entry]].last = position;
    }
  }

  void keep_what_is_read_later() {
    const auto end = static_cast<std::int32_t>(reads_.end_node);
    for (const IndexedEntry& output : graph_.outputs) keep(id(output), end);
    for (std::size_t entry = 0; entry < reads_.count.size() && entry < block_of_.size(); ++entry)
      if (reads_.count[entry] > read_[entry]) keep(entry, end);
  }
  void keep(std::size_t entry, std::int32_t end) {
    if (block_of_[entry] >= 0) blocks_[block_of_[entry]].last = end;
  }

  const Reads& reads_;
  const RawIndexedGraph& graph_;
  const std::vector<RawShape>& shapes_;
  const std::vector<int>& inplace_;
  std::vector<int>& storage_;
  std::size_t& total_;
  std::vector<std::int32_t> block_of_;
  std::vector<std::uint32_t> read_;
  const std::vector<Untouched> untouched_;  // for these no memory is planned
  std::vector<Block> blocks_;
};

}  // namespace

void assign_storage(const Reads& reads, RawGraph* graph) { Assignment(reads, *graph).run(); }

}  // namespace echo
