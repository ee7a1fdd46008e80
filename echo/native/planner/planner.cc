// The C interface of the planner: evaluate one choice of recomputed entries.
#include <cstdint>

#include "graph.h"
#include "storage.h"

#define ECHO_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Planner {
  Planner(const echo::TrainingArrays& arrays, bool mirror) : graph(arrays, mirror), storage(graph) {}
  echo::PlannedGraph graph;
  echo::StoragePlanner storage;
};

}  // namespace

// The arrays behind `arrays` must outlive the planner. mirror != 0: clones as MXNet's own mirroring makes them.
ECHO_EXPORT Planner* echo_planner_new(const echo::TrainingArrays* arrays, int mirror) {
  return new Planner(*arrays, mirror != 0);
}

ECHO_EXPORT void echo_planner_free(Planner* planner) { delete planner; }

// Plans the storage of the graph in which the entries marked in recompute[entries] are recomputed.
// totals[i] receives the planned bytes under match_ranges[i]; executed[nodes], where given, is set to 1 for every
// forward node that runs a second time. Returns the seconds of all those second runs.
ECHO_EXPORT double echo_planner_evaluate(Planner* planner, const std::uint8_t* recompute, const std::int64_t* match_ranges,
                                         std::int32_t ranges, std::int64_t* totals, std::uint8_t* executed) {
  auto& graph = planner->graph;
  graph.apply(recompute);
  planner->storage.count_references();
  for (std::int32_t i = 0; i < ranges; ++i) totals[i] = planner->storage.plan(match_ranges[i]);
  double seconds = 0;
  for (const std::int32_t node : graph.order) {
    if (!graph.is_clone(node)) continue;
    seconds += graph.arrays.seconds[graph.origin(node)];
    if (executed) executed[graph.origin(node)] = 1;
  }
  return seconds;
}
