// Uses up what a budget leaves: of recomputed nodes, keeps those whose values save the most time for their bytes.
// GreedyKeep in echo/policies/solvers/ruin_recreate.py runs it.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "headroom.h"
#include "schedule.h"

namespace echo {

// The counterpart of drops: instead of many simulations, a schedule that drops (nearly) everything, and one pass over all
// that it recomputes, in the order of what keeping it saves.
class GreedyKeep {
 public:
  GreedyKeep(Schedule& schedule, std::int64_t budget) : s_(schedule), budget_(budget) {}
  // Leaves the schedule as it is where it needs more than the budget to begin with.
  Schedule::Value run(std::int32_t passes);

 private:
  struct Split {
    double score;
    std::int32_t node, position;
  };
  std::int32_t made_at(std::int32_t node, std::int32_t position) const;
  void clean();
  void save_up();
  std::int64_t size_of(std::int32_t node) const;
  double score(const Headroom& headroom, std::int32_t node, std::int32_t position) const;
  static bool less(const Split& x, const Split& y);
  std::vector<Split> choose(Headroom& headroom) const;
  bool take_back();

  Schedule& s_;
  const std::int64_t budget_;
  Schedule::Value value_;
  std::vector<double> saved_;  // by step: seconds, if nothing reads what it makes
};

}  // namespace echo
