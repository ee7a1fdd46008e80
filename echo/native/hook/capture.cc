#include "capture.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <unordered_map>

#include "gradient_sums.h"
#include "mxnet_api.h"
#include "unused_outputs.h"

namespace echo {

// By MXNet's type flag: float32, float64, float16, uint8, int32, int8, int64, bool, int16, uint16, uint32, uint64, bfloat16.
static constexpr std::array<std::int64_t, 13> kTypeBytes{4, 8, 2, 1, 4, 1, 8, 1, 2, 2, 4, 8, 2};

static void write_string(const std::string& text, std::string* out) {
  out->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(c));
      *out += buffer;
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

template <typename Items, typename Write>
static void write_list(const Items& items, std::string* out, Write write) {
  out->push_back('[');
  bool first = true;
  for (const auto& item : items) {
    if (!first) out->push_back(',');
    first = false;
    write(item);
  }
  out->push_back(']');
}

template <typename T>
static std::vector<T> view(const ArrayView<T>& array) {
  return std::vector<T>(array.data, array.data + array.size);
}

struct Inplace {
  int input, output;
  bool identity;
};

static std::vector<Inplace> inplace_pairs(const RawAttrs& attrs) {
  std::vector<Inplace> pairs;
  const auto* option = op_attr<InplaceOption>("FInplaceOption", attrs.op);
  if (!option) return pairs;
  const auto* identity = op_attr<InplaceIdentity>("FInplaceIdentity", attrs.op);
  const std::vector<bool> identities = identity ? (*identity)(attrs) : std::vector<bool>();
  std::size_t index = 0;
  for (const auto& pair : (*option)(attrs)) {
    pairs.push_back({pair.first, pair.second, index < identities.size() && identities[index]});
    ++index;
  }
  return pairs;
}

class Writer {
 public:
  Writer(const RawGraph& graph, bool nodes, std::string* out)
      : graph_(*api().indexed_graph(&graph)),
        shapes_(required_attr<std::vector<RawShape>>(graph, "shape")),
        dtypes_(required_attr<std::vector<int>>(graph, "dtype")),
        storage_(required_attr<std::vector<int>>(graph, "storage_id")),
        untouched_(untouched(graph, true)),
        out_(out) {
    if (shapes_.size() != graph_.entry_offsets.back() || storage_.size() != shapes_.size())
      throw std::runtime_error("echo: MXNet's training graph does not have the expected layout");
    *out_ += "{\"allocated_bytes\":";
    number(static_cast<long long>(required_attr<std::size_t>(graph, "storage_allocated_bytes")));
    *out_ += ",\"accumulations\":";
    write_list(gradient_sums(graph_, storage_), out_, [&](const GradientSum& sum) { number(sum.in_place); });
    *out_ += ",\"chunks\":";
    const std::vector<Chunk> found = chunks();
    write_list(found, out_, [&](const Chunk& chunk) { number(chunk.bytes); });
    *out_ += ",\"touched_bytes\":";
    number(std::accumulate(found.begin(), found.end(), std::int64_t{0},
                           [](std::int64_t sum, const Chunk& chunk) { return sum + chunk.touched * chunk.counted; }));
    if (nodes) {
      *out_ += ",\"nodes\":";
      std::size_t index = 0;
      write_list(graph_.nodes, out_, [&](const IndexedNode& node) { this->node(node, index++); });
      *out_ += ",\"outputs\":";
      write_list(graph_.outputs, out_, [&](const IndexedEntry& entry) { this->entry(entry); });
    }
    out_->push_back('}');
  }

 private:
  void number(long long value) { *out_ += std::to_string(value); }
  void entry(const IndexedEntry& entry) {
    out_->push_back('[');
    number(entry.node);
    out_->push_back(',');
    number(entry.index);
    out_->push_back(']');
  }
  void numbers(const char* key, const std::vector<std::uint32_t>& values) {
    *out_ += key;
    write_list(values, out_, [&](std::uint32_t value) { number(value); });
  }
  struct Chunk {
    std::int64_t bytes, counted;  // as it is, and as MXNet counts: four an element
    bool touched;
  };
  std::vector<Chunk> chunks() const;
  void node(const IndexedNode& node, std::size_t index);
  void outputs(std::size_t begin, std::size_t end);

  const RawIndexedGraph& graph_;
  const std::vector<RawShape>& shapes_;
  const std::vector<int>& dtypes_;
  const std::vector<int>& storage_;
  const std::vector<Untouched> untouched_;
  std::string* out_;
};

// What storage ids need, in the order in which they appear.
std::vector<Writer::Chunk> Writer::chunks() const {
  std::vector<Chunk> found;
  std::unordered_map<int, std::size_t> place;
  for (std::size_t entry = 0; entry < storage_.size(); ++entry) {
    if (storage_[entry] < 0) continue;
    std::int64_t elements = 1;
    for (int axis = 0; axis < shapes_[entry].ndim; ++axis) elements *= shapes_[entry].begin()[axis];
    const auto [known, is_new] = place.emplace(storage_[entry], found.size());
    if (is_new) found.push_back({0, 0, false});
    Chunk& chunk = found[known->second];
    chunk.bytes = std::max(chunk.bytes, elements * kTypeBytes.at(static_cast<std::size_t>(dtypes_[entry])));
    chunk.counted = std::max(chunk.counted, 4 * elements);
    chunk.touched = chunk.touched || untouched_[entry] == kTouched;
  }
  return found;
}

void Writer::outputs(std::size_t begin, std::size_t end) {
  *out_ += ",\"shapes\":";
  write_list(std::vector<RawShape>(shapes_.begin() + begin, shapes_.begin() + end), out_, [&](const RawShape& shape) {
    const int ndim = shape.ndim < 0 ? 0 : shape.ndim;
    write_list(std::vector<std::int64_t>(shape.begin(), shape.begin() + ndim), out_,
               [&](std::int64_t size) { number(size); });
  });
  *out_ += ",\"dtypes\":";
  write_list(std::vector<int>(dtypes_.begin() + begin, dtypes_.begin() + end), out_, [&](int flag) { number(flag); });
  *out_ += ",\"storage\":";
  write_list(std::vector<int>(storage_.begin() + begin, storage_.begin() + end), out_, [&](int id) { number(id); });
}

void Writer::node(const IndexedNode& node, std::size_t index) {
  const RawAttrs& attrs = node.source->attrs;
  *out_ += "{\"op\":";
  write_string(attrs.op ? attrs.op->name : "null", out_);
  *out_ += ",\"name\":";
  write_string(attrs.name, out_);
  *out_ += ",\"inputs\":";
  write_list(view(node.inputs), out_, [&](const IndexedEntry& entry) { this->entry(entry); });
  numbers(",\"control_deps\":", view(node.control_deps));
  outputs(graph_.entry_offsets[index], graph_.entry_offsets[index + 1]);
  if (attrs.op) {
    *out_ += ",\"inplace\":";
    write_list(inplace_pairs(attrs), out_, [&](const Inplace& pair) {
      write_list(std::vector<int>{pair.input, pair.output, pair.identity}, out_, [&](int value) { number(value); });
    });
    numbers(",\"shape_only\":", shape_only_inputs(attrs));
    std::vector<std::uint32_t> untouched;
    for (std::size_t entry = graph_.entry_offsets[index]; entry < graph_.entry_offsets[index + 1]; ++entry)
      if (untouched_[entry] || storage_[entry] == kNoStorage)
        untouched.push_back(static_cast<std::uint32_t>(entry - graph_.entry_offsets[index]));
    numbers(",\"untouched\":", untouched);
    *out_ += ",\"random\":" + std::to_string(is_random(attrs));
    *out_ += ",\"stateful\":" + std::to_string(is_stateful(attrs));
    *out_ += ",\"mutates\":" + std::to_string(mutates(attrs));
  }
  out_->push_back('}');
}

std::string graph_to_json(const RawGraph& graph, bool nodes) {
  std::string out;
  const Writer written(graph, nodes, &out);
  return out;
}

}  // namespace echo
