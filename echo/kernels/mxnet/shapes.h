// Shapes and types of MXNet's arrays against those of the kernels, which know fewer axes: x[N,H] of layer_norm may have any
// number of leading axes in MXNet, and the query[B,H] of mlp_score is [B,1,H] there.
#ifndef ECHO_KERNELS_MXNET_SHAPES_H_
#define ECHO_KERNELS_MXNET_SHAPES_H_
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "table.h"

namespace echo {
namespace kernels {

// The attributes of an operator, as MXNet hands them over.
class Attributes {
 public:
  Attributes(const char* const* keys, const char* const* values, int count)
      : keys_(keys), values_(values), count_(count) {}

  const char* text(const char* name) const;  // nullptr where it is not there
  double number(const std::string& name) const;  // 0 where it is not there

  // Which inputs of the kernel there are. Throws WrongCall where `present` says anything else than that.
  std::vector<bool> present(const Kernel& kernel) const;

 private:
  const char* const* keys_;
  const char* const* values_;
  int count_;
};

// The sizes that a kernel's symbols stand for.
class Sizes {
 public:
  explicit Sizes(const Kernel& kernel) : kernel_(kernel), sizes_(kernel.symbols.size(), -1) {}

  // A tensor of the kernel has this shape in MXNet, where a size of 0 or less is unknown.
  void learn(const TensorSpec& spec, std::vector<int64_t> shape);
  // Finds out every size that follows. Throws WrongCall where two shapes contradict each other.
  void solve();

  bool knows(const TensorSpec& spec) const;
  // The shape of a tensor in the kernel. Throws WrongCall where a size is not known.
  std::vector<int64_t> shape_of(const TensorSpec& spec) const;

 private:
  int64_t size_of(const Axis& axis) const;
  void set(const TensorSpec& spec, const Axis& axis, int64_t size, const std::vector<int64_t>& shape);
  void solve_one(const TensorSpec& spec, const std::vector<int64_t>& shape);

  const Kernel& kernel_;
  std::vector<int64_t> sizes_;
  std::vector<std::pair<const TensorSpec*, std::vector<int64_t>>> learned_;
};

// Fills in what is unknown of the inputs' shapes, and gives those of the outputs. Throws WrongCall where that is not
// possible.
std::vector<std::vector<int64_t>> infer_shapes(const Kernel& kernel, const Attributes& attrs,
                                               std::vector<std::vector<int64_t>>* in);

// The same of types, in MXNet's numbers; -1 is unknown.
void infer_types(const Kernel& kernel, const Attributes& attrs, int* in, int num_in, int* out, int num_out);

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_MXNET_SHAPES_H_
