#include "storage.h"

#include <algorithm>
#include <utility>

namespace echo {

StoragePlanner::StoragePlanner(const GraphWithClones& graph) : graph_(graph) {
  const auto& a = graph.arrays;
  sizes_.assign(a.elements, a.elements + a.entries);
  for (std::int64_t& size : sizes_) size *= 4;
  std::sort(sizes_.begin(), sizes_.end());
  sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
  free_.set_sizes(static_cast<std::int32_t>(sizes_.size()));
  kinds_.reserve(a.entries);
  unplanned_.assign(a.entries, kNone);
  for (std::int32_t e = 0; e < a.entries; ++e) {
    const auto size = std::lower_bound(sizes_.begin(), sizes_.end(), 4 * a.elements[e]) - sizes_.begin();
    kinds_.push_back({static_cast<std::int32_t>(size), a.dtype[e], a.dtype_size[e]});
    if (a.external[e]) unplanned_[e] = kExternal;
    if (a.untouched[e]) untouched_bytes_ += 4 * a.elements[e];
  }
  if (a.handed_out) sort_into_classes();
  any_shape_only_.assign(a.nodes, 0);
  all_shape_only_.assign(a.nodes, 0);
  for (std::int32_t node = 0; node < a.nodes; ++node) {
    const std::uint8_t *first = a.input_shape_only + a.input_begin[node],
                       *last = a.input_shape_only + a.input_begin[node + 1];
    any_shape_only_[node] = std::find(first, last, 1) != last;
    all_shape_only_[node] = first != last && std::find(first, last, 0) == last;
  }
}

void StoragePlanner::sort_into_classes() {
  handed_out_.assign(sizes_.size(), 0);
  for (std::int32_t e = 0; e < graph_.arrays.entries; ++e) handed_out_[kinds_[e].size] = graph_.arrays.handed_out[e];
  for (std::size_t size = 0; size < sizes_.size(); ++size)  // larger sizes never get smaller blocks
    class_.push_back(size && handed_out_[size] == handed_out_[size - 1] ? class_[size - 1]
                                                                        : static_cast<std::int32_t>(size));
}

void StoragePlanner::count_references() {
  references_.assign(graph_.entries(), 0);
  const auto& a = graph_.arrays;
  for (const std::int32_t node : graph_.order) {
    const std::int32_t origin = graph_.origin(node);
    if (a.variable[origin]) continue;
    const auto inputs = graph_.inputs(node);
    // a CachedOp counts what is read for its shape alone, and never gives it back
    if (!any_shape_only_[origin] || graph_.is_masked_clone(node) || a.runner != kExecutor) {
      for (const std::int32_t entry : inputs) ++references_[entry];
      continue;
    }
    const std::uint8_t* shape_only = a.input_shape_only + a.input_begin[origin];
    for (const std::int32_t entry : inputs) references_[entry] += !*shape_only++;
  }
  for (std::int32_t i = 0; i < a.outputs; ++i) ++references_[a.output_entry[i]];
}

std::int32_t StoragePlanner::new_chunk(std::int32_t size) {
  chunks_.push_back({size, 0, false});
  total_ += sizes_[size];
  return static_cast<std::int32_t>(chunks_.size()) - 1;
}

std::int32_t StoragePlanner::request(std::int32_t size) {
  if (match_range_ == 0) return new_chunk(size);
  const std::int64_t bytes = sizes_[size];
  const std::int32_t above = free_.at_least(size);
  if (above != FreeChunks::kNone && sizes_[above] <= bytes * match_range_) return free_.take_first(above);
  const std::int32_t below = free_.below(size);
  if (below == FreeChunks::kNone || sizes_[below] < bytes / match_range_) return new_chunk(size);
  const std::int32_t chunk = free_.take_last(below);
  total_ += bytes - sizes_[below];
  chunks_[chunk].size = size;
  return chunk;
}

void StoragePlanner::release(std::int32_t chunk) {
  if (match_range_ != 0) free_.add(chunks_[chunk].size, chunk);
}

void StoragePlanner::share_inputs(std::int32_t node) {
  const auto& a = graph_.arrays;
  const std::int32_t origin = graph_.origin(node), outputs = graph_.entry_begin(node);
  const auto inputs = graph_.inputs(node);
  static constexpr std::int32_t product_pairs[6] = {0, 0, 0, 1, 0, 0};  // a masked clone is an elemwise_mul
  const bool masked = graph_.is_masked_clone(node);
  const std::int32_t* pair = masked ? product_pairs : a.inplace + 3 * a.inplace_begin[origin];
  const std::int32_t pairs = masked ? 2 : a.inplace_begin[origin + 1] - a.inplace_begin[origin];
  if (pairs == 0) return;
  taken_.assign(inputs.size(), 0);
  const bool all_shape_only = !masked && all_shape_only_[origin];
  for (std::int32_t i = 0; i < pairs; ++i, pair += 3) {
    const std::int32_t in = inputs.first[pair[0]], out = outputs + pair[1];
    const std::int32_t chunk = storage_[in];
    if (taken_[pair[0]] || storage_[out] != kNone || chunk < 0 || references_[out] == 0) continue;
    const Kind &old = kind(in), &taking = kind(out);
    if (old.size != taking.size || old.dtype_size != taking.dtype_size) continue;
    const bool identity = pair[2] && old.dtype == taking.dtype;
    if (!(chunks_[chunk].pending == 1 && !all_shape_only) && !identity) continue;
    taken_[pair[0]] = 1;
    storage_[out] = chunk;
    chunks_[chunk].touched |= !is_untouched(out);
    inplace_[out] = pair[0];
    chunks_[chunk].pending += references_[out];
  }
}

void StoragePlanner::allocate_outputs(std::int32_t node) {
  const std::int32_t first = graph_.entry_begin(node), count = graph_.entry_count(node);
  if (count == 1) {
    if (storage_[first] != kNone) return;
    take(first);
    return;
  }
  wanted_.clear();
  for (std::int32_t e = first; e < first + count; ++e)
    if (storage_[e] == kNone) wanted_.emplace_back(kind(e).size, e);
  std::sort(wanted_.begin(), wanted_.end());
  for (auto it = wanted_.rbegin(); it != wanted_.rend(); ++it) take(it->second);
}

void StoragePlanner::take(std::int32_t entry) {
  storage_[entry] = request(kind(entry).size);
  Chunk& chunk = chunks_[storage_[entry]];
  chunk.pending = references_[entry];
  chunk.touched |= !is_untouched(entry);
}

void StoragePlanner::free_inputs(std::int32_t node) {
  const std::int32_t origin = graph_.origin(node);
  const bool any_shape_only = any_shape_only_[origin] && !graph_.is_masked_clone(node);
  const std::uint8_t* shape_only = graph_.arrays.input_shape_only + graph_.arrays.input_begin[origin];
  for (const std::int32_t entry : graph_.inputs(node)) {
    if (any_shape_only && *shape_only++) continue;
    const std::int32_t chunk = storage_[entry];
    if (chunk >= 0 && --chunks_[chunk].pending == 0) release(chunk);
  }
  const std::int32_t first = graph_.entry_begin(node);
  for (std::int32_t e = first; e < first + graph_.entry_count(node); ++e)
    if (storage_[e] >= 0 && chunks_[storage_[e]].pending == 0) release(storage_[e]);
}

std::int64_t StoragePlanner::plan(std::int64_t match_range, std::int64_t limit) {
  const auto& a = graph_.arrays;
  match_range_ = std::max<std::int64_t>(match_range, 0);  // 0: every block is a chunk of its own
  const bool lifetimes = match_range < 0 || a.runner == kDynamic;
  forward_chunks_ = forward_end_ = 0;
  total_ = 0;
  storage_.assign(graph_.entries(), kNone);
  std::copy(unplanned_.begin(), unplanned_.end(), storage_.begin());
  inplace_.assign(graph_.entries(), -1);
  chunks_.clear();
  chunk_first_.clear();
  chunk_last_.clear();
  forward_storage_.clear();
  free_.clear();
  bool forward = true;
  std::int32_t position = 0;
  for (const std::int32_t node : graph_.order) {
    if (!graph_.is_clone(node) && a.variable[node]) continue;
    if (forward && a.runner != kExecutor && (graph_.is_clone(node) || !a.forward[node])) {
      forward = false;
      forward_end_ = position;
      begin_backward();
    }
    share_inputs(node);
    allocate_outputs(node);
    free_inputs(node);
    if (lifetimes) note_lifetimes(node, position++);
    if (total_ - untouched_bytes_ > limit && !lifetimes) break;
  }
  if (!lifetimes) {
    for (const Chunk& chunk : chunks_)
      if (!chunk.touched) total_ -= sizes_[chunk.size];
    return total_;
  }
  for (std::int32_t i = 0; i < a.outputs; ++i)
    if (storage_[a.output_entry[i]] >= 0) chunk_last_[storage_[a.output_entry[i]]] = position;
  if (match_range == kAssigned) return assigned(limit);
  return match_range >= 0 && a.handed_out ? pooled() : peak();
}

// Backward nodes find forward entries where they are: they neither take over nor free their chunks.
void StoragePlanner::begin_backward() {
  free_.clear();
  forward_chunks_ = static_cast<std::int32_t>(chunks_.size());
  forward_storage_ = storage_;
  for (std::int32_t e = 0; e < graph_.arrays.entries; ++e)
    if (graph_.arrays.forward[graph_.node_of(e)]) storage_[e] = kExternal;
}

std::int32_t StoragePlanner::chunk_of(std::int32_t entry) const {
  const bool stashed = storage_[entry] == kExternal && static_cast<std::size_t>(entry) < forward_storage_.size();
  return stashed ? forward_storage_[entry] : storage_[entry];
}

void StoragePlanner::note_lifetimes(std::int32_t node, std::int32_t position) {
  chunk_first_.resize(chunks_.size(), kNone);
  chunk_last_.resize(chunks_.size(), kNone);
  const auto hold = [&](std::int32_t entry) {
    const std::int32_t chunk = chunk_of(entry);
    if (chunk < 0 || is_untouched(entry)) return;
    if (chunk_first_[chunk] == kNone) chunk_first_[chunk] = position;
    chunk_last_[chunk] = position;
  };
  const std::int32_t first = graph_.entry_begin(node);
  for (std::int32_t e = first; e < first + graph_.entry_count(node); ++e) hold(e);
  for (const std::int32_t e : graph_.inputs(node)) hold(e);
}

std::int64_t StoragePlanner::peak() {
  change_.assign(graph_.order.size() + 2, 0);
  for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    if (chunk_first_[chunk] == kNone) continue;  // nothing is held in it
    change_[chunk_first_[chunk]] += sizes_[chunks_[chunk].size];
    change_[chunk_last_[chunk] + 1] -= sizes_[chunks_[chunk].size];
  }
  std::int64_t live = 0, most = 0;
  for (const std::int64_t change : change_) most = std::max(most, live += change);
  return most;
}

// Of each size of blocks, the pool holds as many as are alive at once.
std::int64_t StoragePlanner::pooled() {
  const std::size_t positions = graph_.order.size() + 2;
  const std::int32_t last = static_cast<std::int32_t>(positions) - 1;
  starts_.assign(positions, kNone);
  ends_.assign(positions, kNone);
  next_start_.resize(chunks_.size());
  next_end_.resize(chunks_.size());
  for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    if (chunk_first_[chunk] == kNone) continue;  // nothing is held in it
    std::int32_t &start = starts_[chunk_first_[chunk]],
                 &end = ends_[std::min(chunk_last_[chunk] + 1 + graph_.arrays.reuse_delay, last)];
    next_start_[chunk] = std::exchange(start, static_cast<std::int32_t>(chunk));
    next_end_[chunk] = std::exchange(end, static_cast<std::int32_t>(chunk));
  }
  live_.assign(sizes_.size(), 0);
  most_.assign(sizes_.size(), 0);
  std::int64_t held = 0;
  for (std::size_t position = 0; position < positions; ++position) {
    for (std::int32_t chunk = ends_[position]; chunk != kNone; chunk = next_end_[chunk])
      --live_[class_[chunks_[chunk].size]];
    for (std::int32_t chunk = starts_[position]; chunk != kNone; chunk = next_start_[chunk]) {
      const std::int32_t size = class_[chunks_[chunk].size];
      if (++live_[size] <= most_[size]) continue;
      most_[size] = live_[size];
      held += handed_out_[size];
    }
  }
  return held;
}

// A CachedOp's forward and backward nodes have chunks of their own; to the forward nodes what is stashed lives to the end.
std::int64_t StoragePlanner::assigned(std::int64_t limit) {
  std::int64_t total = peak();
  if (total > limit) return total;
  total = 0;
  const std::int32_t count = static_cast<std::int32_t>(chunks_.size());
  const std::int32_t ranges[2][2] = {{0, forward_chunks_}, {forward_chunks_, count}};
  for (const auto& range : ranges) {
    blocks_.clear();
    for (std::int32_t chunk = range[0]; chunk < range[1]; ++chunk) {
      if (chunk_first_[chunk] == kNone) continue;
      const bool stashed = chunk < forward_chunks_ && chunk_last_[chunk] > forward_end_;
      blocks_.push_back(
          {sizes_[chunks_[chunk].size], chunk_first_[chunk], stashed ? forward_end_ : chunk_last_[chunk]});
    }
    total += assign_chunks(blocks_, limit - total, &assigned_);
  }
  return total;
}

}  // namespace echo
