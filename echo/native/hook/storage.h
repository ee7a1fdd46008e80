// Storing the result of echo's own storage assignment in place of MXNet's.
#pragma once
#include <cstdint>
#include <vector>

#include "layout.h"

namespace echo {

// How often each entry of a graph will be read, the graph's own outputs and a CachedOp's later passes included, and the
// nodes that are planned. MXNet's memory pass takes these attributes away, so they are noted before.
struct Reads {
  std::vector<std::uint32_t> count;  // empty for an executor, which plans a graph as a whole
  std::uint32_t first_node, end_node;
  bool adds_in_place =
      true;  // whether MXNet computes sums of gradients in place: not where a CachedOp allocates as it runs
};

Reads reads_of(const RawGraph& graph);

// Whether this is the graph of a CachedOp for passes after which no gradient is computed: nothing but the graph itself
// will read its entries.
bool is_inference(const RawGraph& graph);

// Gives the entries of a graph that MXNet's memory pass has planned chunks by `assign_chunks`. What MXNet computes in
// place stays so; what it allocates elsewhere is left alone.
void assign_storage(const Reads& reads, RawGraph* graph);

}  // namespace echo
