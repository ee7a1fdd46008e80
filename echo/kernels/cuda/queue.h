// Where the kernels of a call go: a stream of the device that holds the call's arrays, and the call's workspace. The
// same code that enqueues a call also measures its workspace: then there is no device, and nothing is launched.
#ifndef ECHO_KERNELS_CUDA_QUEUE_H_
#define ECHO_KERNELS_CUDA_QUEUE_H_
#include <cstdint>
#include <string>

#include "arguments.h"
#include "driver.h"
#include "echo_kernels.h"
#include "module.h"

namespace echo_cuda {

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
  // The same of a device, without a call.
  explicit Queue(DeviceNumber number);
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
    if (!measures()) enqueue_alone(kernel, half, grid, &arguments);
  }
  // All blocks at once; only where `fits_at_once`. False, and nothing was launched, where the device refuses it after all:
  // it is said once, and from then on nothing fits.
  template <typename Arguments>
  bool launch_at_once(const std::string& kernel, bool half, const Grid& grid, const Arguments& arguments) {
    return measures() || enqueue_at_once(kernel, half, grid, &arguments);
  }
  bool fits_at_once(const std::string& kernel, bool half, const Grid& grid) const;
  // A product by cuBLAS, with its biases, by a workspace of kBlasBytes. False, and nothing counts, where it does not take it.
  bool multiply(const GemmKernel& kernel, bool half, const Gemm& g, void* workspace);
  // Whether it takes it, as far as that is known before; never while measuring.
  bool takes(const GemmKernel& kernel, bool half, const Gemm& g) const;
  void set_zero(void* to, int64_t bytes);
  void copy(void* to, const void* from, int64_t bytes);

 private:
  Result enqueue(const std::string& name, const Grid& grid, const void* arguments, bool at_once);
  void enqueue_alone(const std::string& kernel, bool half, const Grid& grid, const void* arguments);
  bool enqueue_at_once(const std::string& kernel, bool half, const Grid& grid, const void* arguments);

  Entered entered_;
  Device* device_ = nullptr;
  Stream stream_ = nullptr;
  char* workspace_ = nullptr;
  size_t used_ = 0;
};

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_QUEUE_H_
