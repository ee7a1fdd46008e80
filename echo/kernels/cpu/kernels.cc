// The C interface on the CPU: checks a call, finds the kernel, runs it.
#include "kernels.h"

#include <cstring>

#include "echo_kernels.h"
#include "float_mode.h"
#include "level.h"

namespace echo {
namespace kernels {
namespace {

const CpuKernel* g_first = nullptr;  // a list, which is there before any constructor runs

const CpuKernel& kernel_of(const Call& call) {
  for (const CpuKernel* kernel = g_first; kernel; kernel = kernel->next) {
    if (std::strcmp(kernel->name, call.name()) == 0) return *kernel;
  }
  throw WrongCall(std::string(call.name()) + ": this kernel does not exist on the CPU");
}

void run(const EchoCall& raw) {
  const Call call(raw, true);
  const CpuKernel& kernel = kernel_of(call);
  if (call.zero_gradient()) return call.write_zeros();
  call.require_workspace(kernel.workspace(call));
  const FloatModeScope scope(float_mode() | (kernel.subnormals == Subnormals::kZero ? kSubnormalsAreZero : 0));
  kernel.run(call);
}

}  // namespace

CpuKernel::CpuKernel(const char* name, Run run, Workspace workspace, Subnormals subnormals) noexcept
    : name(name), run(run), workspace(workspace), subnormals(subnormals), next(g_first) {
  g_first = this;
}

}  // namespace kernels
}  // namespace echo

int echo_cpu_call(const EchoCall* call) {
  return echo::kernels::guard([call] { echo::kernels::run(*call); });
}

const char* echo_kernels_level() { return echo::kernels::level_name(echo::kernels::level()); }

size_t echo_cpu_workspace(const EchoCall* call) {
  size_t bytes = 0;
  const int failed = echo::kernels::guard([call, &bytes] {
    const echo::kernels::Call checked(*call, false);
    bytes = echo::kernels::kernel_of(checked).workspace(checked);
  });
  return failed ? SIZE_MAX : bytes;
}
