// Kernels on a device: each is loaded when it is first asked for, once a context.
#ifndef ECHO_KERNELS_CUDA_MODULE_H_
#define ECHO_KERNELS_CUDA_MODULE_H_
#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>

#include "blas.h"
#include "driver.h"

namespace echo_cuda {

struct Kernel {
  Function function = nullptr;
  size_t most_shared_bytes = 0;  // dynamic, that a launch may ask for
};

// A context, and what was loaded into it. The driver compiles what it loads, which takes a kernel's share of seconds: only
// those wait for it who ask for the same kernel on the same device.
struct Device {
  explicit Device(DeviceNumber number);

  const DeviceNumber number;
  const int multiprocessors, most_shared_bytes;
  std::atomic<bool> launches_at_once;  // until a launch of that kind is refused
  Blas blas;

  // Throws DeviceError; the next call tries again.
  Kernel kernel(const std::string& name);

 private:
  struct Slot {
    std::mutex mutex;
    Kernel kernel;  // no function: not loaded yet
  };
  Slot& slot(const std::string& name);

  std::mutex mutex_;  // of the slots' table, not of what is in them
  std::unordered_map<std::string, Slot> slots_;
};

// Makes a device's context current, that of the framework where the thread has one, until it is destroyed.
class Entered {
 public:
  Entered() {}  // none
  // Throws DeviceError.
  explicit Entered(DeviceNumber number);
  ~Entered();
  Entered(Entered&& other) noexcept;
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

  Device* device() const { return device_; }

 private:
  Device* device_ = nullptr;
  Context before_ = nullptr;
  bool leave_ = false;
};

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_MODULE_H_
