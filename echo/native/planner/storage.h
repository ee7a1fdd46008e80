// MXNet's storage planner (the pass MXPlanMemory of 1.9.1), replayed on a planned graph.
// Specified by echo/estimators/mxnet_storage.py.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "../storage/assign.h"
#include "free_chunks.h"
#include "graph.h"

namespace echo {

// Bytes that MXNet would need: the sum of the chunks, or for kDynamic the most bytes of chunks alive at once, or what a
// pool then holds, which hands a freed block out again for requests of the same size alone. An entry
// takes a free chunk whose size is within a factor `match_range` of its own (0: never), or a new one; an operator that may
// work in place takes over its input's chunk. Sizes are counted as MXNet counts them, four bytes an element whatever the
// type. Chunks only grow, so a plan is given up as soon as its total exceeds `limit` (not for kDynamic); the result is then
// some number above `limit`. Chunks that MXNet never allocates, since nothing in them is ever touched, are not counted.
//
// Two numbers in place of a match range: kAssigned, the total of echo's own assignment (storage/assign.h), and kPeak, the
// most bytes alive at once, which no assignment goes below. There, what MXNet never touches has no chunk.
class StoragePlanner {
 public:
  static constexpr std::int64_t kAssigned = -1, kPeak = -2;

  explicit StoragePlanner(const GraphWithClones& graph);
  std::int64_t plan(std::int64_t match_range, std::int64_t limit);
  void count_references();  // once after each GraphWithClones::apply
  // Of the last plan: the chunk of each entry (negative: not the planner's), and the input whose chunk it took over or -1.
  std::int32_t chunk_of(std::int32_t entry) const;
  const std::vector<std::int32_t>& inplace() const { return inplace_; }

 private:
  static constexpr std::int32_t kNone = -1, kExternal = -2;
  // Shape and type of an entry, as far as storage goes.
  struct Kind {
    std::int32_t size;  // a number in sizes_
    std::uint8_t dtype, dtype_size;
  };
  struct Chunk {
    std::int32_t size, pending;  // a number in sizes_; reads that are still to come
    bool touched;  // where not, MXNet never allocates it
  };
  void sort_into_classes();
  const Kind& kind(std::int32_t entry) const { return kinds_[graph_.entry_origin(entry)]; }
  bool is_untouched(std::int32_t entry) const { return graph_.arrays.untouched[graph_.entry_origin(entry)]; }
  std::int32_t new_chunk(std::int32_t size);
  std::int32_t request(std::int32_t size);
  void take(std::int32_t entry);
  void release(std::int32_t chunk);
  void share_inputs(std::int32_t node);
  void allocate_outputs(std::int32_t node);
  void free_inputs(std::int32_t node);
  void begin_backward();
  void note_lifetimes(std::int32_t node, std::int32_t position);
  std::int64_t peak();
  std::int64_t pooled();
  std::int64_t assigned(std::int64_t limit);

  const GraphWithClones& graph_;
  std::vector<std::int64_t> sizes_;  // the bytes that entries have, from small to large
  std::vector<Kind> kinds_;  // of the user's entries
  std::vector<std::int32_t> unplanned_;  // storage_ before anything is planned
  std::vector<std::uint8_t> any_shape_only_,
      all_shape_only_;  // of the user's nodes: inputs that are read for their shape
  std::int64_t untouched_bytes_ = 0;  // of entries that are never touched
  std::int64_t match_range_ = 16, total_ = 0;
  std::int32_t forward_chunks_ = 0, forward_end_ = 0;  // kStatic, kDynamic: chunks and positions of forward nodes
  std::vector<std::int32_t> references_, storage_, inplace_;
  std::vector<Chunk> chunks_;
  FreeChunks free_;
  std::vector<std::int32_t> forward_storage_;  // kStatic, kDynamic: the chunks as the forward nodes left them
  std::vector<std::int32_t> chunk_first_,
      chunk_last_;  // kDynamic: positions of first write and last use; kNone: not held
  std::vector<std::int64_t> change_;
  std::vector<std::int64_t> handed_out_;  // with a pool: the bytes of the block for each of sizes_
  std::vector<std::int32_t> class_;  // with a pool: the first of sizes_ that gets a block of the same size
  std::vector<std::int32_t> live_, most_;  // blocks of each class
  std::vector<std::int32_t> starts_, ends_, next_start_, next_end_;  // chunks by position, as linked lists
  std::vector<Block> blocks_;
  std::vector<std::int32_t> assigned_;
  std::vector<std::pair<std::int32_t, std::int32_t>> wanted_;
  std::vector<std::uint8_t> taken_;
};

}  // namespace echo
