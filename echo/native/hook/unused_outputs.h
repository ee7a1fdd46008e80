// What MXNet plans memory for and then never touches, so that the memory is never allocated where nothing else is in it.
#pragma once
#include <cstdint>
#include <vector>

#include "layout.h"

namespace echo {

enum Untouched : std::uint8_t {
  kTouched,
  // A gradient that nothing asked for (that of the data, of a frozen weight) of an operator that oneDNN computes, which
  // leaves it out. An operator that is not oneDNN's touches what it does not compute, too.
  kUnread,
  // The second term of a sum of gradients that MXNet computes in place, after its memory pass.
  kAdded,
};

constexpr int kNoStorage = -1;  // instead of a storage id, as MXNet says it

// By entry of a planned graph. `adds_in_place`: whether MXNet computes sums of gradients in place.
std::vector<Untouched> untouched(const RawGraph& graph, bool adds_in_place);

}  // namespace echo
