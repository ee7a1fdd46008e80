#include "storage.h"

#include <algorithm>

namespace echo {

static bool ignores_all_inputs(const TrainingArrays& a, std::int32_t node) {
  bool any = false;
  for (std::int32_t i = a.input_begin[node]; i < a.input_begin[node + 1]; ++i) {
    if (!a.input_ignored[i]) return false;
    any = true;
  }
  return any;
}

void StoragePlanner::count_references() {
  references_.assign(graph_.entries(), 0);
  const auto& a = graph_.arrays;
  for (const std::int32_t node : graph_.order) {
    if (!graph_.is_clone(node) && a.variable[node]) continue;
    const std::int32_t origin = graph_.origin(node);
    std::int32_t at = graph_.is_masked_clone(node) ? -1 : a.input_begin[origin];
    for (const std::int32_t entry : graph_.inputs(node)) {
      // a CachedOp counts what is read for its shape alone, and never gives it back
      if (at < 0 || !a.input_ignored[at] || a.runner != kExecutor) ++references_[entry];
      if (at >= 0) ++at;
    }
  }
  for (std::int32_t i = 0; i < a.outputs; ++i) ++references_[a.output_entry[i]];
}

std::int32_t StoragePlanner::new_chunk(std::int64_t bytes) {
  chunk_bytes_.push_back(bytes);
  total_ += bytes;
  chunk_references_.push_back(0);
  return static_cast<std::int32_t>(chunk_bytes_.size()) - 1;
}

std::int32_t StoragePlanner::request(std::int64_t elements) {
  const std::int64_t bytes = elements * 4;
  if (match_range_ == 0) return new_chunk(bytes);
  const auto middle = free_.lower_bound(bytes);
  auto found = free_.end();
  if (middle != free_.end() && middle->first <= bytes * match_range_) {
    found = middle;
  } else if (middle != free_.begin()) {
    const auto below = std::prev(middle);
    if (below->first >= bytes / match_range_) found = below;
  }
  if (found == free_.end()) return new_chunk(bytes);
  const std::int32_t chunk = found->second;
  if (bytes > chunk_bytes_[chunk]) {
    total_ += bytes - chunk_bytes_[chunk];
    chunk_bytes_[chunk] = bytes;
  }
  free_.erase(found);
  return chunk;
}

void StoragePlanner::release(std::int32_t chunk) { free_.emplace(chunk_bytes_[chunk], chunk); }

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
  const bool ignores_all = !masked && ignores_all_inputs(a, origin);
  for (std::int32_t i = 0; i < pairs; ++i, pair += 3) {
    const std::int32_t in = inputs.first[pair[0]], out = outputs + pair[1];
    const std::int32_t in_like = graph_.entry_origin(in), out_like = graph_.entry_origin(out);
    const std::int32_t chunk = storage_[in];
    if (taken_[pair[0]] || storage_[out] != kNone || chunk < 0 || references_[out] == 0) continue;
    if (a.elements[in_like] != a.elements[out_like] || a.dtype_size[in_like] != a.dtype_size[out_like]) continue;
    const bool identity = pair[2] && a.dtype[in_like] == a.dtype[out_like];
    if (!(chunk_references_[chunk] == 1 && !ignores_all) && !identity) continue;
    taken_[pair[0]] = 1;
    storage_[out] = chunk;
    chunk_references_[chunk] += references_[out];
  }
}

void StoragePlanner::allocate_outputs(std::int32_t node) {
  const std::int32_t first = graph_.entry_begin(node), count = graph_.entry_count(node);
  const auto* elements = graph_.arrays.elements;
  if (count == 1) {
    if (storage_[first] != kNone) return;
    storage_[first] = request(elements[graph_.entry_origin(first)]);
    chunk_references_[storage_[first]] = references_[first];
    return;
  }
  wanted_.clear();
  for (std::int32_t e = first; e < first + count; ++e)
    if (storage_[e] == kNone) wanted_.emplace_back(elements[graph_.entry_origin(e)], e);
  std::stable_sort(wanted_.begin(), wanted_.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
  for (auto it = wanted_.rbegin(); it != wanted_.rend(); ++it) {
    storage_[it->second] = request(it->first);
    chunk_references_[storage_[it->second]] = references_[it->second];
  }
}

void StoragePlanner::free_inputs(std::int32_t node) {
  const auto& a = graph_.arrays;
  std::int32_t at = graph_.is_masked_clone(node) ? -1 : a.input_begin[graph_.origin(node)];
  for (const std::int32_t entry : graph_.inputs(node)) {
    const bool ignored = at >= 0 && a.input_ignored[at];
    if (at >= 0) ++at;
    const std::int32_t chunk = storage_[entry];
    if (!ignored && chunk >= 0 && --chunk_references_[chunk] == 0) release(chunk);
  }
  const std::int32_t first = graph_.entry_begin(node);
  for (std::int32_t e = first; e < first + graph_.entry_count(node); ++e)
    if (storage_[e] >= 0 && chunk_references_[storage_[e]] == 0) release(storage_[e]);
}

std::int64_t StoragePlanner::plan(std::int64_t match_range, std::int64_t limit) {
  const auto& a = graph_.arrays;
  match_range_ = std::max<std::int64_t>(match_range, 0);  // 0: every block is a chunk of its own
  const bool lifetimes = match_range < 0 || a.runner == kDynamic;
  forward_chunks_ = forward_end_ = 0;
  total_ = 0;
  storage_.assign(graph_.entries(), kNone);
  for (std::int32_t e = 0; e < a.entries; ++e)
    if (a.external[e]) storage_[e] = kExternal;
  chunk_bytes_.clear();
  chunk_references_.clear();
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
    if (total_ > limit && !lifetimes) break;
  }
  if (!lifetimes) return total_;
  for (std::int32_t i = 0; i < a.outputs; ++i)
    if (storage_[a.output_entry[i]] >= 0) chunk_last_[storage_[a.output_entry[i]]] = position;
  return match_range == kAssigned ? assigned(limit) : peak();
}

// Backward nodes find forward entries where they are: they neither take over nor free their chunks.
void StoragePlanner::begin_backward() {
  free_.clear();
  forward_chunks_ = static_cast<std::int32_t>(chunk_bytes_.size());
  forward_storage_ = storage_;
  for (std::int32_t e = 0; e < graph_.arrays.entries; ++e)
    if (graph_.arrays.forward[graph_.node_of(e)]) storage_[e] = kExternal;
}

void StoragePlanner::note_lifetimes(std::int32_t node, std::int32_t position) {
  chunk_first_.resize(chunk_bytes_.size(), position);
  chunk_last_.resize(chunk_bytes_.size(), position);
  const std::int32_t first = graph_.entry_begin(node);
  for (std::int32_t e = first; e < first + graph_.entry_count(node); ++e)
    if (storage_[e] >= 0) chunk_last_[storage_[e]] = position;
  for (const std::int32_t e : graph_.inputs(node)) {
    const bool stashed = storage_[e] == kExternal && static_cast<std::size_t>(e) < forward_storage_.size();
    const std::int32_t chunk = stashed ? forward_storage_[e] : storage_[e];
    if (chunk >= 0) chunk_last_[chunk] = position;
  }
}

std::int64_t StoragePlanner::peak() {
  change_.assign(graph_.order.size() + 2, 0);
  for (std::size_t chunk = 0; chunk < chunk_bytes_.size(); ++chunk) {
    change_[chunk_first_[chunk]] += chunk_bytes_[chunk];
    change_[chunk_last_[chunk] + 1] -= chunk_bytes_[chunk];
  }
  std::int64_t live = 0, most = 0;
  for (const std::int64_t change : change_) most = std::max(most, live += change);
  return most;
}

// A CachedOp's forward and backward nodes have chunks of their own; to the forward nodes what is stashed lives to the end.
std::int64_t StoragePlanner::assigned(std::int64_t limit) {
  std::int64_t total = peak();
  if (total > limit) return total;
  total = 0;
  const std::int32_t count = static_cast<std::int32_t>(chunk_bytes_.size());
  const std::int32_t ranges[2][2] = {{0, forward_chunks_}, {forward_chunks_, count}};
  for (const auto& range : ranges) {
    blocks_.clear();
    for (std::int32_t chunk = range[0]; chunk < range[1]; ++chunk) {
      const bool stashed = chunk < forward_chunks_ && chunk_last_[chunk] > forward_end_;
      blocks_.push_back({chunk_bytes_[chunk], chunk_first_[chunk], stashed ? forward_end_ : chunk_last_[chunk]});
    }
    total += assign_chunks(blocks_, limit - total, &assigned_);
  }
  return total;
}

}  // namespace echo
