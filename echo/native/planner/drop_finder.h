// Finds values that could be dropped and recomputed, with estimates of what that is worth.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "schedule.h"

namespace echo {

// A node is recomputed at a base position from there on, and with it those of its inputs that would otherwise have to be
// kept for its sake alone.
struct Drop {
  std::vector<std::pair<std::int32_t, std::int32_t>> splits;  // (node, position)
  double gain;     // bytes above the limits that it frees, summed over the steps
  double seconds;  // that it costs
  double score() const { return gain / (seconds + 1e-9); }
};

// Finds drops in the last simulation of a schedule. Estimates only: in-place operators and what is transient are left out.
class DropFinder {
 public:
  DropFinder(const Schedule& schedule, std::vector<std::uint8_t> candidate)
      : s_(schedule), candidate_(std::move(candidate)) {}

  // All that free bytes while more than `limits[level]` are alive on some level of the schedule. `price` is what a second
  // may cost, in the unit of `Drop::gain`: it decides which inputs are recomputed too. What copies keep counts at as many
  // steps as are `above` the limits.
  const std::vector<Drop>& find(const std::vector<std::int64_t>& limits, double price, double above);
  const std::vector<Drop>& last() const { return found_; }

 private:
  void index_uses();
  std::int32_t costliest(const Drop& drop) const;
  void bundle();
  double freed(std::int32_t node, std::int32_t first_instance, std::int32_t step) const;
  bool expand(std::int32_t node, std::int32_t position, std::int32_t step, double price, Drop* drop);
  double plan_input(std::int32_t entry, std::int32_t position, std::int32_t step, double price, int depth);
  void sum_over(const std::vector<std::int64_t>& limits);
  // What an entry that is alive from one step till before another takes above the limits.
  double over(std::int32_t entry, std::int32_t from, std::int32_t to) const {
    if (to <= from) return 0;
    const auto& sum = over_[s_.level_of(entry)];
    return static_cast<double>(s_.amount(entry)) * (sum[to] - sum[from]);
  }
  double layout_copy_cost(std::int32_t node) const {
    return above_ * static_cast<double>(s_.arrays.layout_copy_bytes[node]);
  }
  double cost(std::int32_t node, double price) const {
    return price * s_.arrays.seconds[node] + layout_copy_cost(node);
  }
  void add_inputs(std::int32_t position, std::int32_t step, double price, Drop* drop);

  const Schedule& s_;
  const std::vector<std::uint8_t> candidate_;
  double above_ = 0;
  std::vector<std::vector<double>> over_;  // by level: up to each step
  std::vector<std::int32_t> use_begin_, uses_, step_of_position_;
  std::vector<double> input_price_;
  std::vector<std::int32_t> seen_;
  std::int32_t stamp_ = 0;
  std::vector<Drop> found_;
};

}  // namespace echo
