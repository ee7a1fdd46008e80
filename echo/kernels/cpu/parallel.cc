#include "parallel.h"

#include <unistd.h>

namespace echo {
namespace kernels {
namespace {

const pid_t loaded_by = getpid();

}  // namespace

bool threads_work() { return getpid() == loaded_by; }

}  // namespace kernels
}  // namespace echo
