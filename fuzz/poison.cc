// A test mode, compiled by fuzz/poison_library.py with some files of the hook: it writes memory plans down, and
// overwrites chunks of memory once nothing reads them any more. It wraps MXNet's memory pass over the hook, if that is
// there, and takes itself off again.
#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

#include "gradient_sums.h"
#include "layout.h"
#include "mxnet_api.h"
#include "storage.h"

#define ECHO_EXPORT extern "C" __attribute__((visibility("default")))

namespace echo {
namespace {

using Invoker = void* (*)(void* result, void* functor, RawGraph* graph);

std::mutex g_mutex;
RawPass* g_pass = nullptr;  // the memory pass, as long as it is wrapped
std::atomic<Invoker> g_original{nullptr};
std::atomic<bool> g_recording{false};
thread_local std::string t_recorded, t_given;

using OutputNames = std::function<std::vector<std::string>(const RawAttrs&)>;

class Writer {
 public:
  Writer(const Reads& reads, const RawGraph& graph, std::string* out)
      : reads_(reads),
        graph_(*api().indexed_graph(&graph)),
        dtypes_(required_attr<std::vector<int>>(graph, "dtype")),
        storage_(required_attr<std::vector<int>>(graph, "storage_id")),
        out_(*out) {
    out_ += "{\"first\":" + std::to_string(reads.first_node) + ",\"end\":" + std::to_string(reads.end_node);
    list("storage", storage_.size(), [&](std::size_t entry) { number(storage_[entry]); });
    list("dtypes", dtypes_.size(), [&](std::size_t entry) { number(dtypes_[entry]); });
    list("counts", reads.count.size(), [&](std::size_t entry) { number(reads_.count[entry]); });
    list("outputs", graph_.outputs.size(), [&](std::size_t i) { number(id(graph_.outputs[i])); });
    sums();
    missing();
    list("nodes", graph_.nodes.size(), [&](std::size_t node) { this->node(node); });
    out_ += '}';
  }

 private:
  std::size_t id(const IndexedEntry& entry) const { return graph_.entry_offsets[entry.node] + entry.index; }
  void number(long long value) { out_ += std::to_string(value); }
  void text(const std::string& value) {
    out_ += '"';
    for (const char c : value) {  // names are compared with what MXNet says of them, byte for byte
      if (c == '"' || c == '\\') out_ += '\\';
      out_ += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    out_ += '"';
  }
  template <typename Write>
  void items(std::size_t count, Write write) {
    out_ += '[';
    for (std::size_t i = 0; i < count; ++i) {
      if (i) out_ += ',';
      write(i);
    }
    out_ += ']';
  }
  template <typename Write>
  void list(const char* key, std::size_t count, Write write) {
    out_ += std::string(",\"") + key + "\":";
    items(count, write);
  }

  // The sums of gradients that MXNet may compute in place: the second term, and the sum.
  void sums() {
    std::vector<std::pair<std::size_t, std::size_t>> found;
    const std::vector<GradientSum> all = gradient_sums(graph_, storage_);
    std::size_t next = 0;
    for (std::size_t node = 0; node < graph_.nodes.size(); ++node) {
      const RawOp* op = graph_.nodes[node].source->attrs.op;
      if (!op || op->name != "_grad_add") continue;
      const GradientSum& sum = all.at(next++);
      if (sum.in_place) found.emplace_back(id(sum.term), graph_.entry_offsets[node]);
    }
    list("sums", found.size(),
         [&](std::size_t i) { items(2, [&](std::size_t side) { number(side ? found[i].second : found[i].first); }); });
  }

  // The names of nodes that read an output which the node above them does not have.
  void missing() {
    std::vector<std::string> found;
    for (const IndexedNode& node : graph_.nodes)
      for (std::size_t i = 0; i < node.inputs.size; ++i)
        if (id(node.inputs.data[i]) >= graph_.entry_offsets[node.inputs.data[i].node + 1])
          found.push_back(node.source->attrs.name);
    list("missing", found.size(), [&](std::size_t i) { text(found[i]); });
  }

  // A variable is null; an operator its name, its first entry, what it is handed (entry E as -1 - E where it reads the
  // shape only), the names of its outputs, and the entry after its last.
  void node(std::size_t number_) {
    const IndexedNode& node = graph_.nodes[number_];
    const RawAttrs& attrs = node.source->attrs;
    if (!attrs.op) {
      out_ += "null";
      return;
    }
    out_ += '[';
    text(attrs.name);
    out_ += ',';
    number(graph_.entry_offsets[number_]);
    out_ += ',';
    std::vector<bool> read(node.inputs.size, true);
    for (const std::uint32_t index : shape_only_inputs(attrs))
      if (index < read.size()) read[index] = false;
    items(node.inputs.size, [&](std::size_t i) {
      const auto entry = static_cast<long long>(id(node.inputs.data[i]));
      number(read[i] ? entry : -1 - entry);
    });
    out_ += ',';
    const auto* names = op_attr<OutputNames>("FListOutputNames", attrs.op);
    const std::vector<std::string> given = names ? (*names)(attrs) : std::vector<std::string>();
    items(given.size(), [&](std::size_t i) { text(given[i]); });
    out_ += ',';
    number(graph_.entry_offsets[number_ + 1]);
    out_ += ']';
  }

  const Reads& reads_;
  const RawIndexedGraph& graph_;
  const std::vector<int>& dtypes_;
  const std::vector<int>& storage_;
  std::string& out_;
};

// What the engine is handed: an array, which is freed after the write, and the byte to write.
struct Fill {
  void* array;
  int byte;
};

struct EngineApi {
  int (*push)(void (*)(void*, void*), void*, void (*)(void*), void*, void**, int, void**, int, void*, int, const char*);
  int (*free)(void*);
};

EngineApi g_engine;

struct RawContext {
  int device_type, device_id;
};
struct RawChunk {  // the beginning of NDArray::Chunk, which begins with a Storage::Handle
  void* data;
  std::size_t size;
  RawContext context;
};

RawChunk* chunk_of(void* array) { return *static_cast<RawChunk**>(array); }  // an NDArray begins with its shared_ptr

void fill(void*, void* given) {
  const auto* wanted = static_cast<Fill*>(given);
  const RawChunk* chunk = chunk_of(wanted->array);
  if (chunk->data) std::memset(chunk->data, wanted->byte, chunk->size);  // the memory alone: its layout stays as it is
}

void release(void* given) {
  auto* wanted = static_cast<Fill*>(given);
  g_engine.free(wanted->array);
  delete wanted;
}

void* memory_pass(void* result, void* functor, RawGraph* graph) {
  const bool recording = g_recording.load(std::memory_order_relaxed);
  const Reads reads = recording ? reads_of(*graph) : Reads{};
  g_original.load()(result, functor, graph);
  if (!recording) return result;
  try {
    if (!t_recorded.empty()) t_recorded += ',';
    Writer(reads, *static_cast<RawGraph*>(result), &t_recorded);
  } catch (...) {  // the caller then expects no graph
    api().destroy_graph(static_cast<RawGraph*>(result));
    throw;
  }
  return result;
}

bool is_outermost() { return g_pass->body_invoker == reinterpret_cast<void*>(memory_pass); }

void exchange(Invoker invoker) {
  __atomic_store_n(&g_pass->body_invoker, reinterpret_cast<void*>(invoker), __ATOMIC_SEQ_CST);
}

}  // namespace
}  // namespace echo

// Finds the functions of the libmxnet.so at `path`, which is loaded. 0 on success.
ECHO_EXPORT int echo_poison_load(const char* path) {
  using namespace echo;
  void* lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  MxnetApi table;
  std::string missing;
  if (!lib || !load_api(lib, &table, &missing)) return 1;
  g_engine.push = reinterpret_cast<decltype(g_engine.push)>(dlsym(lib, "MXEnginePushSyncND"));
  g_engine.free = reinterpret_cast<decltype(g_engine.free)>(dlsym(lib, "MXNDArrayFree"));
  return g_engine.push && g_engine.free ? 0 : 1;
}

// From now on the memory plan of every graph is written down. 0 on success.
ECHO_EXPORT int echo_record() {
  using namespace echo;
  std::lock_guard<std::mutex> lock(g_mutex);
  for (RawPass* pass : g_pass ? std::vector<RawPass*>() : api().pass_registry()->entries) {
    if (pass->name != "MXPlanMemory" || !pass->body_manager) continue;
    g_pass = pass;
    g_original = reinterpret_cast<Invoker>(pass->body_invoker);
    exchange(memory_pass);
  }
  g_recording = g_pass != nullptr;
  return g_pass ? 0 : 1;
}

// No more. Where another library has wrapped the pass since, the wrapper stays, and does nothing.
ECHO_EXPORT void echo_stop_recording() {
  using namespace echo;
  std::lock_guard<std::mutex> lock(g_mutex);
  g_recording = false;
  if (!g_pass || !is_outermost()) return;
  exchange(g_original);
  g_pass = nullptr;
}

// The memory plans that this thread made since it last asked, as a JSON list; valid until it asks again.
ECHO_EXPORT const char* echo_recorded() {
  echo::t_given = '[' + echo::t_recorded + ']';
  echo::t_recorded.clear();
  return echo::t_given.c_str();
}

// Overwrites the whole chunk of an array with this byte, after everything that was handed to the engine before, and
// frees the array. 0 on success.
ECHO_EXPORT int echo_poison(void* array, int byte) {
  using namespace echo;
  constexpr int cpu = 1;
  if (!chunk_of(array) || chunk_of(array)->context.device_type != cpu) return g_engine.free(array);
  auto* wanted = new Fill{array, byte};
  return g_engine.push(fill, wanted, release, &chunk_of(array)->context, nullptr, 0, &wanted->array, 1, nullptr, 0,
                       "echo_poison");
}
