// Where the kernels of a call go: a stream of the device that holds the call's arrays, and the call's workspace. The
// same code that enqueues a call also measures its workspace: then there is no device, and nothing is launched.
#ifndef ECHO_KERNELS_CUDA_QUEUE_H_
#define ECHO_KERNELS_CUDA_QUEUE_H_
#include <cstdint>
#include <string>

#include "arguments.h"
#include "driver.h"
#include "echo_kernels.h"

namespace echo_cuda {

struct Device;  // a context, and what was loaded into it

struct Grid {
  int64_t x = 1, y = 1;
  unsigned block_x = kThreads, block_y = 1;
  size_t shared_bytes = 0;
};

class Queue {
 public:
  // Measures.
  Queue() {}
  // Enters the context of the call's arrays, which the destructor leaves. Throws DeviceError.
  explicit Queue(const EchoCall& call);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  bool measures() const { return device_ == nullptr; }
  int multiprocessors() const;

  // Room in the workspace, on a boundary of 256 bytes; null while measuring.
  void* room(int64_t bytes);
  float* floats(int64_t count) { return static_cast<float*>(room(count * 4)); }
  size_t bytes() const { return used_; }

  // Arguments: a struct of arguments.h.
  template <typename Arguments>
  void launch(const std::string& kernel, bool half, const Grid& grid, const Arguments& arguments) {
    if (!measures()) enqueue(kernel, half, grid, &arguments, false);
  }
  // All blocks at once; only where `fits_at_once`.
  template <typename Arguments>
  void launch_at_once(const std::string& kernel, bool half, const Grid& grid, const Arguments& arguments) {
    if (!measures()) enqueue(kernel, half, grid, &arguments, true);
  }
  bool fits_at_once(const std::string& kernel, bool half, const Grid& grid) const;
  void set_zero(void* to, int64_t bytes);
  void copy(void* to, const void* from, int64_t bytes);

 private:
  void enqueue(const std::string& kernel, bool half, const Grid& grid, const void* arguments, bool at_once);

  Device* device_ = nullptr;
  Context before_ = nullptr;
  bool entered_ = false;
  Stream stream_ = nullptr;
  char* workspace_ = nullptr;
  size_t used_ = 0;
};

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_QUEUE_H_
