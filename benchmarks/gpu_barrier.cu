// The barrier of an LSTM layer's steps and nothing else, to be timed (gpu_barrier.py) and tested in the emulation.
#include "device.cuh"

namespace echo_cuda {

struct Barriers {
  unsigned* arrived;
  Long steps;
};

}  // namespace echo_cuda

ECHO_KERNEL(1, grid_barriers, Barriers, {
  for (unsigned step = 1; step <= a.steps; ++step) echo_cuda::grid_barrier(a.arrived, step * gridDim.x);
})
