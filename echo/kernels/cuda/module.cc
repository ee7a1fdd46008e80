#include "module.h"

#include <algorithm>
#include <map>
#include <memory>

#include "texts.h"

namespace echo_cuda {
namespace {

const size_t kSharedBytesOfAll = 48 << 10;  // what every kernel may use without asking

int attribute(int which, DeviceNumber number) {
  int value = 0;
  driver().check(driver().device_attribute(&value, which, number), "asking a device for an attribute");
  return value;
}

// Never unloaded: contexts live until the process ends.
Function load(const std::string& name) {
  char log[2048] = "";
  int options[] = {kJitErrorLog, kJitErrorLogBytes};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  ModuleHandle module = nullptr;
  const Result result = driver().module_load(&module, text_of(name).c_str(), 2, options, values);
  if (result == kErrorUnsupportedPtx || result == kErrorInvalidPtx) {
    int version = 0;
    driver().version(&version);
    throw DeviceError("the NVIDIA driver supports CUDA " + std::to_string(version / 1000) + "." +
                      std::to_string(version % 1000 / 10) +
                      " and refuses the kernels, which need 9.0 or later: " + log);
  }
  driver().check(result, ("loading " + name).c_str());
  Function function = nullptr;
  driver().check(driver().module_function(&function, module, name.c_str()), name.c_str());
  return function;
}

// The device of the current context.
Device* current_device(Context context, DeviceNumber number) {
  static std::mutex mutex;
  static std::map<Context, std::unique_ptr<Device>>& devices = *new std::map<Context, std::unique_ptr<Device>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Device>& found = devices[context];
  if (found == nullptr) found.reset(new Device(number));
  return found.get();
}

// Opening a device may take long, so two threads may both do it: they get the same context.
Context primary_context(DeviceNumber number) {
  static std::mutex mutex;
  static std::map<DeviceNumber, Context>& contexts = *new std::map<DeviceNumber, Context>;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = contexts.find(number);
    if (found != contexts.end()) return found->second;
  }
  Context opened = nullptr;
  driver().check(driver().primary_retain(&opened, number), "opening a device");
  const std::lock_guard<std::mutex> lock(mutex);
  return contexts.emplace(number, opened).first->second;
}

}  // namespace

Device::Device(DeviceNumber number)
    : number(number),
      multiprocessors(attribute(kMultiprocessors, number)),
      most_shared_bytes(attribute(kMostSharedBytes, number)),
      launches_at_once(driver().launch_cooperative != nullptr && attribute(kCooperativeLaunch, number) != 0) {}

Device::Slot& Device::slot(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return slots_[name];
}

// A kernel may use all shared memory of the device from when it is found on. All threads share the function: were its
// attribute set before each launch, another thread's launch of more bytes could come in between, and would fail.
Kernel Device::kernel(const std::string& name) {
  Slot& found = slot(name);
  const std::lock_guard<std::mutex> lock(found.mutex);
  if (found.kernel.function != nullptr) return found.kernel;
  Kernel made;
  made.function = load(name);
  int fixed = 0;  // bytes of the arrays that the kernel declares itself
  driver().check(driver().function_get(&fixed, kFunctionFixedSharedBytes, made.function), name.c_str());
  const int most = most_shared_bytes - fixed;
  if (most > 0 && driver().function_set != nullptr &&
      driver().function_set(made.function, kFunctionSharedBytes, most) == kSuccess) {
    made.most_shared_bytes = static_cast<size_t>(most);
  } else {
    made.most_shared_bytes = kSharedBytesOfAll - std::min(kSharedBytesOfAll, static_cast<size_t>(fixed));
  }
  return found.kernel = made;
}

Entered::Entered(DeviceNumber number) {
  driver().check(driver().context_get(&before_), "asking for the context");
  DeviceNumber current = -1;
  if (before_ != nullptr) driver().check(driver().context_device(&current), "asking for the context's device");
  Context context = before_;
  if (current != number) {
    context = primary_context(number);
    driver().check(driver().context_set(context), "entering a context");
    leave_ = before_ != nullptr;  // a thread that had none keeps it
  }
  try {
    device_ = current_device(context, number);
  } catch (...) {
    if (leave_) driver().context_set(before_);
    throw;
  }
}

Entered::~Entered() {
  if (leave_) driver().context_set(before_);
}

Entered::Entered(Entered&& other) noexcept : device_(other.device_), before_(other.before_), leave_(other.leave_) {
  other.leave_ = false;
}

}  // namespace echo_cuda
