#include "queue.h"

#include <algorithm>
#include <cstdio>

#include "check.h"

namespace echo_cuda {
namespace {

const int64_t kMostBlocks = 65535;  // of the second axis; grids are walked in strides, so fewer do as well
const int64_t kMostBlocksX = int64_t{1} << 20;

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
  const auto look = [&](const void* data, int64_t elements, const std::string& name) {
    if (data == nullptr || elements == 0) return;  // what is empty may be anywhere
    const std::string what = std::string(call.kernel) + ": " + name;
    const DeviceNumber number = device_of(data, what);
    if (found >= 0 && number != found) {
      throw DeviceError(what + " is on device " + std::to_string(number) + ", expected " + std::to_string(found) +
                        " as the arrays before it");
    }
    found = number;
  };
  for (int i = 0; i < call.num_in; ++i) {
    look(call.in[i].data, echo::kernels::element_count(call.in[i]), "input " + std::to_string(i));
  }
  for (int i = 0; i < call.num_out; ++i) {
    if (call.req[i] == ECHO_SKIP) continue;
    look(call.out[i].data, echo::kernels::element_count(call.out[i]), "output " + std::to_string(i));
  }
  look(call.workspace, static_cast<int64_t>(call.workspace_bytes), "the workspace");
  return found;
}

Entered enter_device_of(const EchoCall& call) {
  const DeviceNumber number = device_of(call);
  return number < 0 ? Entered() : Entered(number);  // no array, no work
}

std::string full_name(const std::string& kernel, bool half) { return kernel + (half ? "_f16" : "_f32"); }

}  // namespace

Queue::Queue(const EchoCall& call)
    : entered_(enter_device_of(call)),
      device_(entered_.device()),
      stream_(static_cast<Stream>(call.stream)),
      workspace_(static_cast<char*>(call.workspace)) {}

Queue::Queue(DeviceNumber number) : entered_(number), device_(entered_.device()) {}

int Queue::multiprocessors() const { return measures() ? 1 : device_->multiprocessors; }

void* Queue::room(int64_t bytes) {
  const size_t start = used_;
  used_ += (static_cast<size_t>(bytes) + 255) / 256 * 256;
  return measures() ? nullptr : workspace_ + start;
}

bool Queue::fits_at_once(const std::string& kernel, bool half, const Grid& grid) const {
  if (measures() || !device_->launches_at_once) return false;
  const Kernel found = device_->kernel(full_name(kernel, half));
  int blocks = 0;
  return grid.shared_bytes <= found.most_shared_bytes &&
         driver().occupancy(&blocks, found.function, grid.block_x * grid.block_y, grid.shared_bytes) == kSuccess &&
         grid.x * grid.y <= int64_t{blocks} * device_->multiprocessors;
}

Result Queue::enqueue(const std::string& name, const Grid& grid, const void* arguments, bool at_once) {
  if (grid.x <= 0 || grid.y <= 0) return kSuccess;
  const Function function = device_->kernel(name).function;
  const unsigned x = static_cast<unsigned>(std::min(grid.x, kMostBlocksX));
  const unsigned y = static_cast<unsigned>(std::min(grid.y, kMostBlocks));
  const unsigned shared = static_cast<unsigned>(grid.shared_bytes);
  void* parameters[] = {const_cast<void*>(arguments)};
  if (at_once) {
    return driver().launch_cooperative(function, x, y, 1, grid.block_x, grid.block_y, 1, shared, stream_, parameters);
  }
  return driver().launch(function, x, y, 1, grid.block_x, grid.block_y, 1, shared, stream_, parameters, nullptr);
}

void Queue::enqueue_alone(const std::string& kernel, bool half, const Grid& grid, const void* arguments) {
  const std::string name = full_name(kernel, half);
  driver().check(enqueue(name, grid, arguments, false), ("launching " + name).c_str());
}

// MPS, MIG and debuggers may refuse what the occupancy allows. What is wrong beyond that, the launches that come instead say.
bool Queue::enqueue_at_once(const std::string& kernel, bool half, const Grid& grid, const void* arguments) {
  const std::string name = full_name(kernel, half);
  const Result result = enqueue(name, grid, arguments, true);
  if (result == kSuccess) return true;
  if (device_->launches_at_once.exchange(false)) {
    const char* error = nullptr;
    if (driver().error_name(result, &error) != kSuccess || error == nullptr) error = "an unknown error";
    std::fprintf(stderr,
                 "echo: CUDA device %d does not launch %s with all blocks at once (%s): LSTM layers go step by step\n",
                 device_->number, name.c_str(), error);
  }
  return false;
}

bool Queue::takes(const GemmKernel& kernel, bool half, const Gemm& g) const {
  return !measures() && device_->blas.takes(kernel, half, g);
}

// Biases are there before the product is added to them.
bool Queue::multiply(const GemmKernel& kernel, bool half, const Gemm& g, void* workspace) {
  if (measures()) return true;
  if (!takes(kernel, half, g)) return false;
  if (g.bias != nullptr) {
    Grid grid;
    grid.x = (g.n + kThreads - 1) / kThreads;
    grid.y = g.m;
    launch("put_biases", half, grid, g);
  }
  return device_->blas.multiply(kernel, half, g, g.bias != nullptr || g.c.add != 0, stream_, workspace);
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
