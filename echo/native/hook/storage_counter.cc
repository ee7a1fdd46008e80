// How much of MXNet's storage is held while something runs: what its profiler's memory counter shows, without the
// profiler, which is the user's. Meanwhile MXNet's storage has another table of virtual functions, which count and then
// call its own.
//
// Only what is freed again by the end is counted. MXNet hands its temporary spaces out in turn and keeps them for all
// graphs of a process, so that which of them grow says nothing of a graph; they outlive it, or are freed directly.
//
// A recording of a whole training watches as well: the bytes alive of all that was allocated since, in constant memory.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#define ECHO_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct RawHandle {  // mxnet::Storage::Handle
  void* data;
  std::size_t size;
  std::int32_t device_type, device_id;
  int shared_process, shared_id;
};
static_assert(sizeof(RawHandle) == 32, "MXNet's storage");

// mxnet::Storage: each function at its place in the table, after the offset and the type
enum Slot { kAlloc = 2, kFree = 4, kDirectFree = 5, kSlots = 9 };

using Alloc = void (*)(void*, RawHandle*);
using Free = void (*)(void*, RawHandle);

struct Block {
  std::int64_t size;
  bool counts = false;
};

void*** g_storage = nullptr;  // the object, whose first word is its table
void** g_own = nullptr;  // its own table, from the first function on
void* g_counting[kSlots];

std::mutex g_mutex;
bool g_open = false;
std::int32_t g_type = 0, g_device = 0;
std::vector<Block> g_blocks;
std::unordered_map<void*, std::size_t> g_alive;  // of those blocks
std::vector<std::pair<std::size_t, bool>> g_events;  // which block, and whether it was allocated or freed

constexpr std::int32_t kGpu = 2;  // MXNet's type of the device
struct Watched {
  std::int64_t now = 0, most = 0;
};
bool g_watching = false;
Watched g_watched[2];  // of host memory, of GPUs
std::unordered_map<void*, std::size_t> g_sizes;  // of what was allocated since echo_storage_watch

void watch_alloc(const RawHandle& handle) {
  if (!g_watching || !handle.data) return;
  g_sizes[handle.data] = handle.size;
  Watched& watched = g_watched[handle.device_type == kGpu];
  watched.now += static_cast<std::int64_t>(handle.size);
  watched.most = std::max(watched.most, watched.now);
}

void watch_free(const RawHandle& handle) {
  const auto found = g_sizes.find(handle.data);
  if (found == g_sizes.end()) return;
  g_watched[handle.device_type == kGpu].now -= static_cast<std::int64_t>(found->second);
  g_sizes.erase(found);
}

bool is_counted(const RawHandle& handle) {
  return g_open && handle.device_type == g_type && handle.device_id == g_device && handle.data;
}

void* own(Slot slot) { return g_own[slot - 2]; }

void counting_alloc(void* self, RawHandle* handle) {
  reinterpret_cast<Alloc>(own(kAlloc))(self, handle);
  std::lock_guard<std::mutex> lock(g_mutex);
  watch_alloc(*handle);
  if (!is_counted(*handle)) return;
  g_alive[handle->data] = g_blocks.size();
  g_events.emplace_back(g_blocks.size(), true);
  g_blocks.push_back({static_cast<std::int64_t>(handle->size)});
}

void freed(const RawHandle& handle, bool counts) {
  std::lock_guard<std::mutex> lock(g_mutex);
  watch_free(handle);
  const auto found = g_alive.find(handle.data);
  if (!is_counted(handle) || found == g_alive.end()) return;
  g_blocks[found->second].counts = counts;
  g_events.emplace_back(found->second, false);
  g_alive.erase(found);
}

// Both note it before it is done: afterwards another thread may be given the same address.
void counting_free(void* self, RawHandle handle) {
  freed(handle, true);
  reinterpret_cast<Free>(own(kFree))(self, handle);
}

void counting_direct_free(void* self, RawHandle handle) {
  freed(handle, false);
  reinterpret_cast<Free>(own(kDirectFree))(self, handle);
}

std::int64_t most() {
  std::int64_t held = 0, found = 0;
  for (const auto& [block, is_new] : g_events) {
    if (g_blocks[block].counts) held += is_new ? g_blocks[block].size : -g_blocks[block].size;
    found = std::max(found, held);
  }
  return found;
}

void** counting() { return g_counting + 2; }

// Puts our table instead of MXNet's; false where a table that is not ours is there.
bool count() {
  if (!g_storage || (*g_storage != g_own && *g_storage != counting())) return false;
  __atomic_store_n(g_storage, counting(), __ATOMIC_SEQ_CST);
  return true;
}

// Puts MXNet's table back where nothing is counted any more; one around ours stays where it is.
void uncount() {
  if (g_open || g_watching) return;
  void** ours = counting();
  __atomic_compare_exchange_n(g_storage, &ours, g_own, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

bool is_at(void* lib, const char* symbol, void* function) { return function && dlsym(lib, symbol) == function; }

}  // namespace

// Finds the storage of the loaded libmxnet.so at `path`. 0 on success; 1 where it is not laid out as expected.
ECHO_EXPORT int echo_held_install(const char* path) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_storage) return 0;
  void* lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (!lib) return 1;
  const auto get = reinterpret_cast<void*** (*)()>(dlsym(lib, "_ZN5mxnet7Storage3GetEv"));
  if (!get) return 1;
  g_own = *get();
  if (!is_at(lib, "_ZN5mxnet11StorageImpl5AllocEPNS_7Storage6HandleE", own(kAlloc)) ||
      !is_at(lib, "_ZN5mxnet11StorageImpl4FreeENS_7Storage6HandleE", own(kFree)) ||
      !is_at(lib, "_ZN5mxnet11StorageImpl10DirectFreeENS_7Storage6HandleE", own(kDirectFree)))
    return 1;
  std::copy(g_own - 2, g_own - 2 + kSlots, g_counting);
  g_counting[kAlloc] = reinterpret_cast<void*>(counting_alloc);
  g_counting[kFree] = reinterpret_cast<void*>(counting_free);
  g_counting[kDirectFree] = reinterpret_cast<void*>(counting_direct_free);
  g_storage = get();
  return 0;
}

// From here to echo_held_end, what all threads hold on this device is counted. 1 where something is counted already.
ECHO_EXPORT int echo_held_begin(std::int32_t device_type, std::int32_t device_id) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_open || !count()) return 1;
  g_type = device_type;
  g_device = device_id;
  g_open = true;
  return 0;
}

// How many blocks were allocated since echo_held_begin and are not freed yet.
ECHO_EXPORT std::size_t echo_held_alive() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return g_alive.size();
}

// The most bytes that were held at once, of what was allocated since echo_held_begin and is freed by now.
ECHO_EXPORT std::int64_t echo_held_end() {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!g_open) return 0;
  const std::int64_t found = most();
  g_open = false;
  uncount();
  g_alive.clear();
  g_blocks = {};
  g_events = {};
  return found;
}

// From here to echo_storage_unwatch, the bytes alive of what is allocated are watched. 1 where that is not possible.
ECHO_EXPORT int echo_storage_watch() {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_watching || !count()) return 1;
  g_watching = true;
  return 0;
}

// The most bytes that were alive at once since the last call, on GPUs (1) or in the host's memory (0).
ECHO_EXPORT std::int64_t echo_storage_most(int on_gpus) {
  std::lock_guard<std::mutex> lock(g_mutex);
  Watched& watched = g_watched[on_gpus != 0];
  const std::int64_t found = watched.most;
  watched.most = watched.now;
  return found;
}

// Ends what echo_storage_watch began.
ECHO_EXPORT void echo_storage_unwatch() {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!g_watching) return;
  g_watching = false;
  uncount();
  g_sizes.clear();
  g_watched[0] = g_watched[1] = {};
}
