// The kernels as a table: names, symbolic shapes and types of the tensors, parameters; a new kernel is a new row.
#ifndef ECHO_KERNELS_TABLE_H_
#define ECHO_KERNELS_TABLE_H_
#include <cstdint>
#include <string>
#include <vector>

namespace echo {
namespace kernels {

// factor * symbol, (symbol * times... + 7) / 8, or factor alone.
struct Axis {
  int64_t factor = 1;
  int symbol = -1;  // index into Kernel::symbols; -1: none
  std::vector<int> times;  // more of them
  bool bits = false;
};

enum class Type { kFloating, kFloat32, kUint8, kLengths };

struct TensorSpec {
  std::string name, shape;  // shape as it is written in the table: "[B,4H]"
  std::vector<Axis> axes;
  Type type = Type::kFloating;
  bool optional = false;
  std::string together;  // an optional tensor that is there exactly when this one is
  bool gradient = false;  // of an output: absent counts as zeros
  bool read = true;
};

struct Kernel {
  std::string name;
  bool is_grad = false;
  std::vector<std::string> symbols, params;
  size_t least_params = 0;  // that a call has to have: the last may be left out
  std::vector<TensorSpec> inputs, outputs;
};

// Every NAME, and after each its NAME_grad.
const std::vector<Kernel>& all_kernels();

// The row of a kernel, or nullptr.
const Kernel* find_kernel(const char* name);

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_TABLE_H_
