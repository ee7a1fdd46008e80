// Preloaded into a process, counts the bytes of all blocks from posix_memalign that are not freed: the storage of MXNet on
// the CPU, and what oneDNN allocates beside it. Objects of Python and of the standard library come from elsewhere.
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

// NOLINTBEGIN(bugprone-reserved-identifier): the names that glibc gives them
extern "C" void* __libc_memalign(std::size_t alignment, std::size_t size);
extern "C" void __libc_free(void* block);
// NOLINTEND(bugprone-reserved-identifier)

namespace {

thread_local bool t_inside = false;  // what the table itself frees is none of these blocks

struct Table {
  std::mutex mutex;
  std::unordered_map<void*, std::size_t> sizes;
  std::int64_t now = 0, peak = 0;
};

Table& table() {
  static Table* the_table = new Table;  // it outlives the process's last free
  return *the_table;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int posix_memalign(void** block, std::size_t alignment, std::size_t size) {
  *block = __libc_memalign(alignment, size);
  if (!*block) return ENOMEM;
  t_inside = true;
  {
    std::lock_guard<std::mutex> lock(table().mutex);
    table().sizes[*block] = size;
    table().now += size;
    if (table().now > table().peak) table().peak = table().now;
  }
  t_inside = false;
  return 0;
}

EXPORTED void free(void* block) {
  constexpr std::uintptr_t kLeastAlignment = 64;
  if (block && !t_inside && reinterpret_cast<std::uintptr_t>(block) % kLeastAlignment == 0) {
    t_inside = true;
    {
      std::lock_guard<std::mutex> lock(table().mutex);
      const auto found = table().sizes.find(block);
      if (found != table().sizes.end()) {
        table().now -= found->second;
        table().sizes.erase(found);
      }
    }
    t_inside = false;
  }
  __libc_free(block);
}

EXPORTED std::int64_t echo_allocated_now() {
  std::lock_guard<std::mutex> lock(table().mutex);
  return table().now;
}

EXPORTED std::int64_t echo_allocated_peak() {
  std::lock_guard<std::mutex> lock(table().mutex);
  return table().peak;
}

// From now on the peak is counted anew.
EXPORTED void echo_allocated_reset() {
  std::lock_guard<std::mutex> lock(table().mutex);
  table().peak = table().now;
}
