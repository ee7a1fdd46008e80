// A training graph as flat arrays, and the same graph with clones added for recomputed feature maps.
// Specified by echo/ir/schedule.py; echo/native/hook/gradient.cc makes the same clones on MXNet's own nodes.
#pragma once
#include <cstdint>
#include <vector>

namespace echo {

// An executor plans the whole graph at once. A CachedOp plans forward and backward nodes apart, and either keeps every
// chunk (static) or holds each from the first write to the last read (dynamic).
enum Runner : std::int32_t { kExecutor = 0, kStatic = 1, kDynamic = 2, kShaped = 3 };

// Borrowed arrays; an entry is one output of one node, numbered consecutively in node order.
struct TrainingArrays {
  std::int32_t nodes, entries, outputs;
  std::int32_t runner;                // what will run the graph, a Runner
  std::int32_t reuse_delay;              // with a pool: nodes between the last use of a chunk and its return
  const std::int32_t* entry_begin;    // [nodes + 1] first entry of each node
  const std::int32_t* input_begin;    // [nodes + 1]
  const std::int32_t* input_entry;    // the entries each node reads
  const std::uint8_t* input_shape_only;  // 1: read for its shape only
  const std::int32_t* input_in_kernel;   // > 0: read in this kernel, which computes it too; -1: in any that reads it
  const std::int32_t* dep_begin;      // [nodes + 1]
  const std::int32_t* dep_node;       // control dependencies
  const std::int32_t* inplace_begin;  // [nodes + 1]
  const std::int32_t* inplace;        // triples (input, output, identity)
  const std::uint8_t* variable;       // [nodes]
  const std::uint8_t* forward;        // [nodes] 1: part of the original graph
  const std::uint8_t* masked;         // [nodes] 1: recomputed from data and a stashed mask (Dropout)
  const std::int64_t* elements;       // [entries]
  const std::uint8_t* dtype;          // [entries] MXNet's type flag
  const std::uint8_t* dtype_size;     // [entries] bytes an element
  const std::uint8_t* external;       // [entries] 1: storage is not the planner's (gradients, sparse)
  const std::uint8_t* untouched;      // [entries] 1: MXNet plans memory for it and never touches that
  const std::int64_t* handed_out;  // [entries] kDynamic: bytes of the block that a pool gives for it; null: no pool
  const std::int32_t* output_entry;  // [outputs]
  const std::int64_t*
      layout_copy_bytes;  // [nodes] what each copy of a forward node keeps alongside all that is planned
  const double* seconds;  // [nodes] time to run a forward node once more
};

// Positions in the order of the nodes from which on backward nodes read another copy of a forward node: `position[i]` is
// one of node `node[i]`. Sorted by node, then position.
struct SplitArrays {
  std::int32_t count = 0;
  const std::int32_t *node = nullptr, *position = nullptr;
};

// What the gradient hook makes of a plan. Nodes >= arrays.nodes are clones, and so are entries >= arrays.entries.
class GraphWithClones {
 public:
  explicit GraphWithClones(const TrainingArrays& given);

  // recompute[e] = 1: backward nodes read entry e from a clone, the same one unless there are splits: then readers before
  // the first position read the original, those between the first and the second a clone, and so on. Rebuilds `order`
  // and all that depends on clones; what the graph itself says is laid out once, since a search applies thousands.
  void apply(const std::uint8_t* recompute, const SplitArrays& splits);

  struct Span {
    const std::int32_t *first, *last;
    const std::int32_t* begin() const { return first; }
    const std::int32_t* end() const { return last; }
    std::int32_t size() const { return static_cast<std::int32_t>(last - first); }
  };
  std::int32_t node_of(std::int32_t entry) const { return entry_node_[entry]; }
  std::int32_t origin(std::int32_t node) const {
    return node < arrays.nodes ? node : clone_origin_[node - arrays.nodes];
  }
  bool is_clone(std::int32_t node) const { return node >= arrays.nodes; }
  bool is_masked_clone(std::int32_t node) const { return is_clone(node) && arrays.masked[origin(node)]; }
  Span inputs(std::int32_t node) const {
    return {input_entry_.data() + input_begin_[node], input_entry_.data() + input_begin_[node + 1]};
  }
  Span deps(std::int32_t node) const {
    return {dep_node_.data() + dep_begin_[node], dep_node_.data() + dep_begin_[node + 1]};
  }
  std::int32_t entry_begin(std::int32_t node) const { return entry_begin_[node]; }
  std::int32_t entry_count(std::int32_t node) const { return entry_begin_[node + 1] - entry_begin_[node]; }
  // The user's entry that has the same shape and type as `entry`.
  std::int32_t entry_origin(std::int32_t entry) const {
    return entry < arrays.entries ? entry : clone_entry_origin_[entry - arrays.entries];
  }
  std::int32_t entries() const { return static_cast<std::int32_t>(entry_node_.size()); }
  std::int32_t nodes() const { return static_cast<std::int32_t>(entry_begin_.size()) - 1; }

  const TrainingArrays arrays;
  std::vector<std::int32_t> order;  // execution order: depth-first from the outputs, as NNVM does it

 private:
  std::int32_t* copy_at(std::int32_t node, std::int32_t position);
  void want(std::int32_t entry, std::int32_t position);
  void add_clone(std::int32_t node, std::int32_t position, std::int32_t before);
  void forget_clones();
  void redirect(std::int32_t position);
  void sort();
  std::int32_t redirected(std::int32_t entry, std::int32_t position);

  std::vector<std::int32_t> entry_begin_, entry_node_, input_begin_, input_entry_, dep_begin_, dep_node_;
  const std::uint8_t* recompute_ = nullptr;
  SplitArrays splits_;
  std::vector<std::int32_t> clone_origin_, clone_of_;  // clone_of_: a clone for each split, then one for each node
  std::vector<std::int32_t> split_begin_, wanted_, wanted_at_, clone_entry_origin_;
  std::vector<std::int32_t> redirected_;  // where input_entry_ differs from the user's
  std::vector<std::uint8_t> visited_;
  std::vector<std::pair<std::int32_t, std::int32_t>> stack_;
};

}  // namespace echo
