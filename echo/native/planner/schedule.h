// A training step as a schedule: every node once, in order, and recomputed nodes again just before they are read.
#pragma once
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "graph.h"

namespace echo {

// How the memory of a schedule is measured: by the most bytes alive at once; or by the chunks that they take where no two
// blocks ever overlap in part: for each size the most blocks of at least that size alive at once. No assignment of
// blocks to chunks needs less than that, and the one in ../storage/assign.h hardly ever more.
enum class Measure : std::int32_t { kLive = 0, kChunks = 1 };

// Which copies of its outputs a forward node makes, and what follows for memory and time.
//
// The base order is the order of the nodes. `splits[i]` are positions in it, ascending: backward nodes before the first
// one read what the forward pass computed, those between the first and the second read a second copy, and so on. A copy
// is computed just before the first node that reads it, from the copies that its own inputs have at that position.
class Schedule {
 public:
  using RecomputeSchedule = std::vector<std::vector<std::int32_t>>;

  struct Value {
    std::int64_t bytes = 0;  // by the measure, with what copies keep
    double seconds = 0;      // of all copies
  };

  // Entries with again[entry] = 0 are always read where the forward pass left them, whatever becomes of their node.
  Schedule(const TrainingArrays& arrays, Measure measure, const std::uint8_t* again);
  Value simulate();

  // From here on, searches have to come to an end: they count as if their effort were spent.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  bool is_late() const { return std::chrono::steady_clock::now() >= deadline; }

  // What the copies of the last simulation keep alongside all that is planned, from the first step to the last.
  std::int64_t layout_copy_bytes() const { return layout_copy_bytes_; }
  // Of the last simulation, by step.
  std::int32_t steps() const { return static_cast<std::int32_t>(step_node_.size()); }
  std::int32_t node(std::int32_t step) const { return step_node_[step]; }
  std::int32_t position(std::int32_t step) const { return step_position_[step]; }  // the base position at which it runs

  Measure measure() const { return measure_; }
  // What is alive at each step, by level. kLive has one level, of bytes. kChunks has one for each size: how many blocks of
  // at least that size are alive; `weight` is the bytes from one level to the next.
  std::int32_t levels() const { return static_cast<std::int32_t>(weight_.size()); }
  std::int64_t weight(std::int32_t level) const { return weight_[level]; }
  std::int64_t live(std::int32_t level, std::int32_t step) const { return live_[level][step]; }
  const std::vector<std::int64_t>& live(std::int32_t level) const { return live_[level]; }
  std::int64_t most(std::int32_t level) const { return most_[level]; }
  const std::vector<std::int64_t>& all_most() const { return most_; }
  // An entry counts `amount` on the levels up to `level_of`; amount 0: its memory is not the planner's.
  std::int32_t level_of(std::int32_t entry) const { return level_of_[entry]; }
  std::int64_t bytes(std::int32_t entry) const { return bytes_[entry]; }
  std::int64_t amount(std::int32_t entry) const {
    return measure_ == Measure::kLive ? bytes_[entry] : bytes_[entry] > 0;
  }

  struct Span {
    const std::int32_t *first, *last;
    const std::int32_t* begin() const { return first; }
    const std::int32_t* end() const { return last; }
    std::int32_t size() const { return static_cast<std::int32_t>(last - first); }
  };
  Span reads(std::int32_t step) const {
    return {reads_.data() + read_begin_[step], reads_.data() + read_begin_[step + 1]};
  }
  // Whether what a step reads may come from another copy.
  bool may_read_copies(std::int32_t step) const { return is_copy_[step] || !arrays.forward[step_node_[step]]; }
  std::int32_t instances() const { return static_cast<std::int32_t>(instance_entry_.size()); }
  std::int32_t entry_of(std::int32_t instance) const { return instance_entry_[instance]; }
  std::int32_t made_at(std::int32_t instance) const { return instance_step_[instance]; }
  std::int32_t last_use(std::int32_t instance) const { return instance_last_[instance]; }
  bool is_copy(std::int32_t step) const { return is_copy_[step]; }
  bool again(std::int32_t entry) const { return again_[entry]; }
  // The instance of an entry that a reader at a base position finds in the last simulation, -1 if there is none.
  std::int32_t found_at(std::int32_t entry, std::int32_t position) const;

  const TrainingArrays arrays;
  std::vector<std::int32_t> node_of;  // of each entry
  RecomputeSchedule splits;

 private:
  const Measure measure_;
  const std::vector<std::uint8_t> again_;
  void run(std::int32_t node, std::int32_t position, bool copy);
  std::int32_t instance_at(std::int32_t entry, std::int32_t position);
  void want(std::int32_t entry, std::int32_t position);
  void compute_copies(std::int32_t position);
  std::int32_t copy_at(std::int32_t entry, std::int32_t position) const;
  void read(std::int32_t instance, std::int32_t step, std::int32_t in_kernel);
  bool takes_memory(std::int32_t instance) const;
  void share(std::int32_t step);
  Value sum_up();
  void set_levels();

  std::vector<std::int64_t> bytes_;  // of each entry, 0 where memory is not the planner's
  std::vector<std::uint8_t> lives_to_end_;  // entries that live to the end
  std::vector<std::int32_t> original_;  // instance of each entry, -1 for variables
  std::vector<std::vector<std::int32_t>> copies_;  // first instance of each copy of a node, -1 where not yet computed
  std::vector<std::int32_t> touched_;
  std::vector<std::int32_t> step_node_, step_position_, step_instance_, read_begin_, reads_;
  std::vector<std::uint8_t> instance_read_;  // 0: not read, else kInKernel, kFromMemory or both
  std::vector<std::int32_t> instance_kernel_;  // the kernel that reads it, 0 where none has a number
  std::vector<std::int32_t> instance_entry_, instance_step_, instance_last_, chunk_, chunk_last_, chunk_first_;
  std::vector<std::int32_t> level_of_, chunk_entry_;
  std::vector<std::int64_t> weight_, most_;
  std::vector<std::vector<std::int64_t>> live_;  // by level, then step
  std::vector<std::uint8_t> is_copy_;
  std::int64_t layout_copy_bytes_ = 0;
  std::vector<std::int32_t> wanted_, wanted_at_;  // nodes to compute at the current position
};

}  // namespace echo
