// The orders in which arrays of oneDNN's have their elements: plain, or in blocks of channels.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>

#include "array.h"

namespace echo {

constexpr int kAxes = 12;

struct RawMemoryDesc {  // dnnl_memory_desc_t
  std::int32_t ndim;
  std::int64_t shape[kAxes];
  std::int32_t type;
  std::int64_t padded_shape[kAxes], padded_offsets[kAxes], offset;
  std::int32_t kind;
  std::int64_t strides[kAxes];
  std::int32_t block_count;
  std::int64_t blocks[kAxes], block_axes[kAxes];
  unsigned char rest[80];
};
static_assert(sizeof(RawMemoryDesc) == 696, "dnnl_memory_desc_t");

struct RawOrdered {  // mxnet::MKLDNNMemory
  std::shared_ptr<void> memory;
  RawMemoryDesc desc;
};

// The order of an array of float32. MXNet's plain operators leave the description of an earlier array.
struct Order {
  std::int64_t is_plain;
  RawMemoryDesc desc;

  explicit Order(const RawArray& array) : is_plain(1), desc{} {
    const auto* ordered = static_cast<const RawOrdered*>(array.chunk->layout);
    if (ordered) {
      for (int axis = 1; axis < ordered->desc.ndim; ++axis)
        if (ordered->desc.strides[axis - 1] < ordered->desc.strides[axis]) is_plain = 0;
      if (ordered->desc.block_count) is_plain = 0;
    }
    desc = is_plain ? plain(array.shape) : ordered->desc;
  }

  // Elements in memory, with those that fill up blocks.
  std::int64_t size() const {
    std::int64_t size = 1;
    for (int axis = 0; axis < desc.ndim; ++axis) size *= desc.padded_shape[axis];
    return size;
  }

  // Where an element is in memory. Only one axis, the channels, may be in blocks.
  std::int64_t offset(const std::int64_t* position) const {
    std::int64_t offset = 0;
    for (int axis = 0; axis < desc.ndim; ++axis) {
      const bool in_blocks = desc.block_count && axis == desc.block_axes[0];
      const std::int64_t block = in_blocks ? desc.blocks[0] : 1;
      offset += position[axis] / block * desc.strides[axis] + position[axis] % block;
    }
    return offset;
  }

  bool operator==(const Order& other) const {
    if (is_plain || other.is_plain) return is_plain == other.is_plain;
    auto same = [](const std::int64_t* mine, const std::int64_t* theirs, int count) {
      return std::equal(mine, mine + count, theirs);
    };
    return desc.ndim == other.desc.ndim && same(desc.strides, other.desc.strides, desc.ndim) &&
           desc.block_count == other.desc.block_count && same(desc.blocks, other.desc.blocks, desc.block_count) &&
           same(desc.block_axes, other.desc.block_axes, desc.block_count);
  }

  // Copies elements from this order into another one.
  void copy(const float* from, float* to, const Order& other) const {
    std::fill(to, to + other.size(), 0.0f);
    std::int64_t position[kAxes] = {};
    for (int axis = 0; axis >= 0;) {
      to[other.offset(position)] = from[offset(position)];
      for (axis = desc.ndim - 1; axis >= 0 && ++position[axis] == desc.shape[axis]; --axis) position[axis] = 0;
    }
  }

 private:
  static RawMemoryDesc plain(const RawShape& shape) {
    RawMemoryDesc desc{};
    desc.ndim = shape.ndim, desc.type = 3, desc.kind = 2;  // dnnl_f32, dnnl_blocked
    std::int64_t stride = 1;
    for (int axis = shape.ndim - 1; axis >= 0; --axis) {
      desc.shape[axis] = desc.padded_shape[axis] = shape.begin()[axis];
      desc.strides[axis] = stride;
      stride *= desc.shape[axis];
    }
    return desc;
  }
};

}  // namespace echo
