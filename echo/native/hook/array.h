// What the hook reads of an MXNet array, as the 1.9.1 wheels lay it out: `echo_watch_fits` compares it with what
// MXNet itself says before anything relies on it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "layout.h"

namespace echo {

// mxnet::engine::Var. Asking for the version takes the variable's own lock where the engine has threads.
struct RawVar {
  virtual std::size_t version();
  virtual ~RawVar();
};

struct RawChunk {  // mxnet::NDArray::Chunk, up to its variable
  void* data;
  std::size_t bytes;
  std::int32_t device_type, device_id;
  std::int32_t shared[2];
  const void* auxiliary[3];  // a vector, of sparse arrays
  const void* layout;  // oneDNN's memory, where an operator of oneDNN's wrote it: its elements may be in another order
  void* layout_owner;
  RawVar* var;
};
static_assert(offsetof(RawChunk, var) == 72, "mxnet::NDArray::Chunk::var");

struct RawArray {  // mxnet::NDArray, up to its type
  std::shared_ptr<RawChunk> chunk;
  RawShape shape;
  std::size_t byte_offset;
  std::int32_t type;
};
static_assert(offsetof(RawArray, type) == 72, "mxnet::NDArray::dtype_");

// std::vector<mxnet::NDArray>, whose elements are longer than a RawArray.
struct RawArrays {
  const char *first, *end, *capacity;
};

// One of so many arrays.
const RawArray& at(const RawArrays& arrays, std::size_t position, std::size_t count);

// Bytes of the array's elements, 0 for a type without a known size.
std::size_t bytes_of(const RawArray& array);

}  // namespace echo
