// What a call must look like, for every backend: the kernels with the symbolic shapes of their tensors (a table, one row a
// kernel), and a call that was held against them. A wrong call is an exception here; `guard` ends it at the C interface.
#ifndef ECHO_KERNELS_CHECK_H_
#define ECHO_KERNELS_CHECK_H_
#include <array>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "echo_kernels.h"

namespace echo {
namespace kernels {

struct Kernel;  // a row of the table

// The part of an array of gates that each gate is.
typedef std::array<int64_t, 4> Places;

// A call that is wrong; the message names the kernel, the tensor, what was got and what was expected.
struct WrongCall : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A checked call. Tensors, dimensions and parameters go by the names in table.cc; in NAME_grad the gradient of T is
// dT. A name that the kernel does not have is an error of the programmer (std::logic_error).
class Call {
 public:
  // Throws WrongCall. Without data (a question for the workspace) no pointer is looked at, and optional tensors may or
  // may not be there.
  Call(const EchoCall& call, bool with_data);

  const char* name() const { return call_.kernel; }
  const EchoCall& raw() const { return call_; }
  bool half() const { return half_; }  // the floating tensors are float16

  // A dimension: call["H"]. 0 where no tensor that is there has it: then nothing needs it.
  int64_t operator[](const char* symbol) const;
  double param(const char* name) const;
  // Where each of the gates of a cell stands, by the parameter "order".
  Places places(int gates) const;

  // An input's data, NULL where it is absent or empty.
  const void* in(const char* name) const;
  int in_dtype(const char* name) const;
  // An output's data, NULL where it is skipped or empty; whether it is added to.
  void* out(const char* name) const;
  int out_dtype(const char* name) const;
  bool adds(const char* name) const;
  // Whether an output is not wanted, which is known without data, too.
  bool skips(const char* name) const;

  // Throws WrongCall where the workspace is not there, smaller than this, or not aligned to 64 bytes.
  void require_workspace(size_t bytes) const;

  // Whether this is a NAME_grad in which every gradient that it reads is absent: all its results are zeros.
  bool zero_gradient() const;
  // Zeros into an output, or into every one, but for those that are skipped or added to.
  void write_zeros(const char* name) const;
  void write_zeros() const;

 private:
  const Kernel& kernel_;
  const EchoCall& call_;
  bool half_ = false;
  std::vector<int64_t> dims_;  // of the kernel's symbols
};

int64_t element_count(const EchoTensor& tensor);
size_t dtype_bytes(int dtype);  // 0 where it is unknown

// Remembers an error for echo_kernels_error.
void set_error(const std::string& message);

// Runs something, and remembers its exception as this thread's error: 0, or 1 after an error.
template <typename Action>
int guard(const Action& action) {
  try {
    action();
    return 0;
  } catch (const std::exception& error) {
    set_error(error.what());
  } catch (...) {
    set_error("an unknown error");
  }
  return 1;
}

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CHECK_H_
