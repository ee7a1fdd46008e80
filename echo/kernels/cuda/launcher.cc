// The C interface on CUDA devices: checks a call, finds its plan, enqueues it.
#include <cstring>

#include "nvrtc.h"
#include "plans.h"
#include "sources.h"
#include "texts.h"

namespace echo_cuda {
namespace {

const CudaKernel* g_first = nullptr;  // a list, which is there before any constructor runs

const CudaKernel& kernel_of(const Call& call) {
  for (const CudaKernel* kernel = g_first; kernel; kernel = kernel->next) {
    if (std::strcmp(kernel->name, call.name()) == 0) return *kernel;
  }
  throw echo::kernels::WrongCall(std::string(call.name()) + ": this kernel does not exist on CUDA");
}

size_t workspace_bytes(const Call& call) {
  Queue measure;
  kernel_of(call).plan(call, measure);
  return measure.bytes();
}

void run(const EchoCall& raw) {
  const Call call(raw, true);
  const CudaKernel& kernel = kernel_of(call);
  const bool zeros = call.zero_gradient();
  if (!zeros) call.require_workspace(workspace_bytes(call));
  Queue queue(raw);
  if (!zeros) return kernel.plan(call, queue);
  for (int i = 0; i < raw.num_out; ++i) {
    const EchoTensor& tensor = raw.out[i];
    if (raw.req[i] != ECHO_WRITE || tensor.data == nullptr) continue;
    queue.set_zero(tensor.data, echo::kernels::element_count(tensor) * echo::kernels::dtype_bytes(tensor.dtype));
  }
}

// Both kinds of launches, of the kernel that the driver compiles fastest, with nothing to do.
void try_device(int number) {
  const char* const kernel = "sum_rows";
  Queue queue(number);
  queue.launch(kernel, false, Grid(), SumRows());
  if (queue.fits_at_once(kernel, false, Grid())) queue.launch_at_once(kernel, false, Grid(), SumRows());
}

}  // namespace

CudaKernel::CudaKernel(const char* name, Plan plan) noexcept : name(name), plan(plan), next(g_first) { g_first = this; }

}  // namespace echo_cuda

int echo_cuda_ready(int device) {
  return echo::kernels::guard([device] { echo_cuda::try_device(device); });
}

const char* echo_cuda_ptx_files() {
  static const std::string& names = *[] {
    auto* made = new std::string;
    for (const std::string& family : echo_cuda::families())
      *made += (made->empty() ? "" : " ") + echo_cuda::file_of(family);
    return made;
  }();
  return names.c_str();
}

void echo_cuda_places(const char* ptx, const char* nvrtc) { echo_cuda::set_places({ptx, nvrtc}); }

int echo_cuda_put_ptx(const char* family, const char* folder) {
  return echo::kernels::guard([family, folder] { echo_cuda::put_ptx(family, folder); });
}

int echo_cuda_call(const EchoCall* call) {
  return echo::kernels::guard([call] { echo_cuda::run(*call); });
}

size_t echo_cuda_workspace(const EchoCall* call) {
  size_t bytes = 0;
  const int failed = echo::kernels::guard(
      [call, &bytes] { bytes = echo_cuda::workspace_bytes(echo::kernels::Call(*call, false)); });
  return failed ? SIZE_MAX : bytes;
}
