// NVIDIA's driver library, opened when the first CUDA call comes: building and installing need nothing of CUDA.
#ifndef ECHO_KERNELS_CUDA_DRIVER_H_
#define ECHO_KERNELS_CUDA_DRIVER_H_
#include <cstddef>
#include <stdexcept>

namespace echo_cuda {

// The part of cuda.h that is needed, under its names' meanings; the numbers are the driver's binary interface.
typedef int Result;  // CUresult
typedef int DeviceNumber;
typedef unsigned long long Address;  // CUdeviceptr
typedef struct ContextState* Context;
typedef struct ModuleState* ModuleHandle;
typedef struct FunctionState* Function;
typedef struct StreamState* Stream;

enum {
  kSuccess = 0,
  kErrorNoDevice = 100,
  kErrorInvalidPtx = 218,
  kErrorUnsupportedPtx = 222,
};
enum { kPointerMemoryType = 2, kPointerDevice = 9 };
enum { kMemoryHost = 1 };
enum { kMultiprocessors = 16, kCooperativeLaunch = 95, kMostSharedBytes = 97 };
enum { kFunctionFixedSharedBytes = 1, kFunctionSharedBytes = 8 };
enum { kJitErrorLog = 5, kJitErrorLogBytes = 6 };

// Something that the machine, not the caller, has to answer for.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Driver {
  Result (*init)(unsigned);
  Result (*version)(int*);
  Result (*error_name)(Result, const char**);
  Result (*error_string)(Result, const char**);
  Result (*device_count)(int*);
  Result (*device_attribute)(int*, int, DeviceNumber);
  Result (*context_get)(Context*);
  Result (*context_set)(Context);
  Result (*context_device)(DeviceNumber*);
  Result (*primary_retain)(Context*, DeviceNumber);
  Result (*pointer_attribute)(void*, int, Address);
  Result (*module_load)(ModuleHandle*, const void*, unsigned, int*, void**);
  Result (*module_function)(Function*, ModuleHandle, const char*);
  Result (*function_get)(int*, int, Function);
  Result (*function_set)(Function, int, int);  // null before CUDA 9
  Result (*occupancy)(int*, Function, int, size_t);
  Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**,
                   void**);
  Result (*launch_cooperative)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,
                               void**);  // null before CUDA 9
  Result (*set_bytes)(Address, unsigned char, size_t, Stream);
  Result (*copy)(Address, Address, size_t, Stream);

  // Throws DeviceError where the result is not success: "what: name (explanation)".
  void check(Result result, const char* what) const;
};

// Throws DeviceError where there is no driver, or no device.
const Driver& driver();

}  // namespace echo_cuda
#endif  // ECHO_KERNELS_CUDA_DRIVER_H_
