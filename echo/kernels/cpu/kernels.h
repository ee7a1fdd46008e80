// The kernels on the CPU. Each makes itself known at the end of its file; table.cc says what it computes.
#ifndef ECHO_KERNELS_CPU_KERNELS_H_
#define ECHO_KERNELS_CPU_KERNELS_H_
#include <cstddef>

#include "check.h"

namespace echo {
namespace kernels {

inline size_t no_workspace(const Call&) { return 0; }

// Whether a kernel takes subnormal numbers for zero. Masks and what is element by element keep them, as MXNet does.
enum class Subnormals { kZero, kKept };

// A kernel of the C interface: a constant of this type is all that it takes to be found. `workspace` gives the bytes
// that it needs.
struct CpuKernel {
  using Run = void (*)(const Call&);
  using Workspace = size_t (*)(const Call&);

  CpuKernel(const char* name, Run run, Workspace workspace = no_workspace,
            Subnormals subnormals = Subnormals::kZero) noexcept;

  const char* const name;
  const Run run;
  const Workspace workspace;
  const Subnormals subnormals;
  const CpuKernel* const next;
};

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_KERNELS_H_
