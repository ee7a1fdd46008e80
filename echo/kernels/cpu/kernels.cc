// The C interface on the CPU: checks a call, finds the kernel, runs it.
#include <cstring>

#include "check.h"
#include "echo_kernels.h"

namespace echo {
namespace kernels {
namespace {

struct Entry {
  const char* name;
  void (*run)(const Call&);
  size_t (*workspace)(const Call&);
};

size_t no_workspace(const Call&) { return 0; }

const Entry kEntries[] = {
    {nullptr, nullptr, no_workspace},
};

const Entry& entry_of(const Call& call) {
  for (const Entry& entry : kEntries) {
    if (entry.name != nullptr && std::strcmp(entry.name, call.name()) == 0) return entry;
  }
  throw WrongCall(std::string(call.name()) + ": this kernel does not exist on the CPU");
}

void run(const EchoCall& raw) {
  const Call call(raw, true);
  const Entry& entry = entry_of(call);
  if (call.zero_gradient()) return call.write_zeros();
  const size_t bytes = entry.workspace(call);
  if (bytes > 0 && (raw.workspace == nullptr || raw.workspace_bytes < bytes)) {
    throw WrongCall(std::string(call.name()) + ": expected a workspace of " + std::to_string(bytes) + " bytes, got " +
                    (raw.workspace == nullptr ? "none" : std::to_string(raw.workspace_bytes)));
  }
  if (bytes > 0 && reinterpret_cast<uintptr_t>(raw.workspace) % 64 != 0) {
    throw WrongCall(std::string(call.name()) + ": the workspace is not aligned to 64 bytes");
  }
  entry.run(call);
}

}  // namespace
}  // namespace kernels
}  // namespace echo

int echo_cpu_call(const EchoCall* call) {
  return echo::kernels::guard([call] { echo::kernels::run(*call); });
}

size_t echo_cpu_workspace(const EchoCall* call) {
  size_t bytes = 0;
  const int failed = echo::kernels::guard([call, &bytes] {
    const echo::kernels::Call checked(*call, false);
    bytes = echo::kernels::entry_of(checked).workspace(checked);
  });
  return failed ? SIZE_MAX : bytes;
}
