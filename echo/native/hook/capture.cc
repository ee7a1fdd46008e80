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

template <typename Numbers>
static void write_numbers(const Numbers& numbers, std::string* out) {
  write_list(numbers, out, [&](auto number) { *out += std::to_string(number); });
}

template <typename T>
static std::vector<T> view(const ArrayView<T>& array) {
  return std::vector<T>(array.data, array.data + array.size);
}

// Those of the entries from ``begin`` to ``end`` that ``is_one`` says yes to, counted from ``begin``.
template <typename Test>
static std::vector<std::size_t> positions(std::size_t begin, std::size_t end, Test is_one) {
  std::vector<std::size_t> found;
  for (std::size_t entry = begin; entry < end; ++entry)
    if (is_one(entry)) found.push_back(entry - begin);
  return found;
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
    if (nodes) this->nodes();
    out_->push_back('}');
  }

 private:
  void number(long long value) { *out_ += std::to_string(value); }
  struct Chunk {
    std::int64_t bytes, counted;  // as it is, and as MXNet counts: four an element
    bool touched;
  };
  std::vector<Chunk> chunks() const;
  std::string kind(const RawAttrs& attrs, std::size_t index) const;
  void outputs(std::size_t begin, std::size_t end, std::string* out) const;
  void node(const IndexedNode& node, std::size_t index);
  void nodes();

  const RawIndexedGraph& graph_;
  const std::vector<RawShape>& shapes_;
  const std::vector<int>& dtypes_;
  const std::vector<int>& storage_;
  const std::vector<Untouched> untouched_;
  std::unordered_map<std::string, std::size_t> kinds_;  // by their text, with numbers in the order in which they appear
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

void Writer::outputs(std::size_t begin, std::size_t end, std::string* out) const {
  *out += ",\"shapes\":";
  write_list(std::vector<RawShape>(shapes_.begin() + begin, shapes_.begin() + end), out, [&](const RawShape& shape) {
    const int ndim = shape.ndim < 0 ? 0 : shape.ndim;
    write_numbers(std::vector<std::int64_t>(shape.begin(), shape.begin() + ndim), out);
  });
  *out += ",\"dtypes\":";
  write_numbers(std::vector<int>(dtypes_.begin() + begin, dtypes_.begin() + end), out);
  *out += ",\"external\":";
  write_numbers(positions(begin, end, [&](std::size_t entry) { return storage_[entry] < kNoStorage; }), out);
}

// What a node has in common with others of its operator, attributes and shapes: the steps of a recurrent layer have
// thousands of nodes of few kinds.
std::string Writer::kind(const RawAttrs& attrs, std::size_t index) const {
  std::string out = "{\"op\":";
  write_string(attrs.op ? attrs.op->name : "null", &out);
  const std::size_t begin = graph_.entry_offsets[index], end = graph_.entry_offsets[index + 1];
  outputs(begin, end, &out);
  if (attrs.op) {
    out += ",\"inplace\":";
    write_list(inplace_pairs(attrs), &out, [&](const Inplace& pair) {
      write_numbers(std::vector<int>{pair.input, pair.output, pair.identity}, &out);
    });
    out += ",\"shape_only\":";
    write_numbers(shape_only_inputs(attrs), &out);
    out += ",\"untouched\":";
    const auto is_untouched = [&](std::size_t entry) { return untouched_[entry] || storage_[entry] == kNoStorage; };
    write_numbers(positions(begin, end, is_untouched), &out);
    out += ",\"random\":" + std::to_string(is_random(attrs));
    out += ",\"stateful\":" + std::to_string(is_stateful(attrs));
    out += ",\"mutates\":" + std::to_string(mutates(attrs));
  }
  out.push_back('}');
  return out;
}

// A list of the number of its kind, its name, and the numbers of its inputs (node, output, node, output...) and of the
// nodes that it waits for.
void Writer::node(const IndexedNode& node, std::size_t index) {
  const auto found = kinds_.emplace(kind(node.source->attrs, index), kinds_.size()).first;
  *out_ += "[" + std::to_string(found->second) + ",";
  write_string(node.source->attrs.name, out_);
  *out_ += ",[";
  for (std::size_t i = 0; i < node.inputs.size; ++i) {
    const IndexedEntry& entry = node.inputs.data[i];
    if (i > 0) out_->push_back(',');
    *out_ += std::to_string(entry.node) + "," + std::to_string(entry.index);
  }
  *out_ += "],";
  write_numbers(view(node.control_deps), out_);
  out_->push_back(']');
}

void Writer::nodes() {
  *out_ += ",\"nodes\":";
  std::size_t index = 0;
  write_list(graph_.nodes, out_, [&](const IndexedNode& node) { this->node(node, index++); });
  std::vector<const std::string*> kinds(kinds_.size());
  for (const auto& [text, number] : kinds_) kinds[number] = &text;
  *out_ += ",\"kinds\":";
  write_list(kinds, out_, [&](const std::string* text) { *out_ += *text; });
  *out_ += ",\"storage\":";
  write_numbers(storage_, out_);
  *out_ += ",\"outputs\":";
  write_list(graph_.outputs, out_, [&](const IndexedEntry& entry) {
    write_numbers(std::vector<std::uint32_t>{entry.node, entry.index}, out_);
  });
}

std::string graph_to_json(const RawGraph& graph, bool nodes) {
  std::string out;
  const Writer written(graph, nodes, &out);
  return out;
}

}  // namespace echo
