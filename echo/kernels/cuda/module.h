// The kernels of kernels.ptx on a device: loaded once a context, found by name.
#ifndef ECHO_KERNELS_CUDA_MODULE_H_
#define ECHO_KERNELS_CUDA_MODULE_H_
#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>

#include "driver.h"

namespace echo_cuda {

struct Kernel {
  Function function = nullptr;
  size_t most_shared_bytes = 0;  // dynamic, that a launch may ask for
};

// A context, and what was loaded into it.
struct Device {
  DeviceNumber number = 0;
  int multiprocessors = 0, most_shared_bytes = 0;
  std::atomic<bool> launches_at_once{false};  // until a launch of that kind is refused
  ModuleHandle module = nullptr;

  Kernel kernel(const std::string& name);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, Kernel> kernels_;
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
