// The C interface of the planner: evaluate one choice of recomputed entries.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "boundary.h"
#include "graph.h"
#include "storage.h"

#define ECHO_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Planner {
  explicit Planner(const echo::TrainingArrays& arrays) : graph(arrays), storage(graph) {}
  echo::GraphWithClones graph;
  echo::StoragePlanner storage;
};

thread_local char t_error[256];

void plan_blocks(Planner* planner, std::int32_t* chunk, std::int32_t* inplace) {
  auto& graph = planner->graph;
  const std::vector<std::uint8_t> nothing(graph.arrays.entries, 0);
  graph.apply(nothing.data(), {});
  planner->storage.count_references();
  planner->storage.plan(0, INT64_MAX);
  for (std::int32_t entry = 0; entry < graph.arrays.entries; ++entry) chunk[entry] = planner->storage.chunk_of(entry);
  std::copy(planner->storage.inplace().begin(), planner->storage.inplace().end(), inplace);
}

struct Clones {
  double seconds = 0;
  std::int64_t layout_copy_bytes = 0;
};

// The seconds of all clones and the bytes that they keep; executed[nodes], where given, receives how many there are of
// each node, 255 at most.
Clones count_clones(const echo::GraphWithClones& graph, std::uint8_t* executed) {
  Clones found;
  for (const std::int32_t node : graph.order) {
    if (!graph.is_clone(node)) continue;
    found.seconds += graph.arrays.seconds[graph.origin(node)];
    found.layout_copy_bytes += graph.arrays.layout_copy_bytes[graph.origin(node)];
    if (executed && executed[graph.origin(node)] < UINT8_MAX) ++executed[graph.origin(node)];
  }
  return found;
}

}  // namespace

void echo::set_error(const char* text) { std::snprintf(t_error, sizeof t_error, "%s", text); }

// What went wrong in this thread last.
ECHO_EXPORT const char* echo_planner_error() { return t_error; }

// What `arrays` points to must outlive the planner. Null where there is not enough memory.
ECHO_EXPORT Planner* echo_planner_new(const echo::TrainingArrays* arrays) {
  return echo::guarded<Planner*>(nullptr, [&] { return new Planner(*arrays); });
}

ECHO_EXPORT void echo_planner_free(Planner* planner) { delete planner; }

// Plans the storage of the graph as it stands, every block with a chunk of its own: only what works in place shares one.
// chunk[entries] receives the chunk of each entry (negative: not the planner's), inplace[entries] the input whose chunk
// it takes over, or -1. 0, or -1 where it failed.
ECHO_EXPORT std::int32_t echo_planner_blocks(Planner* planner, std::int32_t* chunk, std::int32_t* inplace) {
  return echo::guarded(-1, [&] {
    plan_blocks(planner, chunk, inplace);
    return 0;
  });
}

// Plans the storage of the graph in which the entries marked in recompute[entries] are recomputed, in several copies where
// the `splits` pairs of split_node and split_position say so (SplitArrays). totals[i] receives the planned bytes under
// match_ranges[i], with what clones keep alongside. With limit >= 0 only totals up to the limit matter, and of those the
// smallest: what exceeds it, or an earlier total, may be any number above it. executed[nodes], where given, counts how
// often every forward node is recomputed, up to 255. Returns the seconds of all that; NaN where it failed.
ECHO_EXPORT double echo_planner_evaluate(Planner* planner, const std::uint8_t* recompute, std::int32_t splits,
                                         const std::int32_t* split_node, const std::int32_t* split_position,
                                         const std::int64_t* match_ranges, std::int32_t ranges, std::int64_t limit,
                                         std::int64_t* totals, std::uint8_t* executed) {
  return echo::guarded(std::nan(""), [&] {
    planner->graph.apply(recompute, {splits, split_node, split_position});
    const Clones clones = count_clones(planner->graph, executed);
    planner->storage.count_references();
    std::int64_t bound = limit < 0 ? INT64_MAX : std::max<std::int64_t>(0, limit - clones.layout_copy_bytes);
    for (std::int32_t i = 0; i < ranges; ++i) {
      const std::int64_t planned = planner->storage.plan(match_ranges[i], bound);
      totals[i] = planned + clones.layout_copy_bytes;
      if (limit >= 0) bound = std::min(bound, planned);
    }
    return clones.seconds;
  });
}
