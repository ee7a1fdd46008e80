// Whether the contents of an array changed: two sums over its words.
#pragma once
#include <cstddef>
#include <cstdint>

namespace echo {

struct Digest {
  std::uint64_t in_order = 0;   // of the words where they are
  std::uint64_t any_order = 0;  // of words of four bytes in any order, zeros between them or not: oneDNN's layouts
};

Digest digest_of(const void* data, std::size_t bytes);

}  // namespace echo
