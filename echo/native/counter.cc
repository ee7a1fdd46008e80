// Preloaded into a process, counts the bytes of all blocks from posix_memalign that are not freed: the storage of MXNet on
// the CPU, and what oneDNN allocates alongside it. Objects of Python and of the standard library come from elsewhere. Pages
// of a block that nothing has written to take no memory, and are counted, too: when the block is freed, or asked for.
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

// NOLINTBEGIN(bugprone-reserved-identifier): the names that glibc gives them
extern "C" void* __libc_memalign(std::size_t alignment, std::size_t size);
extern "C" void __libc_free(void* block);
// NOLINTEND(bugprone-reserved-identifier)

namespace {

constexpr std::uintptr_t kLeastAlignment = 64;  // blocks of less are none of MXNet's storage

thread_local bool t_inside = false;  // what the table itself frees is none of these blocks

struct Block {
  std::size_t size;
  std::size_t change;  // where it is allocated, in `Table::changes`
};

struct Table {
  std::mutex mutex;
  std::unordered_map<void*, Block> blocks;
  std::int64_t now = 0, peak = 0;
  std::vector<std::int64_t> changes;  // of the bytes written to; that of an allocation is known when the block is freed
};

Table& table() {
  static Table* the_table = new Table;  // it outlives the process's last free
  return *the_table;
}

// A child that is forked while another thread is here finds the mutex free.
void lock_table() { table().mutex.lock(); }
void unlock_table() { table().mutex.unlock(); }
[[maybe_unused]] const int g_at_fork = pthread_atfork(lock_table, unlock_table, unlock_table);

// Bytes of a block, without those of pages that the system has not given any memory.
std::int64_t written_of(const void* block, std::size_t size) {
  constexpr std::uintptr_t kPage = 4096, kPages = 4096;
  unsigned char resident[kPages];
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(block);
  const std::uintptr_t end = (start + size) / kPage * kPage;
  std::int64_t bytes = size;
  for (std::uintptr_t at = (start + kPage - 1) / kPage * kPage; at < end;) {
    const std::uintptr_t length = std::min(end - at, kPages * kPage);
    if (mincore(reinterpret_cast<void*>(at), length, resident)) return bytes;
    bytes -= kPage * std::count_if(resident, resident + length / kPage, [](unsigned char page) { return !(page & 1); });
    at += length;
  }
  return bytes;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int posix_memalign(void** block, std::size_t alignment, std::size_t size) {
  if (alignment % sizeof(void*) || !alignment || (alignment & (alignment - 1))) return EINVAL;
  *block = __libc_memalign(alignment, size);
  if (!*block) return ENOMEM;
  if (alignment < kLeastAlignment) return 0;
  t_inside = true;
  {
    std::lock_guard<std::mutex> lock(table().mutex);
    table().blocks[*block] = {size, table().changes.size()};
    table().changes.push_back(0);
    table().now += size;
    table().peak = std::max(table().peak, table().now);
  }
  t_inside = false;
  return 0;
}

EXPORTED void free(void* block) {
  if (block && !t_inside && reinterpret_cast<std::uintptr_t>(block) % kLeastAlignment == 0) {
    t_inside = true;
    {
      std::lock_guard<std::mutex> lock(table().mutex);
      const auto found = table().blocks.find(block);
      if (found != table().blocks.end()) {
        const auto [size, change] = found->second;
        const std::int64_t written = written_of(block, size);
        table().now -= size;
        table().changes[change] = written;
        table().changes.push_back(-written);
        table().blocks.erase(found);
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

// The most bytes that were written to at once, of blocks that lived at the same time.
EXPORTED std::int64_t echo_written_peak() {
  std::lock_guard<std::mutex> lock(table().mutex);
  std::int64_t now = 0, peak = 0;
  for (const auto& [block, is] : table().blocks) table().changes[is.change] = written_of(block, is.size);
  for (const std::int64_t change : table().changes) peak = std::max(peak, now += change);
  return peak;
}

// From now on the peaks are counted again.
EXPORTED void echo_allocated_reset() {
  t_inside = true;
  {
    std::lock_guard<std::mutex> lock(table().mutex);
    table().peak = table().now;
    table().changes.clear();
    for (auto& [block, is] : table().blocks) {
      is.change = table().changes.size();
      table().changes.push_back(0);
    }
  }
  t_inside = false;
}
