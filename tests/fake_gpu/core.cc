#include "core.h"

#include <cstdio>
#include <cstdlib>

namespace fake {

long env(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atol(text) : otherwise;
}

State& state() {
  static State& it = *new State;
  return it;
}

int devices() {
  static const int number = static_cast<int>(env("FAKE_CUDA_DEVICES", 0));
  return number;
}

int arch() {
  static const int number = static_cast<int>(env("FAKE_CUDA_ARCH", 80));
  return number;
}

int& device_of_thread() {
  thread_local int device = 0;
  return device;
}

int& last_error() {
  thread_local int error = 0;
  return error;
}

int fail(int code) { return last_error() = code; }

void count(const std::string& name) {
  std::lock_guard<std::mutex> lock(state().mutex);
  ++state().counts[name];
}

void complain(const std::string& text) {
  std::lock_guard<std::mutex> lock(state().mutex);
  if (state().complaints.size() < 1000) state().complaints.push_back(text);
  std::fprintf(stderr, "fake CUDA device: %s\n", text.c_str());
}

const Block* block_of(const void* address) {
  auto& blocks = state().blocks;
  auto after = blocks.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  if (after == blocks.begin()) return nullptr;
  --after;
  return static_cast<const char*>(address) < after->first + after->second.bytes ? &after->second : nullptr;
}

void check_range(const char* what, const void* address, std::size_t bytes, bool must_be_device) {
  const char* wrong = nullptr;
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    const Block* first = block_of(address);
    const Block* last = bytes ? block_of(static_cast<const char*>(address) + bytes - 1) : first;
    if (first && first != last) wrong = "runs over the end of its block";
    if (!first && must_be_device) wrong = "is not device memory";
  }
  if (wrong) complain(std::string(what) + ": an address " + wrong);
}

void* token() {
  static long next = 0x1000;
  return reinterpret_cast<void*>(__atomic_add_fetch(&next, 16, __ATOMIC_RELAXED));
}

int attribute(int which) {
  switch (which) {
    case 1: return 1024;         // threads of a block
    case 8: return 48 << 10;     // shared memory of a block
    case 10: return 32;          // threads of a warp
    case 16: return 40;          // multiprocessors
    case 39: return 2048;        // threads of a multiprocessor
    case 75: return arch() / 10;
    case 76: return arch() % 10;
    case 81: return 100 << 10;   // shared memory of a multiprocessor
    case 95: return 1;           // cooperative launches
    case 97: return 99 << 10;    // shared memory of a block that asks for more
    default: return 0;
  }
}

int check_launch(const std::string& name, const unsigned* grid, const unsigned* block, std::size_t shared,
                 std::size_t most) {
  const bool wrong = !grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2] || grid[0] > 0x7fffffffu ||
                     grid[1] > 65535 || grid[2] > 65535 || 1ull * block[0] * block[1] * block[2] > 1024 ||
                     block[2] > 64 || shared > most;
  if (!wrong) return 0;
  char text[256];
  std::snprintf(text, sizeof text, ": launch with grid %u,%u,%u block %u,%u,%u and %zu bytes of shared memory", grid[0],
                grid[1], grid[2], block[0], block[1], block[2], shared);
  complain(name + text);
  return kBadConfiguration;
}

}  // namespace fake

// For tests, through ctypes (`device.py`).
API long fake_count(const char* name) {
  std::lock_guard<std::mutex> lock(fake::state().mutex);
  long sum = 0;
  for (const auto& each : fake::state().counts)
    if (each.first.find(name) != std::string::npos) sum += each.second;
  return sum;
}
API void fake_reset() {
  std::lock_guard<std::mutex> lock(fake::state().mutex);
  fake::state().counts.clear();
  fake::state().complaints.clear();
  fake::state().peak = fake::state().used;
}
API std::size_t fake_used() { return fake::state().used; }
API std::size_t fake_peak() { return fake::state().peak; }
API const char* fake_complaints() {
  thread_local std::string text;
  std::lock_guard<std::mutex> lock(fake::state().mutex);
  text.clear();
  for (const auto& each : fake::state().complaints) text += each + "\n";
  return text.c_str();
}

// What generated libraries call for a function that is not written out here: success, or "no device".
API int fake_default(const char* name) {
  if (fake::devices() == 0) return fake::fail(fake::kNoDevice);
  return fake::count(name), 0;
}
// ... and for one that makes a handle: it goes where the first argument says.
API int fake_create(const char* name, void** to) {
  if (fake::devices() == 0) return fake::fail(fake::kNoDevice);
  fake::count(name);
  return *to = fake::token(), 0;
}
