// A libcuda.so.1 whose devices are the CPU: kernels are looked up in a library of emulated ones and run at once. Every
// address is memory of device 0 unless a test says otherwise.
#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Place {
  unsigned long long end;
  int memory, device;
};

struct Fake {
  std::map<std::string, int> settings = {
      {"init", 0},        {"devices", 2},       {"version", 12000},      {"module", 0},
      {"cooperative", 1}, {"shared", 99 << 10}, {"multiprocessors", 40}, {"occupancy", 1},
      {"seed", 0},        {"fixed", 0},         {"refused", 0},          {"fails", 0},
  };
  std::map<unsigned long long, Place> places;
  std::string launches;
  std::string loads;     // the kernels of modules, in the order in which they were loaded
  std::vector<void*> libraries;  // of emulated kernels: the last that has one counts
  std::map<void*, void*> owner;  // of a kernel: its library
  std::map<void*, int> most_shared;  // of a kernel, bytes: the attribute, and how often it was set
  std::map<void*, int> times_set;
  bool entered = false;
  void* stream = nullptr;  // of the last launch
  long context = 0;      // of this thread's place: 0 is none, N is device N - 1
  long generation = 0;   // a context of another generation is another context: its kernels are looked up again
};

Fake& fake() {
  static Fake& it = *new Fake;
  return it;
}

// A kernel of which one module is not loaded before the test lets go.
struct Hold {
  std::mutex mutex;
  std::condition_variable changed;
  std::string kernel;
  bool holds = false;
};

Hold& hold() {
  static Hold& it = *new Hold;
  return it;
}

int setting(const char* name) { return fake().settings.at(name); }

const int kNotFound = 500, kInvalid = 1, kFailed = 719, kTimeout = 909;
const std::chrono::seconds kLongest(60);  // that a module is held

int most_shared(void* function) {
  const auto found = fake().most_shared.find(function);
  return found == fake().most_shared.end() ? 48 << 10 : found->second;
}

typedef int (*Runner)(void*, void* const*, const unsigned*, const unsigned*, size_t, int, unsigned);

int launch(void* function, const unsigned* grid, const unsigned* block, unsigned shared, void** arguments,
           int at_once) {
  const Runner runner = reinterpret_cast<Runner>(dlsym(fake().owner.at(function), "emulation_run"));
  if (runner == nullptr) return kNotFound;
  if (grid[0] == 0 || grid[1] == 0 || grid[1] > 65535 || block[0] * block[1] > 1024) return kInvalid;
  if (shared > static_cast<unsigned>(most_shared(function))) return kInvalid;
  const unsigned seed = static_cast<unsigned>(fake().settings["seed"]++);
  return runner(function, arguments, grid, block, shared, at_once, seed) == 0 ? 0 : kFailed;
}

}  // namespace

// For the tests.
EXPORT int fake_was_entered() { return std::exchange(fake().entered, false); }  // since this was asked
EXPORT void fake_set(const char* name, int value) { fake().settings.at(name) = value; }
EXPORT void fake_context(long number) { fake().context = number; }
EXPORT long fake_current_context() { return fake().context; }
EXPORT void fake_place(unsigned long long start, unsigned long long bytes, int memory, int device) {
  fake().places[start] = {start + bytes, memory, device};
}
EXPORT void fake_forget_places() { fake().places.clear(); }
// Contexts from now on are others than before: devices are asked for their attributes again.
EXPORT void fake_new_contexts() {
  fake().context = 1;  // that of device 0
  fake().most_shared.clear();
  fake().times_set.clear();
  fake().loads.clear();
  ++fake().generation;
}
// How often the attribute of one kernel was set, at most.
EXPORT int fake_times_set() {
  int most = 0;
  for (const auto& [function, times] : fake().times_set) most = times > most ? times : most;
  return most;
}
EXPORT const char* fake_launches() { return fake().launches.c_str(); }
EXPORT void* fake_stream() { return fake().stream; }
EXPORT void fake_forget_launches() { fake().launches.clear(); }
// Adds a library of kernels, in front of those before it.
EXPORT int fake_kernels(const char* path) {
  void* const opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (opened != nullptr) fake().libraries.push_back(opened);
  fake_new_contexts();
  return opened == nullptr;
}

// The kernels that were loaded since the contexts are new, each after a space.
EXPORT const char* fake_loads() { return fake().loads.c_str(); }
// The next module of this kernel is held; none where it is empty, and what was held goes on.
EXPORT void fake_hold(const char* kernel) {
  const std::lock_guard<std::mutex> lock(hold().mutex);
  hold().kernel = kernel;
  hold().changed.notify_all();
}
// Waits until a module is held: whether one is.
EXPORT int fake_holds() {
  std::unique_lock<std::mutex> lock(hold().mutex);
  return hold().changed.wait_for(lock, kLongest, [] { return hold().holds; });
}

EXPORT int cuInit(unsigned) { return setting("init"); }
EXPORT int cuDriverGetVersion(int* to) { return *to = setting("version"), 0; }
EXPORT int cuGetErrorName(int error, const char** to) {
  return *to = error == kFailed ? "FAKE_FAILED" : "FAKE_ERROR", 0;
}
EXPORT int cuGetErrorString(int, const char** to) { return *to = "made up", 0; }
EXPORT int cuDeviceGetCount(int* to) { return *to = setting("devices"), 0; }
EXPORT int cuDeviceGetAttribute(int* to, int which, int) {
  switch (which) {
    case 16: return *to = setting("multiprocessors"), 0;
    case 95: return *to = setting("cooperative"), 0;
    case 97: return *to = setting("shared"), 0;
    default: return kInvalid;
  }
}
EXPORT int cuCtxGetCurrent(long* to) {
  fake().entered = true;
  return *to = fake().context ? fake().context + 100 * fake().generation : 0, 0;
}
EXPORT int cuCtxSetCurrent(long context) { return fake().context = context % 100, 0; }
EXPORT int cuCtxGetDevice(int* to) { return *to = static_cast<int>(fake().context - 1), 0; }
EXPORT int cuDevicePrimaryCtxRetain(long* to, int number) {
  if (number >= setting("devices")) return kInvalid;
  return *to = number + 1 + 100 * fake().generation, 0;
}
EXPORT int cuPointerGetAttribute(void* to, int which, unsigned long long address) {
  Place place = {~0ull, 2, 0};
  const auto after = fake().places.upper_bound(address);
  if (after != fake().places.begin() && address < std::prev(after)->second.end) place = std::prev(after)->second;
  if (place.memory == 0) return kInvalid;  // as the driver answers for memory that it does not know
  return *static_cast<int*>(to) = which == 2 ? place.memory : place.device, 0;
}
// A module has one kernel, whose name is the handle.
EXPORT int cuModuleLoadDataEx(std::string** to, const char* image, unsigned, int*, void** values) {
  const std::string text(image), entry = ".visible .entry ";
  const size_t at = text.find(entry), name = at + entry.size();
  if (at == std::string::npos || text.find(entry, name) != std::string::npos) return kInvalid;
  std::strcpy(static_cast<char*>(values[0]), "the compiler's log");
  *to = new std::string(text.substr(name, text.find('(', name) - name));
  std::unique_lock<std::mutex> lock(hold().mutex);
  if (hold().kernel == **to && !hold().holds) {
    hold().holds = true;
    hold().changed.notify_all();
    if (!hold().changed.wait_for(lock, kLongest, [] { return hold().kernel.empty(); })) return kTimeout;
    hold().holds = false;
  }
  fake().loads += " " + **to;
  return setting("module");
}
EXPORT int cuModuleGetFunction(void** to, const std::string* module, const char* name) {
  const std::string symbol = std::string("emulate_") + name;
  *to = nullptr;
  for (auto library = fake().libraries.rbegin(); library != fake().libraries.rend() && *to == nullptr; ++library) {
    *to = dlsym(*library, symbol.c_str());
    if (*to != nullptr) fake().owner[*to] = *library;
  }
  return *to == nullptr || *module != name ? kNotFound : 0;
}
EXPORT int cuFuncGetAttribute(int* to, int which, void*) { return which == 1 ? *to = setting("fixed"), 0 : kInvalid; }
EXPORT int cuFuncSetAttribute(void* function, int which, int bytes) {
  if (which != 8 || bytes > setting("shared") - setting("fixed")) return kInvalid;
  ++fake().times_set[function];
  return fake().most_shared[function] = bytes, 0;
}
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* to, void* function, int, size_t bytes) {
  return bytes > static_cast<size_t>(most_shared(function)) ? kInvalid : (*to = setting("occupancy"), 0);
}
EXPORT int cuLaunchKernel(void* f, unsigned x, unsigned y, unsigned, unsigned bx, unsigned by, unsigned,
                          unsigned shared, void* stream, void** arguments, void**) {
  const unsigned grid[] = {x, y}, block[] = {bx, by};
  fake().stream = stream;
  if (setting("fails")) return setting("fails");
  fake().launches += 'k';
  return launch(f, grid, block, shared, arguments, 0);
}
EXPORT int cuLaunchCooperativeKernel(void* f, unsigned x, unsigned y, unsigned, unsigned bx, unsigned by, unsigned,
                                     unsigned shared, void* stream, void** arguments) {
  const unsigned grid[] = {x, y}, block[] = {bx, by};
  fake().stream = stream;
  if (setting("refused")) return setting("refused");
  fake().launches += 'c';
  return launch(f, grid, block, shared, arguments, 1);
}
EXPORT int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void*) {
  return std::memset(reinterpret_cast<void*>(to), value, bytes), 0;
}
EXPORT int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void*) {
  return std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), 0;
}
