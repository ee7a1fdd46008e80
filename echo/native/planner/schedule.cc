#include "schedule.h"

#include <algorithm>
#include <functional>

namespace echo {

static constexpr std::size_t kMostLevels = 64;

Schedule::Schedule(const TrainingArrays& given, Measure measure, const std::uint8_t* again)
    : arrays(given), measure_(measure), again_(again, again + given.entries) {
  const auto& a = arrays;
  node_of.resize(a.entries);
  bytes_.assign(a.entries, 0);
  lives_to_end_.assign(a.entries, 0);
  for (std::int32_t node = 0; node < a.nodes; ++node)
    for (std::int32_t e = a.entry_begin[node]; e < a.entry_begin[node + 1]; ++e) {
      node_of[e] = node;
      if (!a.variable[node] && !a.external[e] && !a.untouched[e]) bytes_[e] = a.elements[e] * a.dtype_size[e];
    }
  for (std::int32_t i = 0; i < a.outputs; ++i) lives_to_end_[a.output_entry[i]] = 1;
  splits.resize(a.nodes);
  copies_.resize(a.nodes);
  set_levels();
}

// One level for each size; where there are too many, sizes near to each other share the level of the largest.
void Schedule::set_levels() {
  level_of_.assign(arrays.entries, 0);
  weight_.assign(1, 1);
  if (measure_ == Measure::kChunks) {
    std::vector<std::int64_t> all(bytes_), sizes;
    std::sort(all.begin(), all.end(), std::greater<>());
    double ratio = 1;
    do {
      sizes.clear();
      for (const std::int64_t size : all)
        if (sizes.empty() || static_cast<double>(size) * ratio < static_cast<double>(sizes.back()))
          sizes.push_back(size);
      ratio *= 1.05;
    } while (sizes.size() > kMostLevels);
    std::reverse(sizes.begin(), sizes.end());
    for (std::int32_t e = 0; e < arrays.entries; ++e)
      level_of_[e] = static_cast<std::int32_t>(std::lower_bound(sizes.begin(), sizes.end(), bytes_[e]) - sizes.begin());
    weight_.clear();
    for (std::size_t i = 0; i < sizes.size(); ++i) weight_.push_back(sizes[i] - (i > 0 ? sizes[i - 1] : 0));
  }
  live_.resize(weight_.size());
  most_.resize(weight_.size());
}

// Which copy of an entry a reader at `position` finds: 0 is what the forward pass computed.
std::int32_t Schedule::copy_at(std::int32_t entry, std::int32_t position) const {
  const auto& own = splits[node_of[entry]];
  if (!again_[entry] || own.empty() || position < own.front()) return 0;
  return static_cast<std::int32_t>(std::upper_bound(own.begin(), own.end(), position) - own.begin());
}

// The instance that a reader at `position` finds; -1 where the copy is still to be computed.
std::int32_t Schedule::instance_at(std::int32_t entry, std::int32_t position) {
  const std::int32_t node = node_of[entry], copy = copy_at(entry, position);
  if (copy == 0) return original_[entry];
  auto& known = copies_[node];
  if (known.empty()) {
    known.assign(splits[node].size(), -1);
    touched_.push_back(node);
  }
  const std::int32_t first = known[copy - 1];
  return first < 0 ? -1 : first + entry - arrays.entry_begin[node];
}

static constexpr std::uint8_t kInKernel = 1, kFromMemory = 2;

void Schedule::read(std::int32_t instance, std::int32_t step, std::int32_t in_kernel) {
  const std::int32_t made = instance_step_[instance];
  const bool made_forward = !is_copy_[made] && arrays.forward[step_node_[made]];
  const bool reads_forward = !is_copy_[step] && arrays.forward[step_node_[step]];
  reads_.push_back(instance);
  instance_last_[instance] = std::max(instance_last_[instance], step);
  bool inside = in_kernel != 0 && made_forward == reads_forward;
  if (inside && in_kernel > 0) {
    std::int32_t& kernel = instance_kernel_[instance];
    inside = kernel == 0 || kernel == in_kernel;
    kernel = in_kernel;
  }
  instance_read_[instance] |= inside ? kInKernel : kFromMemory;
}

// What only its own kernel reads stays in registers.
bool Schedule::takes_memory(std::int32_t instance) const {
  return bytes_[instance_entry_[instance]] > 0 && instance_read_[instance] != kInKernel;
}

// All inputs are there. Reads them, and makes new instances of the outputs.
void Schedule::run(std::int32_t node, std::int32_t position, bool copy) {
  const auto& a = arrays;
  const std::int32_t step = steps();
  const bool reads_copies = copy || !a.forward[node];
  step_node_.push_back(node);
  step_position_.push_back(position);
  is_copy_.push_back(copy);
  for (std::int32_t i = a.input_begin[node]; i < a.input_begin[node + 1]; ++i) {
    if (a.input_shape_only[i]) continue;
    const std::int32_t entry = a.input_entry[i];
    const std::int32_t instance = reads_copies ? instance_at(entry, position) : original_[entry];
    if (instance >= 0) read(instance, step, a.input_in_kernel[i]);
  }
  if (copy && a.masked[node]) read(original_[a.entry_begin[node] + 1], step, 0);
  step_instance_.push_back(static_cast<std::int32_t>(instance_entry_.size()));
  read_begin_.push_back(static_cast<std::int32_t>(reads_.size()));
  const std::int32_t last = copy && a.masked[node] ? a.entry_begin[node] + 1 : a.entry_begin[node + 1];
  for (std::int32_t e = a.entry_begin[node]; e < last; ++e) {
    if (!copy) original_[e] = static_cast<std::int32_t>(instance_entry_.size());
    instance_entry_.push_back(e);
    instance_step_.push_back(step);
    instance_last_.push_back(step);
    instance_read_.push_back(0);
    instance_kernel_.push_back(0);
  }
}

// Computes what a backward node is about to read, with everything that this takes, in the order of the forward pass.
void Schedule::compute_copies(std::int32_t position) {
  const auto& a = arrays;
  for (std::size_t next = 0; next < wanted_.size(); ++next) {
    const std::int32_t node = wanted_[next];
    for (std::int32_t i = a.input_begin[node]; i < a.input_begin[node + 1]; ++i)
      if (!a.input_shape_only[i]) want(a.input_entry[i], position);
  }
  std::sort(wanted_.begin(), wanted_.end());
  for (const std::int32_t node : wanted_) {
    const auto& own = splits[node];
    const auto copy = std::upper_bound(own.begin(), own.end(), position) - own.begin();
    const std::int32_t first = static_cast<std::int32_t>(instance_entry_.size());
    run(node, position, true);
    copies_[node][copy - 1] = first;
  }
  wanted_.clear();
}

void Schedule::want(std::int32_t entry, std::int32_t position) {
  const std::int32_t node = node_of[entry];
  if (splits[node].empty() || arrays.variable[node] || instance_at(entry, position) >= 0 ||
      wanted_at_[node] == position)
    return;
  wanted_at_[node] = position;
  wanted_.push_back(node);
}

Schedule::Value Schedule::simulate() {
  const auto& a = arrays;
  for (const std::int32_t node : touched_) copies_[node].clear();
  touched_.clear();
  original_.assign(a.entries, -1);
  wanted_at_.assign(a.nodes, -1);
  for (auto* list : {&step_node_, &step_position_, &step_instance_, &read_begin_, &reads_, &instance_entry_,
                     &instance_step_, &instance_last_, &instance_kernel_})
    list->clear();
  is_copy_.clear();
  instance_read_.clear();
  read_begin_.push_back(0);
  for (std::int32_t node = 0; node < a.nodes; ++node) {
    if (a.variable[node]) continue;
    if (!a.forward[node])
      for (std::int32_t i = a.input_begin[node]; i < a.input_begin[node + 1]; ++i)
        if (!a.input_shape_only[i]) want(a.input_entry[i], node);
    if (!wanted_.empty()) compute_copies(node);
    run(node, node, false);
  }
  for (std::int32_t e = 0; e < a.entries; ++e)
    if (lives_to_end_[e] && original_[e] >= 0) {
      instance_last_[original_[e]] = steps();
      instance_read_[original_[e]] = kFromMemory;
    }
  return sum_up();
}

// An output takes over the memory of an input that nothing else will read, and that of an input it is a view of.
void Schedule::share(std::int32_t step) {
  const auto& a = arrays;
  const std::int32_t node = step_node_[step], first = step_instance_[step];
  const bool masked = is_copy_[step] && a.masked[node];
  static constexpr std::int32_t product_pairs[6] = {0, 0, 0, 1, 0, 0};
  const std::int32_t* pair = masked ? product_pairs : a.inplace + 3 * a.inplace_begin[node];
  const std::int32_t pairs = masked ? 2 : a.inplace_begin[node + 1] - a.inplace_begin[node];
  if (pairs == 0) return;
  for (std::int32_t i = 0; i < pairs; ++i, pair += 3) {
    std::int32_t in = -1, at = 0;
    if (masked) {
      in = reads_[read_begin_[step] + pair[0]];
    } else {
      const std::int32_t input = a.input_begin[node] + pair[0];
      if (a.input_shape_only[input]) continue;
      const std::int32_t entry = a.input_entry[input];
      for (at = read_begin_[step]; at < read_begin_[step + 1]; ++at)
        if (instance_entry_[reads_[at]] == entry) in = reads_[at];
    }
    const std::int32_t out = first + pair[1];
    if (in < 0 || chunk_[in] < 0 || chunk_[out] >= 0) continue;
    if (bytes_[instance_entry_[in]] != bytes_[instance_entry_[out]]) continue;
    const std::int32_t chunk = chunk_[in];
    std::int32_t uses = 0;
    for (at = read_begin_[step]; at < read_begin_[step + 1]; ++at) uses += chunk_[reads_[at]] == chunk;
    if (!(chunk_last_[chunk] == step && uses == 1) && !pair[2]) continue;
    chunk_[out] = chunk;
    chunk_last_[chunk] = std::max(chunk_last_[chunk], instance_last_[out]);
  }
}

Schedule::Value Schedule::sum_up() {
  const std::int32_t instances = static_cast<std::int32_t>(instance_entry_.size());
  chunk_.assign(instances, -1);
  chunk_first_.clear();
  chunk_last_.clear();
  chunk_entry_.clear();
  for (std::int32_t step = 0; step < steps(); ++step) {
    share(step);
    const std::int32_t end = step + 1 < steps() ? step_instance_[step + 1] : instances;
    for (std::int32_t out = step_instance_[step]; out < end; ++out) {
      if (chunk_[out] >= 0 || !takes_memory(out)) continue;
      chunk_[out] = static_cast<std::int32_t>(chunk_first_.size());
      chunk_first_.push_back(step);
      chunk_last_.push_back(instance_last_[out]);
      chunk_entry_.push_back(instance_entry_[out]);
    }
  }
  for (auto& level : live_) level.assign(steps() + 2, 0);
  for (std::size_t chunk = 0; chunk < chunk_entry_.size(); ++chunk) {
    auto& level = live_[level_of_[chunk_entry_[chunk]]];
    level[chunk_first_[chunk]] += amount(chunk_entry_[chunk]);
    level[chunk_last_[chunk] + 1] -= amount(chunk_entry_[chunk]);
  }
  Value value;
  for (std::int32_t level = levels() - 1; level >= 0; --level) {
    std::int64_t live = 0;
    most_[level] = 0;
    for (std::int32_t step = 0; step < steps(); ++step) {
      live += live_[level][step];  // blocks of this size; those of all larger ones count too
      live_[level][step] = live + (level + 1 < levels() ? live_[level + 1][step] : 0);
      most_[level] = std::max(most_[level], live_[level][step]);
    }
    value.bytes += weight_[level] * most_[level];
  }
  layout_copy_bytes_ = 0;
  for (std::int32_t step = 0; step < steps(); ++step) {
    if (!is_copy_[step]) continue;
    value.seconds += arrays.seconds[step_node_[step]];
    layout_copy_bytes_ += arrays.layout_copy_bytes[step_node_[step]];
  }
  value.bytes += layout_copy_bytes_;
  return value;
}

std::int32_t Schedule::found_at(std::int32_t entry, std::int32_t position) const {
  const std::int32_t node = node_of[entry], copy = copy_at(entry, position);
  if (copy == 0) return original_[entry];
  if (copies_[node].empty() || copies_[node][copy - 1] < 0) return -1;
  return copies_[node][copy - 1] + entry - arrays.entry_begin[node];
}

}  // namespace echo
