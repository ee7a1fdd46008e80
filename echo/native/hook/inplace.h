// Operators that may compute in place: fewer, under a plan that restricts them.
//
// A clone has one reader, and a map that is recomputed has none that waits for it, so MXNet would take in-place options
// that it does not take in the original graph. That can change bits: oneDNN keeps its layout in the chunk, and a sum
// over a blocked array is added up in another order than one over a plain array.
#pragma once

namespace echo {

// From now on MXNet's FInplaceOption and FInplaceIdentity leave out what a node's attribute `__echo_apart__` names:
// "BatchNorm:0>0;_backward_BatchNorm:0>0,1>0" keeps output 0 of a BatchNorm apart from its input 0, and so on; parts
// with the name of another operator say nothing of this node, which may be a gradient with its forward node's
// attributes. Operators that are registered later are left as they are.
void wrap_inplace();
void unwrap_inplace();

// While it lives, this thread leaves nothing out, if `all`. A CachedOp with static_alloc runs inference by the plan's
// graph, where no gradient reads anything: MXNet then takes options that it does not take in training, with or without
// a plan.
class ScopedInplace {
 public:
  explicit ScopedInplace(bool all);
  ~ScopedInplace();
  ScopedInplace(const ScopedInplace&) = delete;
  ScopedInplace& operator=(const ScopedInplace&) = delete;

 private:
  bool before_;
};

}  // namespace echo
