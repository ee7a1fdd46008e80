#include "finite.h"

#include <algorithm>
#include <atomic>

#include "mxnet_api.h"

namespace echo {
namespace {

constexpr std::size_t kTile = 4096;             // elements between two looks at what other threads found
constexpr std::size_t kWorthThreads = 1 << 17;  // elements

struct Scan {
  const float* values;
  std::size_t size;
  std::atomic<bool> found;
};

void scan_part(Scan* scan, std::size_t part, std::size_t parts) {
  const std::size_t end = scan->size * (part + 1) / parts;
  for (std::size_t tile = scan->size * part / parts; tile < end && !scan->found; tile += kTile) {
    const float* values = scan->values + tile;
    const std::size_t count = std::min(kTile, end - tile);
    std::uint32_t is_found = 0;
    for (std::size_t index = 0; index < count; ++index) is_found |= !is_finite(values + index);
    if (is_found) scan->found = true;
  }
}

void scan_in_thread(void* scan) { scan_part(static_cast<Scan*>(scan), api().thread_number(), api().thread_count()); }

}  // namespace

bool are_finite(const float* values, std::size_t size) {
  Scan scan{values, size, {false}};
  if (size < kWorthThreads || !api().in_threads)
    scan_part(&scan, 0, 1);
  else
    api().in_threads(scan_in_thread, &scan, 0, 0);
  return !scan.found;
}

}  // namespace echo
