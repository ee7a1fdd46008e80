#include "driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

namespace echo_cuda {
namespace {

template <typename Pointer>
void find(void* library, const char* name, Pointer* to, bool needed = true) {
  *to = reinterpret_cast<Pointer>(dlsym(library, name));
  if (needed && *to == nullptr) {
    throw DeviceError(std::string("the NVIDIA driver (libcuda.so.1) has no ") + name + ": it is too old");
  }
}

Driver open() {
  const char* emulated = std::getenv("_ECHO_CUDA_DRIVER");  // of the tests; the name below may be NVIDIA's already
  void* library = dlopen(emulated != nullptr ? emulated : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw DeviceError(std::string("there is no NVIDIA driver: ") + dlerror());
  Driver d;
  find(library, "cuInit", &d.init);
  find(library, "cuDriverGetVersion", &d.version);
  find(library, "cuGetErrorName", &d.error_name);
  find(library, "cuGetErrorString", &d.error_string);
  find(library, "cuDeviceGetCount", &d.device_count);
  find(library, "cuDeviceGetAttribute", &d.device_attribute);
  find(library, "cuCtxGetCurrent", &d.context_get);
  find(library, "cuCtxSetCurrent", &d.context_set);
  find(library, "cuCtxGetDevice", &d.context_device);
  find(library, "cuDevicePrimaryCtxRetain", &d.primary_retain);
  find(library, "cuPointerGetAttribute", &d.pointer_attribute);
  find(library, "cuModuleLoadDataEx", &d.module_load);
  find(library, "cuModuleGetFunction", &d.module_function);
  find(library, "cuFuncGetAttribute", &d.function_get);
  find(library, "cuFuncSetAttribute", &d.function_set, false);
  find(library, "cuOccupancyMaxActiveBlocksPerMultiprocessor", &d.occupancy);
  find(library, "cuLaunchKernel", &d.launch);
  find(library, "cuLaunchCooperativeKernel", &d.launch_cooperative, false);
  find(library, "cuMemsetD8Async", &d.set_bytes);
  find(library, "cuMemcpyDtoDAsync_v2", &d.copy);
  const Result result = d.init(0);
  int count = 0;
  if (result == kErrorNoDevice || (result == kSuccess && (d.device_count(&count) != kSuccess || count == 0))) {
    throw DeviceError("the NVIDIA driver finds no CUDA device");
  }
  d.check(result, "starting the NVIDIA driver");
  return d;
}

}  // namespace

void Driver::check(Result result, const char* what) const {
  if (result == kSuccess) return;
  const char *name = nullptr, *text = nullptr;
  if (error_name(result, &name) != kSuccess || name == nullptr) name = "an unknown error";
  if (error_string(result, &text) != kSuccess || text == nullptr) text = "no explanation";
  throw DeviceError(std::string(what) + ": " + name + " (" + text + ")");
}

const Driver& driver() {
  static const Driver opened = open();  // tried again by the next call where it throws
  return opened;
}

}  // namespace echo_cuda
