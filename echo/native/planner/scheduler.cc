// The C interface of the scheduler: simulate a schedule, find the fastest one within a budget.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

#include "boundary.h"
#include "greedy_keep.h"
#include "ruin_recreate.h"
#include "schedule.h"

#define ECHO_EXPORT extern "C" __attribute__((visibility("default")))

using echo::guarded;
using echo::Schedule;

namespace {

// Seconds and bytes of a schedule; NaN where it failed.
template <typename Action>
double value_of(const Action& action, std::int64_t* bytes) {
  return guarded(std::nan(""), [&] {
    const Schedule::Value value = action();
    *bytes = value.bytes;
    return value.seconds;
  });
}

std::vector<std::uint8_t> marks(const Schedule& schedule, const std::uint8_t* candidate) {
  return {candidate, candidate + schedule.arrays.nodes};
}

}  // namespace

// `measure` is a Measure, `again` says which entries may come from a copy. What `arrays` points to must outlive the schedule.
ECHO_EXPORT Schedule* echo_schedule_new(const echo::TrainingArrays* arrays, std::int32_t measure,
                                        const std::uint8_t* again) {
  return guarded<Schedule*>(nullptr, [&] { return new Schedule(*arrays, static_cast<echo::Measure>(measure), again); });
}

ECHO_EXPORT void echo_schedule_free(Schedule* schedule) { delete schedule; }

// Sets the splits: positions `position[i]` of nodes `node[i]`, sorted by node, then position. 0, or -1 where it failed.
ECHO_EXPORT std::int32_t echo_schedule_set(Schedule* schedule, std::int32_t count, const std::int32_t* node,
                                           const std::int32_t* position) {
  return guarded(-1, [&] {
    for (auto& own : schedule->splits) own.clear();
    for (std::int32_t i = 0; i < count; ++i) schedule->splits[node[i]].push_back(position[i]);
    return 0;
  });
}

// Writes the splits down in the same way where there is room for `most` of them, and says how many there are.
ECHO_EXPORT std::int32_t echo_schedule_get(const Schedule* schedule, std::int32_t most, std::int32_t* node,
                                           std::int32_t* position) {
  std::int32_t count = 0;
  for (std::int32_t i = 0; i < schedule->arrays.nodes; ++i)
    for (const std::int32_t at : schedule->splits[i]) {
      if (count < most) {
        node[count] = i;
        position[count] = at;
      }
      ++count;
    }
  return count;
}

// Ends searches on this schedule after so many seconds.
ECHO_EXPORT void echo_schedule_end_in(Schedule* schedule, double seconds) {
  const std::chrono::duration<double> left(std::max(0.0, std::min(seconds, 1e6)));
  schedule->deadline = std::chrono::steady_clock::now() +
                       std::chrono::duration_cast<std::chrono::steady_clock::duration>(left);
}

// Simulates a step. Returns the seconds of all copies, and the bytes by the schedule's measure.
ECHO_EXPORT double echo_schedule_simulate(Schedule* schedule, std::int64_t* bytes) {
  return value_of([&] { return schedule->simulate(); }, bytes);
}

// The steps of the last simulation: the node that runs, and the position in the order of the nodes at which it does. A
// forward node that runs at a position other than its own is recomputed there.
ECHO_EXPORT std::int32_t echo_schedule_steps(const Schedule* schedule, std::int32_t most, std::int32_t* node,
                                             std::int32_t* position) {
  for (std::int32_t step = 0; step < schedule->steps() && step < most; ++step) {
    node[step] = schedule->node(step);
    position[step] = schedule->position(step);
  }
  return schedule->steps();
}

// Finds the fastest schedule of at most `budget` bytes in which only nodes with candidate[node] = 1 are recomputed,
// from the splits that are set; `effort` bounds the simulations. Leaves the best that it found; where none fits, `bytes`
// says so.
ECHO_EXPORT double echo_schedule_fit(Schedule* schedule, const std::uint8_t* candidate, std::int64_t budget,
                                     std::int64_t effort, std::int64_t* bytes) {
  return value_of([&] { return echo::RuinRecreate(*schedule, marks(*schedule, candidate), budget, effort, 1).run(); },
                  bytes);
}

// The same for the schedule of the fewest bytes that recomputes for at most `most_seconds`, each of which has to save
// `price` bytes.
ECHO_EXPORT double echo_schedule_least(Schedule* schedule, const std::uint8_t* candidate, double most_seconds,
                                       std::int64_t effort, double price, std::int64_t* bytes) {
  return value_of(
      [&] {
        echo::RuinRecreate search(*schedule, marks(*schedule, candidate), 0, effort, 1);
        return search.run_down(most_seconds, price);
      },
      bytes);
}

// Takes back of the splits that are set what a budget has room for, in so many passes at most, and says what is left.
ECHO_EXPORT double echo_schedule_keep(Schedule* schedule, std::int64_t budget, std::int32_t passes,
                                      std::int64_t* bytes) {
  return value_of([&] { return echo::GreedyKeep(*schedule, budget).run(passes); }, bytes);
}
