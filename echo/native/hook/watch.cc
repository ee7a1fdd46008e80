// Was an array written between a forward pass and its backward pass? What a plan recomputes from it would then mix
// old and new values.
//
// MXNet's engine counts the writes to each array. A record is made by a function that the engine runs as a reader of
// the arrays, after all writes before the forward pass and before all writes after it. MXNet also counts what changes
// nothing: the end of an executor that read the array, oneDNN's new order of the same elements. So a record also holds
// digests of arrays that are not too long for it: where they say that the contents are as they were, nothing was
// written. Records of Gluon's passes go with the nodes of MXNet's recorded graph.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "array.h"
#include "digest.h"
#include "graph_walk.h"

#define ECHO_EXPORT extern "C" __attribute__((visibility("default")))

namespace echo {

const RawArray& at(const RawArrays& arrays, std::size_t position, std::size_t count) {
  const std::size_t size = (arrays.end - arrays.first) / count;
  return *reinterpret_cast<const RawArray*>(arrays.first + position * size);
}

std::size_t bytes_of(const RawArray& array) {
  static const std::size_t kSizes[] = {4, 8, 2, 1, 4, 1, 8, 1};  // float32, 64, 16, uint8, int32, 8, 64, bool
  const bool is_known = array.type >= 0 && array.type < 8 && array.shape.ndim >= 0;
  std::size_t bytes = is_known ? kSizes[array.type] : 0;
  for (int axis = 0; axis < array.shape.ndim; ++axis) bytes *= array.shape.begin()[axis];
  return bytes;
}

namespace {

// A digest of more takes longer than a step should wait for: from there on the count alone decides. Not so of an array
// in one of oneDNN's layouts: inference leaves weights like that, and the next training pass puts them back, after the
// record was made. Nor of the first records: the inference that gave parameters their shapes may still be at work.
constexpr std::size_t kMostBytes = std::size_t{4} << 20, kMostGpuBytes = std::size_t{256} << 10;
constexpr int kFirst = 2;
constexpr std::int32_t kGpu = 2;

struct Api {
  int (*push)(void (*)(void*, void*), void*, void (*)(void*), const void*, void*, int, void*, int, const void*, int,
              const char*);
  int (*wait)(void*);
  int (*recorded)(void*, void**);
  int (*free_symbol)(void*);
};
Api g_api;

// CUDA's runtime, to which the libmxnet.so of a CUDA wheel is linked; null elsewhere.
struct Cuda {
  int (*get_device)(int*);
  int (*set_device)(int);
  int (*copy)(void*, const void*, std::size_t, int, void*);
  int (*wait)(void*);

  // Copies from a device to the host, whatever the device of the calling thread is; false where CUDA does not.
  bool fetch(int device, const void* from, std::size_t bytes, void* to) const {
    static const int kDeviceToHost = 2;                          // cudaMemcpyKind
    void* const stream = reinterpret_cast<void*>(std::size_t{2});  // cudaStreamPerThread
    int before = 0;
    if (!get_device || !set_device || !copy || !wait || get_device(&before) || set_device(device)) return false;
    const bool is_there = !copy(to, from, bytes, kDeviceToHost, stream) && !wait(stream);
    return !set_device(before) && is_there;
  }
};
Cuda g_cuda;

struct Watch {  // the arrays that a plan reads again: one text for each
  std::vector<std::string> texts;
  bool has_digests;
  mutable std::atomic<int> records{0};  // that were made
};

struct Seen {
  std::weak_ptr<RawChunk> chunk;
  std::size_t offset, bytes, version = 0;
  bool has_digest = false;
  const void* layout = nullptr;
  Digest digest;
};

class Record {
 public:
  explicit Record(std::shared_ptr<const Watch> watch) : watch_(std::move(watch)) {}
  void push(const std::shared_ptr<Record>& self, const RawArray* const* arrays, int count, int* status);
  // The text of an array that was written since; empty where none was, null where MXNet has an error to report.
  const char* changed();

 private:
  friend struct Reader;
  void read(const std::vector<std::shared_ptr<RawChunk>>& chunks);
  void finish(bool has_read);

  std::shared_ptr<const Watch> watch_;
  std::vector<Seen> seen_;
  std::mutex mutex_;
  std::condition_variable finished_;
  bool is_finished_ = false, has_read_ = false;
};

// What the engine runs. It holds the arrays until it has run: MXNet frees memory at once where nothing does.
struct Reader {
  std::shared_ptr<Record> record;
  std::vector<std::shared_ptr<RawChunk>> chunks;
  static void run(void*, void* self) {
    auto* reader = static_cast<Reader*>(self);
    reader->record->read(reader->chunks);
    reader->chunks.clear();
    reader->record->finish(true);
  }
  static void end(void* self) {  // the engine leaves out what reads the result of an operator that failed
    auto* reader = static_cast<Reader*>(self);
    reader->record->finish(false);
    delete reader;
  }
};

bool is_too_long(const RawChunk& chunk, std::size_t bytes, bool is_first) {
  if (chunk.device_type == kGpu) return bytes > kMostGpuBytes;
  return !is_first && !chunk.layout && bytes > kMostBytes;
}

bool take_digest(const RawChunk& chunk, std::size_t offset, std::size_t bytes, Digest* digest) {
  if (chunk.layout && offset == 0 && bytes) bytes = chunk.bytes;  // with the zeros that fill up its blocks
  const bool on_gpu = chunk.device_type == kGpu;
  if (!bytes || offset + bytes > chunk.bytes || !chunk.data) return false;
  const char* data = static_cast<const char*>(chunk.data) + offset;
  std::vector<char> fetched(on_gpu ? bytes : 0);
  if (on_gpu && !g_cuda.fetch(chunk.device_id, data, bytes, fetched.data())) return false;
  *digest = digest_of(on_gpu ? fetched.data() : data, bytes);
  return true;
}

void Record::push(const std::shared_ptr<Record>& self, const RawArray* const* arrays, int count, int* status) {
  static const std::int32_t kCpu[2] = {1, 0};  // mxnet::Context
  static const int kPrioritized = 3;           // mxnet::FnProperty::kCPUPrioritized, which has threads of its own
  auto* reader = new Reader{self, {}};
  std::vector<RawVar*> vars;
  for (int i = 0; i < count; ++i) {
    const std::shared_ptr<RawChunk>& chunk = arrays[i]->chunk;
    seen_.push_back(Seen{chunk, arrays[i]->byte_offset, bytes_of(*arrays[i]), 0, false, nullptr, {}});
    reader->chunks.push_back(chunk);
    if (chunk) vars.push_back(chunk->var);
  }
  std::sort(vars.begin(), vars.end());
  vars.erase(std::unique(vars.begin(), vars.end()), vars.end());
  *status = g_api.push(Reader::run, reader, Reader::end, kCpu, static_cast<void*>(vars.data()),
                       static_cast<int>(vars.size()), nullptr, 0, &kPrioritized, 0, "echo_watch");
}

void Record::read(const std::vector<std::shared_ptr<RawChunk>>& chunks) {
  const bool is_first = watch_->records++ < kFirst;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (!chunks[i]) continue;
    Seen& seen = seen_[i];
    seen.version = chunks[i]->var->version();
    seen.layout = chunks[i]->layout;
    seen.has_digest = watch_->has_digests && !is_too_long(*chunks[i], seen.bytes, is_first) &&
                      take_digest(*chunks[i], seen.offset, seen.bytes, &seen.digest);
  }
}

void Record::finish(bool has_read) {
  std::lock_guard<std::mutex> lock(mutex_);
  has_read_ = has_read_ || has_read;
  is_finished_ = true;
  finished_.notify_all();
}

bool is_as_before(const Seen& seen, const RawChunk& chunk) {
  if (chunk.var->version() == seen.version) return true;
  Digest now;
  if (!seen.has_digest || !take_digest(chunk, seen.offset, seen.bytes, &now)) return false;
  return now.in_order == seen.digest.in_order ||
         (chunk.layout != seen.layout && now.any_order == seen.digest.any_order);
}

const char* Record::changed() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, [this] { return is_finished_; });
    if (!has_read_) return "";
  }
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    // all that MXNet reads of an array to wait for it; what is gone cannot be read again
    struct {
      RawArray array{};
      unsigned char rest[256] = {};
    } stand_in;
    stand_in.array.chunk = seen_[i].chunk.lock();
    if (!stand_in.array.chunk) continue;
    if (g_api.wait(&stand_in)) return nullptr;
    if (!is_as_before(seen_[i], *stand_in.array.chunk)) return watch_->texts[i].c_str();
  }
  return "";
}

struct Attached {
  std::weak_ptr<RawNode> node;
  std::shared_ptr<Record> record;
};
std::mutex g_mutex;
std::unordered_map<const RawNode*, Attached> g_attached;  // the passes that Gluon recorded
std::size_t g_swept_at = 64;

void sweep() {
  for (auto at = g_attached.begin(); at != g_attached.end();)
    at = at->second.node.expired() ? g_attached.erase(at) : std::next(at);
  g_swept_at = std::max<std::size_t>(64, 2 * g_attached.size());
}

std::shared_ptr<Record> attached(const NodePtr& node) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto found = g_attached.find(node.get());
  const bool is_there = found != g_attached.end() && found->second.node.lock() == node;
  return is_there ? found->second.record : nullptr;
}

// The recorded graph after an array, empty where it has none.
std::vector<RawEntry> recorded_graph(void* array) {
  void* symbol = nullptr;
  if (g_api.recorded(array, &symbol)) return {};
  std::vector<RawEntry> outputs = *static_cast<std::vector<RawEntry>*>(symbol);  // nnvm::Symbol begins with them
  g_api.free_symbol(symbol);
  return outputs;
}

}  // namespace
}  // namespace echo

using namespace echo;

// Finds the functions of the loaded libmxnet.so at `path`. 0 on success.
ECHO_EXPORT int echo_watch_install(const char* path) {
  void* lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (!lib) return 1;
  auto find = [lib](const char* name, auto* out) {
    *out = reinterpret_cast<std::remove_pointer_t<decltype(out)>>(dlsym(lib, name));
    return *out != nullptr;
  };
  find("cudaGetDevice", &g_cuda.get_device), find("cudaSetDevice", &g_cuda.set_device);
  find("cudaMemcpyAsync", &g_cuda.copy), find("cudaStreamSynchronize", &g_cuda.wait);
  const bool found = find("MXEnginePushSync", &g_api.push) && find("MXNDArrayWaitToRead", &g_api.wait) &&
                     find("MXAutogradGetSymbol", &g_api.recorded) && find("MXSymbolFree", &g_api.free_symbol);
  return found ? 0 : 1;
}

// Whether an array on the CPU, a row of a longer one, looks as expected, from the first word on: 1 if so.
ECHO_EXPORT int echo_watch_fits(const RawArray* row, const char* data, std::size_t bytes, const char* start,
                                std::size_t total) {
  const RawChunk* chunk = row->chunk.get();
  return chunk && chunk->data == start && chunk->bytes == total && chunk->device_type == 1 && chunk->device_id == 0 &&
         !chunk->auxiliary[0] && !chunk->layout && !chunk->layout_owner && chunk->var &&
         row->byte_offset == static_cast<std::size_t>(data - start) && bytes_of(*row) == bytes;
}

ECHO_EXPORT std::size_t echo_watch_version(const RawArray* array) { return array->chunk->var->version(); }

// What a plan reads again: a text for each array, with line ends between them. Without digests the count of writes alone
// decides.
ECHO_EXPORT void* echo_watch_new(const char* texts, int has_digests) {
  auto watch = std::make_shared<Watch>();
  watch->has_digests = has_digests != 0;
  for (const char* end; (end = std::strchr(texts, '\n')); texts = end + 1) watch->texts.emplace_back(texts, end);
  watch->texts.emplace_back(texts);
  return new std::shared_ptr<Watch>(watch);
}

ECHO_EXPORT void echo_watch_free(void* watch) { delete static_cast<std::shared_ptr<Watch>*>(watch); }

// Has the engine record these arrays, one for each text; null where MXNet has an error to report.
ECHO_EXPORT void* echo_watch_record(void* watch, const RawArray* const* arrays) {
  const auto& shared = *static_cast<std::shared_ptr<Watch>*>(watch);
  auto record = std::make_shared<Record>(shared);
  int status = 0;
  record->push(record, arrays, static_cast<int>(shared->texts.size()), &status);
  return status ? nullptr : new std::shared_ptr<Record>(record);
}

ECHO_EXPORT void echo_record_free(void* record) { delete static_cast<std::shared_ptr<Record>*>(record); }

// The text of an array that was written since; empty where none was, null where MXNet has an error to report.
ECHO_EXPORT const char* echo_record_changed(void* record) {
  return (*static_cast<std::shared_ptr<Record>*>(record))->changed();
}

// Keeps a record for as long as MXNet keeps the recorded pass that an output comes from.
ECHO_EXPORT void echo_record_attach(void* record, void* output) {
  const std::vector<RawEntry> entries = recorded_graph(output);
  if (entries.empty()) return;
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_attached.size() >= g_swept_at) sweep();
  g_attached[entries[0].node.get()] = Attached{entries[0].node, *static_cast<std::shared_ptr<Record>*>(record)};
}

// As `echo_record_changed`, of all passes after these heads that lead to one of these variables; no variables are all.
ECHO_EXPORT const char* echo_changed_upstream(void* const* heads, std::uint32_t count, void* const* variables,
                                              std::uint32_t num_variables) {
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    if (g_attached.empty()) return "";
  }
  std::unordered_set<const RawNode*> leads;
  for (std::uint32_t i = 0; i < num_variables; ++i)
    for (const RawEntry& entry : recorded_graph(variables[i])) leads.insert(entry.node.get());
  std::vector<RawEntry> entries;
  for (std::uint32_t i = 0; i < count; ++i)
    for (RawEntry& entry : recorded_graph(heads[i])) entries.push_back(std::move(entry));
  thread_local std::string written;
  const char* text = "";
  post_order(entries, [&](const NodePtr& node) {
    const auto& inputs = node->inputs;
    const bool is_above = std::any_of(inputs.begin(), inputs.end(),
                                      [&](const RawEntry& input) { return leads.count(input.node.get()) != 0; });
    if (is_above) leads.insert(node.get());
    if (!text || *text || (num_variables && !is_above)) return;
    const auto record = attached(node);
    if (!record) return;
    text = record->changed();
    if (text) text = (written = text).c_str();
  });
  return text;
}
