// The fastest schedule within a budget, or the smallest within a time: greedy drops where too many bytes are alive, then
// ruin and recreate. echo/policies/solvers/ruin_recreate.py runs it.
#pragma once
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "drop_finder.h"
#include "schedule.h"

namespace echo {

// Starts from the splits that `schedule` has, and leaves the best that it found there. `effort` is the number of
// simulations that it may take. The same seed gives the same result.
class RuinRecreate {
 public:
  RuinRecreate(Schedule& schedule, std::vector<std::uint8_t> candidate, std::int64_t budget, std::int64_t effort,
               std::uint32_t seed)
      : s_(schedule),
        drops_(schedule, std::move(candidate)),
        budget_(budget),
        left_(effort),
        random_(seed),
        limits_(schedule.levels(), INT64_MAX),
        stuck_(schedule.levels(), 0) {}
  // The fastest within the budget.
  Schedule::Value run();
  // The smallest that takes at most so many seconds, where a second has to save `price` bytes; the budget does not matter.
  Schedule::Value run_down(double most_seconds, double price);

 private:
  struct Own {
    double seconds;
    std::int32_t node, position;
  };
  struct Value {
    std::int64_t bytes = 0;
    double over = 0;  // what lies above the limits
    double seconds = 0;
  };
  Value simulate() {
    left_ = s_.is_late() ? 0 : left_ - 1;
    const Schedule::Value value = s_.simulate();
    return {value.bytes, over(), value.seconds};
  }
  double over() const;
  void lower_limits();
  void count_above();
  bool better(const Value& value, const Value& than) const;
  bool repair(double most_seconds, double noise);
  void rank(double noise);
  bool is_apart(const Drop& drop);
  bool take_many(double share);
  bool take_several();
  bool take_best(double noise);
  void prune();
  void prune_by_headroom(std::int64_t budget);
  void ruin();
  std::vector<Own> own_splits() const;
  double uniform() { return (random_() >> 8) * (1.0 / 16777216.0); }
  void add(std::int32_t node, std::int32_t position);
  void remove(std::int32_t node, std::int32_t position);
  bool has(std::int32_t node, std::int32_t position) const;

  Schedule& s_;
  DropFinder drops_;
  std::int64_t budget_, left_;
  std::mt19937 random_;
  Value value_;
  std::vector<std::int64_t> limits_;  // by level
  std::vector<int> stuck_;  // by level: rounds for which it is left alone
  double share_ = 0.3;
  double price_ = 0;
  double above_ =
      0;  // how many steps were above the limits when those were set: what copies keep is there at each of them
  std::vector<std::pair<double, std::size_t>> order_;
  std::set<std::pair<std::int32_t, std::int32_t>> failed_;  // drops that did not help under the present limits
  std::int32_t round_ = 0;
  std::vector<std::int32_t> dropped_, read_;  // by node: the round in which a drop took it, or reads it
};

}  // namespace echo
