#include "queue.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

// kernels.ptx, which the assembler put into this library; it ends in a zero.
extern "C" const char echo_kernels_ptx[];

namespace echo_cuda {

struct Device {
  int multiprocessors = 0, most_shared_bytes = 0;
  bool launches_at_once = false;
  ModuleHandle module = nullptr;
  std::mutex mutex;
  std::unordered_map<std::string, Function> functions;

  Function function(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex);
    Function& found = functions[name];
    if (found == nullptr) {
      driver().check(driver().module_function(&found, module, name.c_str()), name.c_str());
    }
    return found;
  }
};

namespace {

const int64_t kMostBlocks = 65535;  // of the second axis; grids are walked in strides, so fewer do as well
const int64_t kMostBlocksX = int64_t{1} << 20;

int attribute(int which, DeviceNumber number) {
  int value = 0;
  driver().check(driver().device_attribute(&value, which, number), "asking a device for an attribute");
  return value;
}

void load(Device* device, DeviceNumber number) {
  char log[2048] = "";
  int options[] = {kJitErrorLog, kJitErrorLogBytes};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  const Result result = driver().module_load(&device->module, echo_kernels_ptx, 2, options, values);
  if (result == kErrorUnsupportedPtx || result == kErrorInvalidPtx) {
    int version = 0;
    driver().version(&version);
    throw DeviceError("the NVIDIA driver supports CUDA " + std::to_string(version / 1000) + "." +
                      std::to_string(version % 1000 / 10) + ", the kernels need 11.8: update it. " + log);
  }
  driver().check(result, "loading the kernels");
  device->multiprocessors = attribute(kMultiprocessors, number);
  device->most_shared_bytes = attribute(kMostSharedBytes, number);
  device->launches_at_once = driver().launch_cooperative != nullptr && attribute(kCooperativeLaunch, number) != 0;
}

// The device of the current context; its kernels are loaded once. Never freed: contexts live until the process ends.
Device* current_device(Context context, DeviceNumber number) {
  static std::mutex mutex;
  static std::map<Context, std::unique_ptr<Device>>& devices = *new std::map<Context, std::unique_ptr<Device>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Device>& found = devices[context];
  if (found == nullptr) {
    std::unique_ptr<Device> made(new Device);
    load(made.get(), number);
    found = std::move(made);
  }
  return found.get();
}

Context primary_context(DeviceNumber number) {
  static std::mutex mutex;
  static std::map<DeviceNumber, Context>& contexts = *new std::map<DeviceNumber, Context>;
  const std::lock_guard<std::mutex> lock(mutex);
  Context& found = contexts[number];
  if (found == nullptr) driver().check(driver().primary_retain(&found, number), "opening a device");
  return found;
}

// The device on which an array lies.
DeviceNumber device_of(const void* data, const std::string& what) {
  const Address address = reinterpret_cast<Address>(data);
  int memory = 0, number = 0;
  if (driver().pointer_attribute(&memory, kPointerMemoryType, address) != kSuccess || memory == kMemoryHost) {
    throw DeviceError(what + " is in the memory of the host, expected that of a CUDA device");
  }
  driver().check(driver().pointer_attribute(&number, kPointerDevice, address), "asking where an array is");
  return number;
}

// The one device of all arrays of a call; -1 where there are none.
DeviceNumber device_of(const EchoCall& call) {
  int found = -1;
  const auto look = [&](const void* data, const std::string& name) {
    if (data == nullptr) return;
    const std::string what = std::string(call.kernel) + ": " + name;
    const DeviceNumber number = device_of(data, what);
    if (found >= 0 && number != found) {
      throw DeviceError(what + " is on device " + std::to_string(number) + ", expected " + std::to_string(found) +
                        " as the arrays before it");
    }
    found = number;
  };
  for (int i = 0; i < call.num_in; ++i) look(call.in[i].data, "input " + std::to_string(i));
  for (int i = 0; i < call.num_out; ++i) {
    if (call.req[i] != ECHO_SKIP) look(call.out[i].data, "output " + std::to_string(i));
  }
  look(call.workspace, "the workspace");
  return found;
}

}  // namespace

Queue::Queue(const EchoCall& call) : stream_(static_cast<Stream>(call.stream)) {
  workspace_ = static_cast<char*>(call.workspace);
  const DeviceNumber number = device_of(call);
  if (number < 0) return;  // no array, no work
  driver().check(driver().context_get(&before_), "asking for the context");
  DeviceNumber current = -1;
  if (before_ != nullptr) driver().check(driver().context_device(&current), "asking for the context's device");
  Context context = before_;
  if (current != number) {
    context = primary_context(number);
    driver().check(driver().context_set(context), "entering a context");
    entered_ = before_ != nullptr;  // a thread that had none keeps it
  }
  try {
    device_ = current_device(context, number);
  } catch (...) {
    if (entered_) driver().context_set(before_);
    throw;
  }
}

Queue::~Queue() {
  if (entered_) driver().context_set(before_);
}

int Queue::multiprocessors() const { return measures() ? 1 : device_->multiprocessors; }

void* Queue::room(int64_t bytes) {
  const size_t start = used_;
  used_ += (static_cast<size_t>(bytes) + 255) / 256 * 256;
  return measures() ? nullptr : workspace_ + start;
}

bool Queue::fits_at_once(const std::string& kernel, bool half, const Grid& grid) const {
  if (measures() || !device_->launches_at_once) return false;
  if (grid.shared_bytes > static_cast<size_t>(device_->most_shared_bytes)) return false;
  const Function function = device_->function(kernel + (half ? "_f16" : "_f32"));
  int blocks = 0;
  const int bytes = static_cast<int>(grid.shared_bytes);
  return driver().function_set(function, kFunctionSharedBytes, bytes) == kSuccess &&
         driver().occupancy(&blocks, function, grid.block_x * grid.block_y, grid.shared_bytes) == kSuccess &&
         grid.x * grid.y <= int64_t{blocks} * device_->multiprocessors;
}

void Queue::enqueue(const std::string& kernel, bool half, const Grid& grid, const void* arguments, bool at_once) {
  if (grid.x <= 0 || grid.y <= 0) return;
  const std::string name = kernel + (half ? "_f16" : "_f32");
  const Function function = device_->function(name);
  const unsigned x = static_cast<unsigned>(std::min(grid.x, kMostBlocksX));
  const unsigned y = static_cast<unsigned>(std::min(grid.y, kMostBlocks));
  const unsigned shared = static_cast<unsigned>(grid.shared_bytes);
  void* parameters[] = {const_cast<void*>(arguments)};
  Result result;
  if (at_once) {
    result = driver().launch_cooperative(function, x, y, 1, grid.block_x, grid.block_y, 1, shared, stream_, parameters);
  } else {
    result = driver().launch(function, x, y, 1, grid.block_x, grid.block_y, 1, shared, stream_, parameters, nullptr);
  }
  driver().check(result, ("launching " + name).c_str());
}

void Queue::set_zero(void* to, int64_t bytes) {
  if (measures() || bytes == 0 || to == nullptr) return;
  driver().check(driver().set_bytes(reinterpret_cast<Address>(to), 0, bytes, stream_), "setting memory to zero");
}

void Queue::copy(void* to, const void* from, int64_t bytes) {
  if (measures() || bytes == 0 || to == nullptr) return;
  const Address target = reinterpret_cast<Address>(to), source = reinterpret_cast<Address>(from);
  driver().check(driver().copy(target, source, bytes, stream_), "copying memory");
}

}  // namespace echo_cuda
